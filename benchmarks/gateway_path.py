"""What the gateway's data path costs: CPU of the router process per request and per streamed chunk.

    python -m benchmarks.gateway_path [--peer] [--rounds 10]

Phases: one request at a time (p50); 32 keep-alive connections with 450-byte bodies; 200 streams of 100 events. Workers
are simulated, and share the machine with router and client, so compare within one run only. All routers are up for the
whole run, in front of the same workers, and take short turns: where a machine changes its speed, or puts processes on
other cores, it does so to each of them. The printed ratios are medians over the rounds' ratios. All choose by
cache_aware but canopy-rr, which goes round robin and so shows what the choice costs. `--peer` adds sglang-router 0.3.2
with its request log off, from a virtual environment of its own under .cache/ (made on first use).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import platform
import socket
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import uvloop

from benchmarks.gateway_load import Outcome, run

ROOT = Path(__file__).parents[1]
PEER = "sglang-router"
PEER_VERSION = "0.3.2"
START_TIMEOUT_S = 60.0

Router = tuple[psutil.Process, int]  # and its port


@dataclass(frozen=True)
class Figures:
    """One router in one round."""

    solo_p50_ms: float
    request_cpu_us: float
    requests_per_s: float
    chunk_cpu_us: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    rss_mib: float
    bad: int


FIELDS = tuple(Figures.__dataclass_fields__)


def main() -> int:
    args = parse_args()
    names = ["canopy", "canopy-rr", "canopy-asgi", *([PEER] if args.peer else [])]
    if args.peer:
        install_peer()
    print(f"{platform.machine()}, {psutil.cpu_count()} cores, Python {platform.python_version()}", flush=True)
    with contextlib.ExitStack() as stack:
        urls = stack.enter_context(workers(args))
        routers = {name: stack.enter_context(router(name, urls)) for name in names}
        for _, port in routers.values():
            warm_up(port)
        rounds = [one_round(number, routers, args) for number in range(args.rounds)]
    report(names, rounds)
    return 0


def one_round(number: int, routers: dict[str, Router], args: argparse.Namespace) -> dict[str, Figures]:
    """A turn for each, another one first each time."""
    names = list(routers)
    figures: dict[str, Figures] = {}
    for name in names[number % len(names) :] + names[: number % len(names)]:
        figures[name] = measure(*routers[name], args)
        print(f"round {number + 1} {name:14s} {line(figures[name])}", flush=True)
    return figures


def warm_up(port: int) -> None:
    """Connections to the workers, and the interpreter's specialised code."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(port, connections=32, requests=2000, stream=False))


def measure(process: psutil.Process, port: int, args: argparse.Namespace) -> Figures:
    """All phases against one running router."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        solo = runner.run(run(port, connections=1, requests=args.solo, stream=False))
        before_s = cpu_s(process)
        many = runner.run(run(port, connections=32, requests=args.requests, stream=False))
        between_s = cpu_s(process)
        streams = runner.run(run(port, connections=args.streams, requests=args.streams, stream=True))
        after_s = cpu_s(process)
    ttfts_ms = sorted(1e3 * ttft for ttft in streams.ttfts_s)
    return Figures(
        solo_p50_ms=1e3 * statistics.median(solo.latencies_s),
        request_cpu_us=1e6 * (between_s - before_s) / args.requests,
        requests_per_s=args.requests / many.wall_s,
        chunk_cpu_us=1e6 * (after_s - between_s) / max(streams.chunks, 1),
        ttft_p50_ms=statistics.median(ttfts_ms),
        ttft_p99_ms=ttfts_ms[int(0.99 * len(ttfts_ms))],
        rss_mib=process.memory_info().rss / 2**20,
        bad=solo.bad + many.bad + streams.bad + missing(streams, args),
    )


def missing(streams: Outcome, args: argparse.Namespace) -> int:
    """Chunks that did not come."""
    return int(args.streams * args.chunks - streams.chunks)


def cpu_s(process: psutil.Process) -> float:
    """User and system time of all its threads."""
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.contextmanager
def workers(args: argparse.Namespace) -> Iterator[list[str]]:
    """Four simulated workers; their URLs."""
    command = [sys.executable, "-m", "benchmarks.gateway_workers", "--chunks", str(args.chunks)]
    with started([*command, "--interval-s", str(args.interval_s)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield [process.stdout.readline().decode().strip() for _ in range(4)]


@contextlib.contextmanager
def router(name: str, urls: Sequence[str]) -> Iterator[Router]:
    """A router in front of the workers, ready: its process and port."""
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        port, metrics_port = first.getsockname()[1], second.getsockname()[1]
    policy = "round_robin" if name == "canopy-rr" else "cache_aware"
    common = ["--worker-urls", *urls, "--host", "127.0.0.1", "--port", str(port), "--policy", policy]
    if name == PEER:
        # At its default log level it writes a line per request.
        command = [str(peer_python()), "-m", "sglang_router.launch_router", *common, "--log-level", "warn"]
        command += ["--prometheus-port", str(metrics_port)]
    else:
        command = [sys.executable, "-m", "gateway", *common, "--log-level", "warning"]
        command += ["--no-fast-path"] if name == "canopy-asgi" else []
    with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_ready(f"http://127.0.0.1:{port}/readiness", process)
        time.sleep(1.0)
        yield psutil.Process(process.pid), port


@contextlib.contextmanager
def started(command: Sequence[str], **pipes: int) -> Iterator[subprocess.Popen[bytes]]:
    """A child process, ended on the way out."""
    process = subprocess.Popen(command, cwd=ROOT, **pipes)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Poll until 200. Raises RuntimeError if the router ends or the time is over."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=1, trust_env=False).status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} did not become ready")


def peer_python() -> Path:
    """The interpreter that has the peer."""
    return ROOT / ".cache" / "bench" / PEER / "bin" / "python"


def install_peer() -> None:
    """Make the peer's virtual environment, once."""
    if not peer_python().exists():
        venv.create(peer_python().parents[1], with_pip=True)
    subprocess.run([peer_python(), "-m", "pip", "install", "--quiet", f"{PEER}=={PEER_VERSION}"], check=True)


def report(names: Sequence[str], rounds: Sequence[dict[str, Figures]]) -> None:
    """Medians, and the ratios to the peer within each round."""
    for name in names:
        medians = Figures(*(statistics.median(getattr(figures[name], key) for figures in rounds) for key in FIELDS))
        print(f"median  {name:14s} {line(medians)}")
    if PEER not in names:
        return
    for name in names[:-1]:
        ratios = {
            key: statistics.median(getattr(figures[name], key) / getattr(figures[PEER], key) for figures in rounds)
            for key in ("request_cpu_us", "chunk_cpu_us", "solo_p50_ms", "ttft_p99_ms")
        }
        print(f"ratio   {name:14s} " + "  ".join(f"{key} {ratio:.2f}x" for key, ratio in ratios.items()))


def line(figures: Figures) -> str:
    """One router's figures for people."""
    return (
        f"solo p50 {figures.solo_p50_ms:.2f} ms, {figures.request_cpu_us:.0f} us/request, "
        f"{figures.requests_per_s:.0f} req/s, {figures.chunk_cpu_us:.1f} us/chunk, "
        f"TTFT p50 {figures.ttft_p50_ms:.1f} p99 {figures.ttft_p99_ms:.1f} ms, {figures.rss_mib:.0f} MiB, "
        f"bad {figures.bad:g}"
    )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="store_true", help=f"beside {PEER} {PEER_VERSION}")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=4_000)
    parser.add_argument("--solo", type=int, default=300)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--interval-s", type=float, default=0.02, help="between two chunks of a stream")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
