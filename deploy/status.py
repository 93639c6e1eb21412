"""`canopy status`: asks the fleet's controller for its replicas and each replica for its load, and prints a table."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence

import httpx
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from common.paths import cache_root
from common.settings import Settings, load, option
from deploy.fleet.client import NoFleet, connected, controller_of, named_fleet, status_of
from deploy.fleet.messages import GatewayStatus, ModelStatus, ReplicaStatus
from deploy.local.plan import RunningFleet, running_fleets
from gateway.fleet.health import decode, load_of
from gateway.fleet.worker import LoadReport

_REPLICA_TIMEOUT_S = 3.0
_EXIT_NONE_RUNS = 1
_PIPE_WIDTH = 180


class StatusSettings(Settings):
    """Show the fleet's replicas. Exit code 1 if no fleet runs."""

    address: str | None = option(
        None,
        "Ray address of a fleet elsewhere; without it RAY_ADDRESS, else this machine's. Ray's own variables "
        "tell its token",
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

    model: str  # names of its models
    url: str  # of the gateway, from its own machine; empty if the fleet runs none
    log_dir: str  # where the fleet is of this machine
    models: list[ModelStatus]
    gateway: GatewayStatus | None  # where the fleet runs it itself
    replicas: list[ReplicaReport]


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Print the fleets. Returns the exit code."""
    settings = load(StatusSettings, argv, env, prog="canopy status").settings
    named = named_fleet(settings.address, env)
    nothing = "No fleet runs on this machine; start one with `canopy serve MODEL`."
    try:
        reports = [_report(fleet) for fleet in ([named] if named else running_fleets(cache_root(env)))]
    except NoFleet as none:
        reports, nothing = [], str(none)
    if settings.json_output:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(reports)) + b"\n")
    elif not reports:
        print(nothing, file=sys.stderr)
    for report in reports if not settings.json_output else []:
        _print_report(report, _console())
    return 0 if reports else _EXIT_NONE_RUNS


def _report(fleet: RunningFleet) -> FleetReport:
    with connected(fleet):
        status = status_of(controller_of(fleet))
    loads = asyncio.run(_ask_replicas([r.record.url for r in status.replicas]))
    return FleetReport(
        model=", ".join(model.name for model in status.models),
        url=fleet.url or (status.gateway.url if status.gateway else ""),
        log_dir=fleet.log_dir,
        models=status.models,
        gateway=status.gateway,
        replicas=[ReplicaReport(status=r, load=loads.get(r.record.url)) for r in status.replicas],
    )


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
    for column in ("replica", "state", "model", "version", "url", "node"):
        table.add_column(column, overflow="fold")
    for column in ("running", "waiting", "token usage", "hit rate", "restarts", "in state"):
        table.add_column(column, justify="right")
    for replica in report.replicas:
        table.add_row(*_row(replica))
    console.print(table)
    for model in report.models:
        _print_model(model, report.replicas, console)
    if report.gateway is not None and report.gateway.message:
        _say(report.gateway.message, [], console)
    for replica in report.replicas:
        _print_trouble(replica.status, console)


def _print_model(model: ModelStatus, replicas: Sequence[ReplicaReport], console: Console) -> None:
    """What is wanted of a model and not so yet."""
    records = [r.status.record for r in replicas if r.status.record.model == model.name]
    if model.held_version:
        text = f"{model.name}: the update to version {model.held_version} is held: {model.held_reason}"
        _say(text, model.held_log_tail, console)
    if model.is_rolling:
        new = sum(record.version == model.version for record in records)
        _say(f"{model.name}: rolling update, {new} of {model.wanted} have version {model.version}", [], console)
    elif len(records) != model.wanted:
        _say(f"{model.name}: {model.wanted} replicas wanted, {len(records)} there", [], console)


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
    identity = [record.replica_id, record.state, record.model, record.version, record.url or "-", record.node or "-"]
    return [*identity, *numbers, str(record.restarts), duration(replica.status.state_for_s)]


def _print_trouble(status: ReplicaStatus, console: Console) -> None:
    if not status.record.message:
        return
    following = "it is not restarted" if status.is_given_up else "it is being restarted"
    if status.restart_in_s is not None:
        following = f"restart in {status.restart_in_s:.0f} s"
    if status.record.state == "starting":
        following = "it is starting"
    text = f"{status.record.replica_id}: {status.record.message}; {following}. Log: {status.log_path}"
    _say(text, status.log_tail, console)


def _say(text: str, lines: Sequence[str], console: Console) -> None:
    for line in (text, *(f"  {line}" for line in lines)):
        console.print(line, markup=False, highlight=False)


def duration(seconds: float) -> str:
    """Short for people: 42 s, 3 m 5 s, 2 h 10 m."""
    minutes, rest_s = divmod(int(seconds), 60)
    hours, rest_m = divmod(minutes, 60)
    if hours:
        return f"{hours} h {rest_m} m"
    return f"{minutes} m {rest_s} s" if minutes else f"{rest_s} s"
