"""Routers beside each other on one workload: hit rate, time to first token, spread, CPU, memory.

    canopy bench router [--workload sessions] [--routers canopy sglang-router smg] [--cache-tokens 60000 15000 8000]
    canopy bench router --workload TRACE.jsonl.gz --block-tokens 512 --workers 4 --cache-blocks 2000 --speed-up 20
    canopy bench router --virtual ...                (our policies only, in virtual time, with a load-bounded oracle)

Live: simulated workers, router and clients are processes of this machine, so compare within one run only; routers take
turns. Router names: canopy, canopy:POLICY, sglang-router, smg, or NAME=COMMAND with {urls}, {port} and {metrics_port}.
Workers prefill 20,000 tokens/s, one prompt after the other, and keep what they can in an LRU cache. The bounds come
from virtual time: a cache without end that sees every request, and an oracle that knows every cache and bounds each
worker's prefill to 1.1 times the mean.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import uvloop

from benchmarks import gateway_path, routers
from benchmarks.router_client import Experience, replay
from benchmarks.router_model import WorkerModel
from benchmarks.router_virtual import FirstOwnerTree, LoadBoundedOracle, Result, Simulation
from benchmarks.router_workloads import Workload, synthetic, trace
from common.clock import Clock
from common.errors import UserError
from gateway.config import GatewaySettings
from gateway.routing.factory import make_policy
from gateway.routing.policy import Policy

BOUNDS = ("oracle", "first_owner")  # beside our policies in virtual time
PREDICTING = ("cache_aware", "longest_prefix")


@dataclass(frozen=True)
class Row:
    """One router on one workload. Spreads: the most of a worker over the mean."""

    hit_rate: float
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    requests_per_s: float
    request_spread: float
    prefill_spread: float
    cpu_us: float  # of the router for a request, with its chunks; 0 in virtual time
    rss_mib: float
    failed: int


class Fleet:
    """The process of the simulated workers."""

    def __init__(self, process: subprocess.Popen[str], urls: list[str]) -> None:
        self._process = process
        self.urls = urls

    def ask(self, command: str) -> str:
        """Send a command, return the line it prints."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    args = parse_args(argv, prog)
    workload = the_workload(args)
    print(f"{platform.machine()}, {psutil.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    print(f"{workload.name}: {len(workload.sessions)} sessions, {workload.requests} requests", flush=True)
    if not args.virtual:
        for name in routers.PEERS:
            if name in args.routers and args.install:
                routers.install(name)
    for cache_blocks in cache_sizes(args, workload):
        size = f"{cache_blocks * workload.block_tokens} tokens" if cache_blocks else "endless"
        print(f"\n{args.workers} workers, cache of each: {size}", flush=True)
        rows = virtual(args, workload, cache_blocks) if args.virtual else live(args, workload, cache_blocks)
        if args.json:
            print(json.dumps({name: [asdict(row) for row in found] for name, found in rows.items()}))
    if args.data_path:
        data_path(args)
    return 0


# --- live -----------------------------------------------------------------------------------------------------------


def live(args: argparse.Namespace, workload: Workload, cache_blocks: int | None) -> dict[str, list[Row]]:
    """Every router in turn, `rounds` times; prints each row and the medians with their ratio to the better peer."""
    bound = simulate("oracle", args, workload, cache_blocks)
    print(f"bounds: endless cache {bound.bound:.3f}, load-bounded oracle {bound.hit_rate:.3f}", flush=True)
    chosen = [routers.named(text) for text in args.routers]
    rows: dict[str, list[Row]] = {router.name: [] for router in chosen}
    with fleet(args, workload, cache_blocks) as workers:
        for number in range(args.rounds):
            for router in chosen[number % len(chosen) :] + chosen[: number % len(chosen)]:
                rows[router.name].append(measure(router, workers, workload, args.speed_up))
                print(f"round {number + 1}  {line(router.name, rows[router.name][-1])}", flush=True)
    medians = {name: median(found) for name, found in rows.items()}
    for name, row in medians.items():
        print(f"median   {line(name, row)}")
    compare(medians)
    return rows


def measure(router: routers.Router, workers: Fleet, workload: Workload, speed_up: float) -> Row:
    """One router, from its start to its end, over workers with empty caches."""
    workers.ask("reset")
    with routers.running(router, workers.urls) as (process, port):
        before_s = routers.cpu_s(process)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            seen = runner.run(replay(workload, port, speed_up=speed_up))
        used_s, rss_mib = routers.cpu_s(process) - before_s, routers.rss_mib(process)
    return row_of(seen, json.loads(workers.ask("stats")), used_s, rss_mib, workload.requests)


def row_of(seen: Experience, stats: list[dict[str, int]], used_s: float, rss_mib: float, requests: int) -> Row:
    """The figures of one replay."""
    prompt_tokens = sum(worker["prompt"] for worker in stats)
    ttft_ms = sorted(1e3 * ttft_s for ttft_s in seen.ttft_s) or [float("nan")]
    return Row(
        hit_rate=sum(worker["cached"] for worker in stats) / max(prompt_tokens, 1),
        ttft_mean_ms=statistics.fmean(ttft_ms),
        ttft_p50_ms=quantile(ttft_ms, 0.5),
        ttft_p90_ms=quantile(ttft_ms, 0.9),
        ttft_p99_ms=quantile(ttft_ms, 0.99),
        requests_per_s=len(seen.ttft_s) / seen.wall_s,
        request_spread=spread([worker["requests"] for worker in stats]),
        prefill_spread=spread([worker["prompt"] - worker["cached"] for worker in stats]),
        cpu_us=1e6 * used_s / requests,
        rss_mib=rss_mib,
        failed=seen.failed,
    )


@contextlib.contextmanager
def fleet(args: argparse.Namespace, workload: Workload, cache_blocks: int | None) -> Iterator[Fleet]:
    """Simulated workers, ended on the way out."""
    command = [sys.executable, "-m", "benchmarks.router_workers", "--count", str(args.workers)]
    command += ["--cache-blocks", str(cache_blocks or 0), "--speed-up", str(args.speed_up)]
    command += ["--block-chars", str(workload.block_chars), "--block-tokens", str(workload.block_tokens)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=routers.ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield Fleet(process, [process.stdout.readline().strip() for _ in range(args.workers)])
        process.terminate()


def compare(medians: dict[str, Row]) -> None:
    """Ours over the better peer, figure by figure."""
    peers = [row for name, row in medians.items() if name in routers.PEERS]
    if not peers or "canopy" not in medians:
        return
    ours = asdict(medians["canopy"])
    for key in ("hit_rate", "ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "cpu_us", "rss_mib"):
        best = (max if key == "hit_rate" else min)(asdict(row)[key] for row in peers)
        print(f"canopy over the better peer: {key} {ours[key] / best:.2f}x")


# --- virtual time ---------------------------------------------------------------------------------------------------


def virtual(args: argparse.Namespace, workload: Workload, cache_blocks: int | None) -> dict[str, list[Row]]:
    """Our policies and the bounds, without processes."""
    rows: dict[str, list[Row]] = {}
    ours = [text.partition(":")[2] or "cache_aware" for text in args.routers if text.partition(":")[0] == "canopy"]
    for name in (*BOUNDS, *ours):
        result = simulate(name, args, workload, cache_blocks)
        if not rows:
            print(f"bounds: endless cache {result.bound:.3f}, load-bounded oracle {result.hit_rate:.3f}", flush=True)
        rows[name] = [virtual_row(result)]
        error = f", prediction error {result.error:.1%}" if name in PREDICTING else ""
        print(line(name, rows[name][0]) + error, flush=True)
    return rows


def simulate(name: str, args: argparse.Namespace, workload: Workload, cache_blocks: int | None) -> Result:
    """One run of a policy, or of a bound."""

    def make(clock: Clock, simulation: Simulation) -> Policy:
        if name == "oracle":
            return LoadBoundedOracle(simulation)
        if name == "first_owner":
            return FirstOwnerTree()
        return make_policy(GatewaySettings(policy=name), clock, random.Random(args.seed))[0]

    models = [
        WorkerModel(cache_blocks, block_chars=workload.block_chars, block_tokens=workload.block_tokens)
        for _ in range(args.workers)
    ]
    return Simulation(make, models).run(workload)


def virtual_row(result: Result) -> Row:
    """The figures of one run in virtual time."""
    ttft_ms = sorted(1e3 * ttft_s for ttft_s in result.ttft_s)
    return Row(
        hit_rate=result.hit_rate,
        ttft_mean_ms=statistics.fmean(ttft_ms),
        ttft_p50_ms=quantile(ttft_ms, 0.5),
        ttft_p90_ms=quantile(ttft_ms, 0.9),
        ttft_p99_ms=quantile(ttft_ms, 0.99),
        requests_per_s=len(ttft_ms) / result.end_s,
        request_spread=result.spread,
        prefill_spread=result.work_spread,
        cpu_us=0.0,
        rss_mib=0.0,
        failed=0,
    )


# --- figures --------------------------------------------------------------------------------------------------------


def data_path(args: argparse.Namespace) -> None:
    """CPU of each router for a plain request and for a streamed chunk, as benchmarks/gateway_path.py measures it."""
    phases = argparse.Namespace(solo=300, requests=5000, streams=100, chunks=100, interval_s=0.02)
    print("\ndata path")
    for router in map(routers.named, args.routers):
        with gateway_path.workers(phases) as urls, routers.running(router, urls) as (process, port):
            gateway_path.warm_up(port)
            print(f"{router.name:20s} {gateway_path.line(gateway_path.measure(process, port, phases))}", flush=True)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values in order."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def spread(amounts: Sequence[int]) -> float:
    """The most over the mean."""
    return max(amounts) * len(amounts) / max(sum(amounts), 1)


def median(rows: Sequence[Row]) -> Row:
    """Figure by figure."""
    return Row(**{key: statistics.median(asdict(row)[key] for row in rows) for key in Row.__dataclass_fields__})


def line(name: str, row: Row) -> str:
    """One row for people."""
    cpu = f", {row.cpu_us:.0f} us CPU a request, {row.rss_mib:.0f} MiB, {row.failed:g} failed" if row.cpu_us else ""
    return (
        f"{name:20s} hit {row.hit_rate:.3f}, TTFT mean {row.ttft_mean_ms:.1f} p50 {row.ttft_p50_ms:.1f} "
        f"p90 {row.ttft_p90_ms:.1f} p99 {row.ttft_p99_ms:.1f} ms, {row.requests_per_s:.1f} req/s, "
        f"spread {row.request_spread:.2f} requests {row.prefill_spread:.2f} prefill{cpu}"
    )


def the_workload(args: argparse.Namespace) -> Workload:
    """What --workload names. Raises UserError."""
    if args.workload == "sessions":
        return synthetic(args.seed, duration_s=args.duration)
    return trace(Path(args.workload), block_tokens=args.block_tokens, limit=args.limit)


def cache_sizes(args: argparse.Namespace, workload: Workload) -> list[int | None]:
    """In blocks; None = endless."""
    if args.cache_blocks is not None:
        return [blocks or None for blocks in args.cache_blocks]
    return [tokens // workload.block_tokens or None for tokens in args.cache_tokens]


def parse_args(argv: Sequence[str] | None, prog: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", default="sessions", help="sessions, or the path of a trace")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duration", type=float, default=40, help="seconds in which sessions start")
    parser.add_argument("--block-tokens", type=int, default=512, help="tokens of a trace's block")
    parser.add_argument("--limit", type=int, help="first requests of a trace only")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--cache-tokens", type=int, nargs="+", default=[60_000, 15_000, 8_000], help="0 = endless")
    parser.add_argument("--cache-blocks", type=int, nargs="+", help="instead of --cache-tokens; 0 = endless")
    parser.add_argument("--routers", nargs="+", default=["canopy", *routers.PEERS])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--speed-up", type=float, default=1.0, help="workers, sessions and trace so much faster")
    parser.add_argument("--virtual", action="store_true", help="our policies in virtual time, without processes")
    parser.add_argument("--data-path", action="store_true", help="also CPU a plain request and a chunk")
    parser.add_argument("--install", action="store_true", help="install the peers first")
    parser.add_argument("--json", action="store_true", help="also every row as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"benchmarks.router: {error}")
