"""`canopy status`: asks the fleet's controller for its replicas and each replica for its load, and prints a table."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

import httpx
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from common.errors import UserError
from common.settings import Settings, load, option
from deploy.environment import ray_environment
from deploy.fleet.messages import FleetStatus, ReplicaStatus
from deploy.local.plan import RunningFleet, running_fleets
from gateway.fleet.health import decode, load_of
from gateway.fleet.worker import LoadReport
from worker.models.paths import cache_root

_REPLICA_TIMEOUT_S = 3.0
_EXIT_NONE_RUNS = 1
_PIPE_WIDTH = 140
_RAY_PATIENCE = {"RAY_NUM_REDIS_GET_RETRIES": "3"}  # seconds it tries to reach an address, else 20


class StatusSettings(Settings):
    """Show the fleet's replicas. Exit code 1 if no fleet runs."""

    address: str | None = option(
        None,
        "Ray address of a fleet elsewhere; without it the fleets of this machine. Ray's own variables tell its token",
        category="Status",
        min_length=1,
    )
    json_output: bool = option(False, "print JSON instead of a table", category="Status", aliases=["json"])


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """One replica in `canopy status --json`. `load` is None if it did not answer."""

    status: ReplicaStatus
    load: LoadReport | None


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """One fleet in `canopy status --json`."""

    model: str
    url: str  # of the gateway, where the fleet is of this machine
    log_dir: str
    replicas: list[ReplicaReport]


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Print the fleets. Returns the exit code."""
    settings = load(StatusSettings, argv, env, prog="canopy status").settings
    if settings.address is not None:
        reports = [_report(RunningFleet.elsewhere(settings.address))]
    else:
        reports = [_report(fleet) for fleet in running_fleets(cache_root(env))]
    if settings.json_output:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(reports)) + b"\n")
    elif not reports:
        print("No fleet runs on this machine; start one with `canopy serve MODEL`.", file=sys.stderr)
    for report in reports if not settings.json_output else []:
        _print_report(report, _console())
    return 0 if reports else _EXIT_NONE_RUNS


def _report(fleet: RunningFleet) -> FleetReport:
    with _silent_stderr():
        status = _ask_controller(fleet)
    loads = asyncio.run(_ask_replicas([r.record.url for r in status.replicas]))
    return FleetReport(
        model=status.model,
        url=fleet.url,
        log_dir=fleet.log_dir,
        replicas=[ReplicaReport(status=r, load=loads.get(r.record.url)) for r in status.replicas],
    )


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


def _ask_controller(fleet: RunningFleet) -> FleetStatus:
    """Raises UserError if there is no Ray, or no fleet in it."""
    os.environ.update(_RAY_PATIENCE)
    if fleet.token_file:
        os.environ.update(ray_environment(fleet.token_file))  # Ray reads them on import
    import ray

    from common.fleet import CONTROLLER_ACTOR, RAY_NAMESPACE

    try:
        ray.init(address=fleet.ray_address, namespace=RAY_NAMESPACE, log_to_driver=False, logging_level="critical")
        controller = ray.get_actor(CONTROLLER_ACTOR)
        answer = ray.get(controller.status.remote(), timeout=_REPLICA_TIMEOUT_S)
    except ValueError:
        raise UserError(f"No fleet runs in the Ray at {fleet.ray_address}.") from None
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"Cannot ask the Ray at {fleet.ray_address}: {reason}") from None
    finally:
        ray.shutdown()
    return msgspec.msgpack.decode(answer, type=FleetStatus)


async def _ask_replicas(urls: Sequence[str]) -> dict[str, LoadReport]:
    """By URL, of those that answered."""

    async def ask(client: httpx.AsyncClient, url: str) -> tuple[str, LoadReport] | None:
        try:
            answer = await client.get(f"{url}/v1/loads")
        except httpx.HTTPError:
            return None
        return (url, load_of(decode(answer.content), 0.0)) if answer.status_code == 200 else None

    async with httpx.AsyncClient(timeout=_REPLICA_TIMEOUT_S, trust_env=False) as client:
        answers = await asyncio.gather(*(ask(client, url) for url in urls if url))
    return dict(answer for answer in answers if answer is not None)


def _print_report(report: FleetReport, console: Console) -> None:
    where = f"{report.model} at {report.url}" if report.url else report.model
    table = Table(title=where, title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("replica", "state", "url", "node"):
        table.add_column(column, overflow="fold")
    for column in ("running", "waiting", "token usage", "hit rate", "restarts", "in state"):
        table.add_column(column, justify="right")
    for replica in report.replicas:
        table.add_row(*_row(replica))
    console.print(table)
    for replica in report.replicas:
        _print_trouble(replica.status, console)


def _console() -> Console:
    """As wide as the terminal; into a pipe, wide enough for the table."""
    console = Console(soft_wrap=True)
    return console if console.is_terminal else Console(soft_wrap=True, width=_PIPE_WIDTH)


def _row(replica: ReplicaReport) -> list[str]:
    record, load = replica.status.record, replica.load
    numbers = ["-"] * 4
    if load is not None:
        numbers = [
            str(load.running_requests),
            str(load.waiting_requests),
            f"{load.token_usage:.0%}",
            f"{load.cache_hit_rate:.0%}",
        ]
    identity = [record.replica_id, record.state, record.url or "-", record.node or "-"]
    return [*identity, *numbers, str(record.restarts), duration(replica.status.state_for_s)]


def _print_trouble(status: ReplicaStatus, console: Console) -> None:
    if not status.record.message:
        return
    following = "it is not restarted" if status.is_given_up else "it is being restarted"
    if status.restart_in_s is not None:
        following = f"restart in {status.restart_in_s:.0f} s"
    text = f"{status.record.replica_id}: {status.record.message}; {following}. Log: {status.log_path}"
    console.print(text, markup=False, highlight=False)
    for line in status.log_tail:
        console.print(f"  {line}", markup=False, highlight=False)


def duration(seconds: float) -> str:
    """Short for people: 42 s, 3 m 5 s, 2 h 10 m."""
    minutes, rest_s = divmod(int(seconds), 60)
    hours, rest_m = divmod(minutes, 60)
    if hours:
        return f"{hours} h {rest_m} m"
    return f"{minutes} m {rest_s} s" if minutes else f"{rest_s} s"
