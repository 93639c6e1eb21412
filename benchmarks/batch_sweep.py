"""`canopy batch` beside closed-loop clients of many concurrencies, on simulated replicas, with the same file.

    python -m benchmarks.batch_sweep --model-path MODEL

Caches are emptied before each run. Each concurrency is tried on the first --sweep-requests of the file, the best ones
on all of it. A replica's figures are of the steady part of a run: after a tenth of the answers, as long as there is
more to send.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Sequence
from itertools import islice
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.arguments import Arguments, run
from benchmarks.batch_runs import Fleet, Run, batch, closed_loop
from benchmarks.batch_work import ANSWER_TOKENS, write_work
from benchmarks.prediction import fleet, settled
from worker.engine.sim.profile import load_profile

_GATEWAY_PROBE_S = 2.0  # the gateway's default


def arguments() -> Arguments:
    """The flags."""
    parser = Arguments(prog="python -m benchmarks.batch_sweep", description=__doc__)
    parser.add_argument("--model-path", required=True, help="model whose tokenizer and chat template are used")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--concurrencies", type=int, nargs="*", default=[64, 128, 256, 512, 1024], help="of the sweep")
    parser.add_argument("--sweep-requests", type=int, default=4000, help="sent at each concurrency")
    parser.add_argument("--best", type=int, default=1, help="so many of the best run the whole file")
    parser.add_argument("--kills", type=int, default=0, help="one more run, killed so often at random moments")
    parser.add_argument("--pool-tokens", type=int, default=20_000, help="KV pool of a replica")
    parser.add_argument("--sim-speed", type=float, default=0.5, help="of the simulated accelerators")
    parser.add_argument("--schedule-policy", default="lpm")
    parser.add_argument("--schedule-conservativeness", default="1.0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help="keep files here; default: a folder that goes away")
    return parser


def line_of(run: Run) -> str:
    """One row of the table."""
    running, waiting, usage, least = run.means()
    return (
        f"{run.name:22} {run.requests:8} {run.took_s:8.1f} {run.output_tok_s:9.0f} {run.hit_rate:6.1%} "
        f"{running:8.1f} {waiting:8.1f} {usage:6.3f} {least:6.3f} {run.retractions:8} {run.cpu_s / run.took_s:6.2f}"
    )


HEAD = (
    f"{'run':22} {'requests':>8} {'seconds':>8} {'out tok/s':>9} {'hits':>6} {'running':>8} {'waiting':>8} "
    f"{'usage':>6} {'least':>6} {'retract.':>8} {'cores':>6}"
)


async def measure(url: str, args: argparse.Namespace, folder: Path) -> bool:
    """Print a line for each run. Returns whether every run answered each request once."""
    whole, part = folder / "work.jsonl", folder / "part.jsonl"
    write_work(whole, args.requests, args.seed)
    with whole.open("rb") as lines:
        part.write_bytes(b"".join(islice(lines, min(args.sweep_requests, args.requests))))
    await settled(url, "approximate", args.replicas)
    print(HEAD, flush=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        return await _measure(Fleet(url, session), args, whole, part)


async def _measure(through: Fleet, args: argparse.Namespace, whole: Path, part: Path) -> bool:
    out = whole.with_name("out.jsonl")
    runs: list[Run] = []

    async def shown(coming: Awaitable[Run]) -> Run:
        runs.append(await coming)
        print(line_of(runs[-1]), flush=True)
        return runs[-1]

    swept = [(await shown(closed_loop(through, part, out, n)), n) for n in args.concurrencies]
    swept.sort(key=lambda pair: -pair[0].output_tok_s)
    ours = await shown(batch(through, whole, out))
    best = [await shown(closed_loop(through, whole, out, n)) for _, n in swept[: args.best]]
    if best:
        ratio = ours.output_tok_s / max(run.output_tok_s for run in best)
        print(f"canopy batch / best closed loop of {args.requests} requests: {ratio:.3f}", flush=True)
    if args.kills:
        await shown(batch(through, whole, out, kills=args.kills, seed=args.seed))
    return all(run.answered == run.requests and not run.repeated for run in runs)


def write_profile(path: Path) -> None:
    """The simulated H200, with answers as long as those of fixed length."""
    profile = msgspec.structs.replace(load_profile("h200-llama3-8b"), answer_tokens=ANSWER_TOKENS)
    path.write_bytes(msgspec.json.encode(profile))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 if a request was lost or answered twice."""
    args = arguments().parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_profile(folder / "profile.json")
        flags = (
            *("--served-model-name", "demo", "--sim-profile", str(folder / "profile.json")),
            *("--sim-speed", str(args.sim_speed), "--max-total-tokens", str(args.pool_tokens)),
            *("--schedule-policy", args.schedule_policy),
            *("--schedule-conservativeness", args.schedule_conservativeness),
        )
        with fleet(args.model_path, "approximate", args.replicas, *flags, health_interval_s=_GATEWAY_PROBE_S) as url:
            return 0 if asyncio.run(measure(url, args, folder)) else 1


if __name__ == "__main__":
    run(main)
