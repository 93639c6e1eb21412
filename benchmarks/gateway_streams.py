"""Many streams at once through one gateway process, in waves: nothing may be lost, and its memory must come back.

    python -m benchmarks.gateway_streams [--streams 2000] [--chunks 200] [--waves 3]

Simulated workers, gateway and client are a process each. After each wave the gateway is left alone until the kept
connections to the workers are closed and unused memory is given back; then its resident memory is read. Exits with 1 if
an answer was not whole, or if a later wave left more memory taken than the first.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time

import psutil
import uvloop

from benchmarks.gateway_load import run
from benchmarks.gateway_path import cpu_s, missing, router, workers
from common.process import raise_file_limit

_SETTLE_S = 9.0  # longer than the gateway keeps idle connections to workers, and then waits to give memory back
_MAY_GROW_BYTES = 3 * 2**20  # from the first wave's end to the last one's: the index learns, and heaps are not exact


def main() -> int:
    args = parse_args()
    raise_file_limit()
    bad = 0
    with workers(args) as urls, router("canopy", urls) as (process, port):
        print(f"start: {state(process)}", flush=True)
        taken_bytes = []
        for number in range(args.waves):
            bad += wave(number + 1, process, port, args)
            taken_bytes.append(process.memory_info().rss)
    grown = taken_bytes[-1] - taken_bytes[0] > _MAY_GROW_BYTES
    if grown:
        print("memory grows with each wave")
    return int(bad > 0 or grown)


def wave(number: int, process: psutil.Process, port: int, args: argparse.Namespace) -> int:
    """All streams once; how many answers or chunks were not as they should be."""
    before_s = cpu_s(process)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(run(port, connections=args.streams, requests=args.streams, stream=True))
    used_s = cpu_s(process) - before_s
    at_end = state(process)
    time.sleep(_SETTLE_S)
    bad = outcome.bad + missing(outcome, args)
    ttfts_s = sorted(outcome.ttfts_s)
    print(
        f"wave {number}: {outcome.chunks} chunks in {outcome.wall_s:.1f} s, bad {bad}, "
        f"{1e6 * used_s / max(outcome.chunks, 1):.1f} us/chunk, TTFT p50 {statistics.median(ttfts_s):.2f} "
        f"p99 {ttfts_s[int(0.99 * len(ttfts_s))]:.2f} s; at its end {at_end}; left alone {state(process)}",
        flush=True,
    )
    return bad


def state(process: psutil.Process) -> str:
    """Memory and open files."""
    return f"{process.memory_info().rss / 2**20:.0f} MiB, {process.num_fds()} files"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--interval-s", type=float, default=0.15, help="between two chunks of a stream")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
