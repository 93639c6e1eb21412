"""`canopy scale` and `canopy serve --cluster`: their words, and when waiting is over or in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from common.errors import UserError
from common.fleet import ReplicaRecord
from common.process import bind_port
from deploy.fleet import client, scale
from deploy.fleet.apply import fault_of, missing_of
from deploy.fleet.client import only_fleet, sentence_of
from deploy.fleet.messages import FleetStatus, GatewayStatus, ModelStatus, ReplicaStatus
from deploy.local.plan import RunningFleet, fleets_dir, write_private


def replica(number: int, state: Any = "ready", version: str = "v1", **parts: Any) -> ReplicaStatus:
    record = ReplicaRecord(
        replica_id=f"replica-{number}", incarnation=str(number), url="u", model="m", state=state, version=version
    )
    return ReplicaStatus(record=record, state_for_s=1.0, log_path="/logs/r.log", **parts)


def status(model: ModelStatus, *replicas: ReplicaStatus, gateway: GatewayStatus | None = None) -> FleetStatus:
    return FleetStatus(version=1, models=[model], replicas=list(replicas), gateway=gateway)


TWO = ModelStatus(name="m", wanted=2, version="v1")


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["3"], ["--replicas", "3"]),
        (["chat", "3"], ["--model", "chat", "--replicas", "3"]),
        (["3", "--address", "a"], ["--replicas", "3", "--address", "a"]),
        (["--replicas", "3"], ["--replicas", "3"]),
    ],
)
def test_words_of_scale_are_flags(words: list[str], flags: list[str]) -> None:
    assert scale.with_flags(words) == flags


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["a", "b", "3"], "There is a word too many: canopy scale [MODEL] N."),
        ([], "--replicas"),
        (["0"], "--replicas must be at least 1"),
        (["3"], "No fleet runs on this machine; name the Ray of one elsewhere with --address."),
    ],
)
def test_scale_refuses_in_one_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        scale.main(words, {"CANOPY_CACHE": str(tmp_path)})
    assert str(caught.value).startswith(sentence)


def test_a_named_ray_is_not_looked_for(tmp_path: Path) -> None:
    env = {"CANOPY_CACHE": str(tmp_path), "RAY_ADDRESS": "10.0.0.1:6379"}
    assert only_fleet(None, env).ray_address == "10.0.0.1:6379"
    assert only_fleet("10.0.0.2:6379", env).ray_address == "10.0.0.2:6379"


def test_of_several_fleets_here_one_is_named_and_its_token_known(tmp_path: Path) -> None:
    fleets_dir(tmp_path).mkdir()
    me, env = psutil.Process(), {"CANOPY_CACHE": str(tmp_path)}
    for name in ("a", "b"):
        found = RunningFleet(
            model=name,
            url=f"http://{name}",
            ray_address=f"127.0.0.2:{name}",
            token_file=f"/{name}/token",
            log_dir="l",
            pid=me.pid,
            started_s=me.create_time(),
        )
        write_private(fleets_dir(tmp_path) / f"{name}.json", msgspec.json.encode(found))
    with pytest.raises(UserError, match=r"one of 127.0.0.2:a \(a at http://a\), 127.0.0.2:b \(b at http://b\)."):
        only_fleet(None, env)
    assert only_fleet("127.0.0.2:b", env).token_file == "/b/token"


def test_waiting_is_over_when_all_are_ready_and_of_the_wanted_version() -> None:
    assert missing_of(TWO, status(TWO, replica(0), replica(1))) == ""
    assert missing_of(TWO, status(TWO, replica(0))) == "m: 1 of 2 replicas ready"
    assert missing_of(TWO, status(TWO, replica(0), replica(1), replica(2, "draining"))) == "m: 2 of 2 replicas ready"
    rolling = ModelStatus(name="m", wanted=2, version="v2", is_rolling=True)
    mixed = status(rolling, replica(0), replica(1, version="v2"))
    assert missing_of(rolling, mixed) == "m: 1 of 2 replicas have version v2"


def test_waiting_is_in_vain_when_an_update_is_held_or_a_replica_cannot_start() -> None:
    assert fault_of(status(TWO, replica(0), replica(1, "failed"))) == ""
    held = ModelStatus(
        name="m", wanted=2, version="v1", held_version="v2", held_reason="crash loop", held_log_tail=["boom"]
    )
    assert fault_of(status(held, replica(0))) == (
        "m: the update to version v2 is held, version v1 goes on: crash loop\n  boom"
    )
    broken = replica(1, "failed", is_crash_looping=True, log_tail=["boom"])
    assert fault_of(status(TWO, broken)).endswith("See /logs/r.log\n  boom")
    port = GatewayStatus(url="u", message="gateway: Cannot listen on 0.0.0.0:80")
    assert fault_of(status(TWO, gateway=port)) == port.message


def test_another_ray_is_told_with_both_versions() -> None:
    text = (
        "Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
        "This process on node 127.0.0.1 was started with:\n    Ray: 2.59.0\n    Python: 3.12.1\n"
    )
    assert sentence_of("a:1", RuntimeError(text)) == (
        "The Ray at a:1 is 2.60.0 on Python 3.11.7 and this is 2.59.0 on Python 3.12.1; install the same on all "
        "machines."
    )
    assert sentence_of("a:1", RuntimeError("no\nmore")) == "Cannot ask the Ray at a:1: no"
    text = "Token authentication is enabled but no authentication token was found. Ensure\nthat"
    assert sentence_of("a:1", RuntimeError(text)) == (
        "Cannot ask the Ray at a:1: set RAY_AUTH_TOKEN_PATH to a file that holds its token."
    )
    assert sentence_of("a:1", ConnectionError("no")).startswith("Cannot ask the Ray at a:1: it does not run there, or ")


def test_where_nobody_listens_it_is_said_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_POLL_S", 0.0)
    with bind_port("127.0.0.1", 0) as sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        client._knock(address)
    with pytest.raises(ConnectionError):  # Ray itself tries for two minutes
        client._knock(address)
    client._knock("local")  # for Ray to judge
