"""Talks to a fleet's controller from outside: connects to its Ray, asks, and says in one sentence what is wrong."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from common.errors import UserError
from common.paths import cache_root
from deploy.environment import ray_environment
from deploy.fleet.messages import Answer, FleetStatus
from deploy.local.plan import RunningFleet, running_fleets

_ANSWER_TIMEOUT_S = 30.0
_CHANGE_TIMEOUT_S = 120.0  # Ray may have to start a process for the controller first
_POLL_S = 1.0
_KNOCKS = 3
_KNOCK_TIMEOUT_S = 3.0
_RAY_PATIENCE = {"RAY_NUM_REDIS_GET_RETRIES": "3"}  # seconds it tries to reach an address, else 20
_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")


class NoFleet(UserError):
    """The Ray that was asked is there, and runs no fleet."""


def named_fleet(address: str | None, env: Mapping[str, str]) -> RunningFleet | None:
    """The fleet in the Ray that the user named, by flag or RAY_ADDRESS; None if none was named. Of this machine's own
    fleets the token is known."""
    named = address or env.get("RAY_ADDRESS")
    if not named:
        return None
    here = (fleet for fleet in running_fleets(cache_root(env)) if fleet.ray_address == named)
    return next(here, None) or RunningFleet.elsewhere(named)


def only_fleet(address: str | None, env: Mapping[str, str]) -> RunningFleet:
    """The fleet in the Ray that the user named, else the one of this machine. Raises UserError."""
    if fleet := named_fleet(address, env):
        return fleet
    found = running_fleets(cache_root(env))
    if not found:
        raise UserError("No fleet runs on this machine; name the Ray of one elsewhere with --address.")
    if len(found) > 1:
        choices = ", ".join(f"{fleet.ray_address} ({fleet.model} at {fleet.url})" for fleet in found)
        raise UserError(f"Several fleets run on this machine; choose with --address one of {choices}.")
    return found[0]


@contextlib.contextmanager
def connected(fleet: RunningFleet) -> Iterator[None]:
    """Be connected to the fleet's Ray. Raises UserError if there is none, or it does not let us in."""
    os.environ.update(_RAY_PATIENCE)
    if fleet.token_file:
        os.environ.update(ray_environment(fleet.token_file))  # Ray reads them on import
    import ray

    from common.fleet import RAY_NAMESPACE

    try:
        _knock(fleet.ray_address)
        with _silent_stderr():
            ray.init(address=fleet.ray_address, namespace=RAY_NAMESPACE, log_to_driver=False, logging_level="critical")
        yield
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UserError(sentence_of(fleet.ray_address, error)) from None
    finally:
        with _silent_stderr():
            ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError if nobody listens there: Ray would try for two minutes."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()):
        return  # Ray says what is wrong with it
    for attempt in range(_KNOCKS):
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_TIMEOUT_S).close()
            return
        except OSError as error:
            if attempt == _KNOCKS - 1:
                raise ConnectionError(str(error)) from None
            time.sleep(_POLL_S)


def controller_of(fleet: RunningFleet) -> Any:
    """Its actor handle, while connected. Raises NoFleet if no fleet runs there."""
    import ray

    from common.fleet import CONTROLLER_ACTOR

    try:
        return ray.get_actor(CONTROLLER_ACTOR)
    except ValueError:
        raise NoFleet(f"No fleet runs in the Ray at {fleet.ray_address}.") from None


def status_of(controller: Any, patience_s: float = 0.0) -> FleetStatus:
    """Ask it how the fleet is; while it is being restarted, again for so long. Raises RayError."""
    import ray

    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            answer = ray.get(controller.status.remote(), timeout=_ANSWER_TIMEOUT_S)
            return msgspec.msgpack.decode(answer, type=FleetStatus)
        except ray.exceptions.RayError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(_POLL_S)


def answer_to(call: Any) -> list[str]:
    """The changes that a call has made. Raises UserError if it was refused."""
    import ray

    answer = msgspec.msgpack.decode(ray.get(call, timeout=_CHANGE_TIMEOUT_S), type=Answer)
    if answer.refusal:
        raise UserError(answer.refusal)
    return answer.changes


def sentence_of(address: str, error: Exception) -> str:
    """What keeps us from asking the Ray at `address`."""
    text = str(error).strip()
    if versions := _VERSIONS.findall(text):
        (theirs, their_python), (ours, our_python) = versions[0], versions[-1]
        return (
            f"The Ray at {address} is {theirs} on Python {their_python} and this is {ours} on Python {our_python}; "
            "install the same on all machines."
        )
    if "RAY_AUTH_TOKEN" in text or "authentication token" in text:
        return f"Cannot ask the Ray at {address}: set RAY_AUTH_TOKEN_PATH to a file that holds its token."
    if isinstance(error, ConnectionError):  # Ray says the same of a wrong token and of no Ray at all
        return (
            f"Cannot ask the Ray at {address}: it does not run there, or RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH "
            "do not name its token."
        )
    return f"Cannot ask the Ray at {address}: {text.partition(chr(10))[0]}"


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Ray's native code logs every attempt to connect; what matters comes as an exception."""
    saved = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
