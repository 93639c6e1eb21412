"""What the prefix index and a choice cost: memory under a flood of new prompts, look-up, choices among many replicas.

    python -m benchmarks.router_index [--prompts 1000000] [--cap-mib 64]

Memory is the process's resident memory over what it was before the index existed, read every 1 % of the flood.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Sequence

import psutil

from common.clock import MonotonicClock
from gateway.config import GatewaySettings
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity
from gateway.routing.factory import make_policy
from gateway.routing.policy import RouteRequest
from gateway.routing.prefix_index import BLOCK_BYTES, PrefixIndex, chain
from gateway.routing.router import Router

PROMPT_BYTES = 4096
WORKERS = 8


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=1_000_000, help="new prompts of 4,096 bytes in the flood")
    parser.add_argument("--cap-mib", type=int, default=64, help="bound on the index in the flood")
    parser.add_argument("--blocks", type=int, default=1_000_000, help="in the index of the look-up")
    parser.add_argument("--replicas", type=int, default=1000, help="in the choice")
    args = parser.parse_args(argv)
    flood(args.prompts, args.cap_mib * 2**20)
    look_up(args.blocks)
    for shared in (False, True):
        choose(args.replicas, shared=shared)
    return 0


def flood(prompts: int, cap_bytes: int) -> None:
    """New prompts only, to eight workers in turn."""
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    index = PrefixIndex(cap_bytes)
    readings: list[int] = []
    start_s = time.perf_counter()
    for number in range(prompts):
        text = number.to_bytes(8, "big") * (PROMPT_BYTES // 8)
        index.insert(number % WORKERS, chain(text), float(number))
        if number % max(prompts // 100, 1) == 0:
            readings.append(process.memory_info().rss - before)
    took_s = time.perf_counter() - start_s
    half = readings[len(readings) // 2 :]
    print(
        f"flood of {prompts:,} prompts of {PROMPT_BYTES:,} bytes, cap {cap_bytes / 2**20:.0f} MiB: "
        f"resident memory at most {max(readings) / cap_bytes:.2f} x the cap, in the second half "
        f"{min(half) / cap_bytes:.2f} to {max(half) / cap_bytes:.2f}; {len(index):,} blocks held, "
        f"{1e6 * took_s / prompts:.1f} us a prompt",
        flush=True,
    )


def look_up(blocks: int) -> None:
    """A prompt of 32,768 bytes in a large index."""
    index = PrefixIndex(2**32)
    length = 32_768
    prompts = blocks // (length // BLOCK_BYTES) + 1
    for number in range(prompts):
        index.insert(1, chain(number.to_bytes(8, "big") * (length // 8)), float(number))
    rng = random.Random(1)
    texts = [rng.randrange(prompts).to_bytes(8, "big") * (length // 8) for _ in range(500)]
    times_s = timed(lambda number: index.look_up(1, chain(texts[number])), len(texts))
    print(
        f"look-up of {length:,} bytes among {len(index):,} blocks ({index.bytes_used / 2**20:.0f} MiB), hashing "
        f"included: p50 {1e3 * quantile(times_s, 0.5):.3f} ms, p99 {1e3 * quantile(times_s, 0.99):.3f} ms",
        flush=True,
    )


def choose(replicas: int, *, shared: bool) -> None:
    """Choices of cache_aware among many replicas, with prompts of 8,192 bytes; `shared`: all have a common start."""
    registry = Registry()
    for number in range(replicas):
        url = f"http://replica-{number}:80"
        registry.add(url, source="static", identity=Identity(model="m", max_total_tokens=400_000))
        registry.ready(url)
    policy, _ = make_policy(GatewaySettings(), MonotonicClock(), random.Random(1))
    router = Router(registry, policy)
    rng = random.Random(2)
    start = b"s" * 4096 if shared else b""
    chats = [start + rng.randbytes(8192 - len(start)) for _ in range(4 * replicas)]
    for text in chats:
        choice = router.route(RouteRequest("m", text, len(text)))
        choice.worker.load.begin(choice.uncached_tokens, None).end()
    asked = [RouteRequest("m", text, len(text)) for text in rng.choices(chats, k=1000)]
    gc.collect()
    times_s = timed(lambda number: router.route(asked[number]), len(asked))
    print(
        f"choice among {replicas:,} replicas, {'a start shared by all' if shared else 'nothing shared'}: "
        f"p50 {1e3 * quantile(times_s, 0.5):.3f} ms, p99 {1e3 * quantile(times_s, 0.99):.3f} ms",
        flush=True,
    )


def timed(work: Callable[[int], object], count: int) -> list[float]:
    """CPU seconds of this thread for each call, in order of size: other processes do not count."""
    times_s = []
    for number in range(count):
        start_s = time.thread_time()
        work(number)
        times_s.append(time.thread_time() - start_s)
    return sorted(times_s)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values in order."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


if __name__ == "__main__":
    os.nice(5)
    sys.exit(main())
