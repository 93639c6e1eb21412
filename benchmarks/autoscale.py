"""Autoscaler against static fleets on recorded arrivals, in virtual time: python -m benchmarks.autoscale --trace FILE.

For each fleet: the share of requests whose first token came within --ttft, and the replica-hours paid, from the launch
of each replica to its end. Arrivals and lengths are the trace's (see traces.py for --rate and --stretch), step
times those of the profile times --speed (0.1 of an H200 with an 8B model is about what a 70B model gets from it), and a
new replica serves --start seconds after its launch. --plot draws what happened; it needs matplotlib.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.arguments import Arguments, run
from benchmarks.autoscale_fleet import Outcome, VirtualFleet
from benchmarks.autoscale_replica import Machine
from benchmarks.traces import TraceRequest, played, read_trace
from common.errors import UserError
from deploy.autoscale.autoscaler import make_autoscaler
from deploy.fleet.description import AutoscalingDescription, ModelDescription, ReplicaBounds
from worker.engine.sim.profile import load_profile

_AS_GOOD = 0.999  # static fleets beyond this attainment are not tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one fleet."""

    fleet: str
    replica_hours: float
    attainment: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    most: int
    changes: int
    failed: int


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run every fleet and print the table."""
    args = parse_args(argv, prog)
    requests = played([read_trace(path) for path in args.trace], rate=args.rate, stretch=args.stretch)
    end_s = requests[-1].arrival_s
    print(
        f"{len(requests)} requests in {end_s / 3600:.2f} h; time to first token within {args.ttft:g} s; "
        f"a replica starts in {args.start:g} s",
        flush=True,
    )
    outcomes = [scaled(args, requests, end_s)]
    print(line(row_of(outcomes[0], args.ttft)), flush=True)
    for replicas in args.static or range(1, args.max + 1):
        outcomes.append(static(args, requests, end_s, replicas))
        print(line(row_of(outcomes[-1], args.ttft)), flush=True)
        if not args.static and outcomes[-1].attainment(args.ttft) >= _AS_GOOD:
            break
    rows = [row_of(outcome, args.ttft) for outcome in outcomes]
    print(verdict(rows[0], rows[1:]))
    if args.csv is not None:
        write_csv(args.csv, rows)
    if args.json:
        print(json.dumps([asdict(row) for row in rows]))
    if args.plot is not None:
        from benchmarks.autoscale_plot import plot

        plot(args.plot, requests, outcomes, target_s=args.ttft)
    return 0


def machine(args: argparse.Namespace) -> Machine:
    """What each replica runs on."""
    profile = load_profile(args.profile)
    memory = profile.memory
    pool_tokens = int((memory.free_bytes * 0.88 - memory.weight_bytes) / memory.kv_bytes_per_token)
    return Machine.of(profile, speed=args.speed, pool_tokens=pool_tokens, max_running=args.max_running)


def scaled(args: argparse.Namespace, requests: Sequence[TraceRequest], end_s: float) -> Outcome:
    """The run with the autoscaler, which begins with the fewest replicas."""
    model = ModelDescription(
        name="m",
        model="m",
        replicas=ReplicaBounds(min=args.min, max=args.max),
        autoscaling=AutoscalingDescription(
            prefill_share=args.prefill_share, ttft_s=args.ttft, ttft_goal=args.goal, down_delay_s=args.down_delay
        ),
    )
    fleet = VirtualFleet(
        "autoscaler", machine(args), replicas=args.min, start_s=args.start, autoscaler=make_autoscaler(model)
    )
    return fleet.run(requests, end_s)


def static(args: argparse.Namespace, requests: Sequence[TraceRequest], end_s: float, replicas: int) -> Outcome:
    """The run of a fleet that stays as it is."""
    return VirtualFleet(f"static {replicas}", machine(args), replicas=replicas, start_s=args.start).run(requests, end_s)


def row_of(outcome: Outcome, target_s: float) -> Row:
    """The figures of a run."""
    return Row(
        fleet=outcome.name,
        replica_hours=outcome.replica_hours,
        attainment=outcome.attainment(target_s),
        ttft_p50_s=outcome.quantile_s(0.5),
        ttft_p90_s=outcome.quantile_s(0.9),
        ttft_p99_s=outcome.quantile_s(0.99),
        most=outcome.most,
        changes=outcome.changes,
        failed=outcome.failed,
    )


def line(row: Row) -> str:
    """One row for people."""
    return (
        f"{row.fleet:12s} {row.replica_hours:8.2f} replica-hours  {row.attainment:7.2%} in time  TTFT p50 "
        f"{row.ttft_p50_s:6.2f} p90 {row.ttft_p90_s:7.2f} p99 {row.ttft_p99_s:7.2f} s  at most {row.most} replicas, "
        f"{row.changes} changes"
    )


def verdict(ours: Row, others: Sequence[Row]) -> str:
    """The autoscaler against the cheapest static fleet that keeps the target at least as often."""
    as_good = [row for row in others if row.attainment >= ours.attainment]
    if not as_good:
        return "No static fleet that was tried keeps the target as often as the autoscaler."
    best = min(as_good, key=lambda row: row.replica_hours)
    saved = 1 - ours.replica_hours / best.replica_hours
    return (
        f"The cheapest static fleet as good ({best.fleet}, {best.attainment:.2%}) takes {best.replica_hours:.2f} "
        f"replica-hours: the autoscaler saves {saved:.0%}."
    )


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """All figures."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(Row.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(
            {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in asdict(row).items()}
            for row in rows
        )


def parse_args(argv: Sequence[str] | None, prog: str | None) -> argparse.Namespace:
    defaults = AutoscalingDescription()
    parser = Arguments(prog=prog, description=__doc__)
    parser.add_argument("--trace", type=Path, nargs="+", required=True, help="CSV files of Azure's; several are merged")
    parser.add_argument("--rate", type=int, default=1, help="so many times as many requests at the recorded pace")
    parser.add_argument(
        "--stretch", type=int, default=1, help="the recording so many times as long, at its rate; 25 is a day"
    )
    parser.add_argument("--profile", default="h200-llama3-8b", help="simulated device: a name or a file")
    parser.add_argument("--speed", type=float, default=0.1, help="of the device, against the profile")
    parser.add_argument("--max-running", type=int, default=512, help="running requests of a replica")
    parser.add_argument("--start", type=float, default=14.0, help="seconds from a replica's launch until it serves")
    parser.add_argument("--ttft", type=float, default=3.0, help="target, seconds")
    parser.add_argument("--goal", type=float, default=defaults.ttft_goal, help="share that should keep it")
    parser.add_argument("--prefill-share", type=float, default=defaults.prefill_share, help="the autoscaler's target")
    parser.add_argument("--down-delay", type=float, default=defaults.down_delay_s, help="seconds of low load")
    parser.add_argument("--min", type=int, default=1)
    parser.add_argument("--max", type=int, default=16)
    parser.add_argument("--static", type=int, nargs="*", help="sizes of static fleets; default: 1, 2, ... until good")
    parser.add_argument("--csv", type=Path, help="also write the table there")
    parser.add_argument("--plot", type=Path, help="also draw an SVG there")
    parser.add_argument("--json", action="store_true", help="also print the rows as JSON")
    args = parser.parse_args(argv)
    if min(args.rate, args.stretch, args.speed, args.ttft, args.max_running, args.min) <= 0 or args.min > args.max:
        raise UserError("--rate, --stretch, --speed, --ttft, --max-running and --min are above 0, --min at most --max.")
    return args


if __name__ == "__main__":
    run(main)
