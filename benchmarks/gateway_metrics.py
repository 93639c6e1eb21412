"""What metrics cost the gateway, of its CPU a request and a streamed chunk: `python -m benchmarks.gateway_metrics`.

Two ways. The statements that count, timed by themselves, over the CPU that a gateway process takes for the same request
in this run. And that gateway beside one whose counting does nothing, in turns on one machine: the difference is small
and the noise is not, so it is a check of the first figure, not a better one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import psutil
import uvloop
from prometheus_client import CollectorRegistry

from benchmarks.gateway_load import run
from benchmarks.gateway_path import cpu_s, started, wait_ready, workers
from common.process import bind_port
from gateway.metrics import Metrics

_CHAT, _MODEL = "/v1/chat/completions", "simulated"
_SERVE = "serve-without-metrics"


class NoMetrics(Metrics):
    """Counts nothing; what the data path reads is there."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._nowhere = _Nowhere()
        self.choice_times_s = self._nowhere  # type: ignore[assignment]

    def answered(self, endpoint: str, model: str, status: int, duration_s: float) -> None:
        pass

    def first_token(self, endpoint: str, model: str, ttft_s: float) -> None:
        pass

    def gaps_of(self, model: str) -> list[float]:
        return self._nowhere

    def fold(self) -> None:
        pass

    def tokens(self, model: str, prompt: int, cached: int, completion: int) -> None:
        pass

    def prediction(self, predicted_cached: int, actual_cached: int) -> None:
        pass


class _Nowhere(list[float]):
    """A list and a histogram that keep nothing."""

    def append(self, value: float) -> None:
        pass

    def observe(self, value: float, count: int = 1) -> None:
        pass


def request_statements(metrics: Metrics) -> None:
    """All that one answered request counts."""
    metrics.inflight += 1
    begin_s = time.monotonic()
    metrics.choices["cached"] += 1
    metrics.choice_times_s.observe(time.monotonic() - begin_s)
    metrics.tokens(_MODEL, 90, 0, 20)
    metrics.prediction(0, 0)
    metrics.inflight -= 1
    metrics.answered(_CHAT, _MODEL, 200, 0.01)


def chunk_statements(metrics: Metrics, chunks: int = 1000) -> None:
    """All that so many chunks of a stream count, and the sweep that folds them."""
    gaps_s, piece_s = metrics.gaps_of(_MODEL), time.monotonic()
    for _ in range(chunks):
        now_s = time.monotonic()
        gaps_s.append(now_s - piece_s)
        piece_s = now_s
    metrics.fold()


def best_us(statements: Callable[[Metrics], None], times: int) -> float:
    """The least CPU time of one call, of `times` in a row."""
    metrics, spent_s = Metrics(CollectorRegistry()), []
    for _ in range(20):
        start_s = time.thread_time()
        for _ in range(times):
            statements(metrics)
        spent_s.append(time.thread_time() - start_s)
    return 1e6 * min(spent_s) / times


@contextlib.contextmanager
def gateway(urls: Sequence[str], *, counting: bool) -> Iterator[tuple[psutil.Process, int]]:
    """A gateway in front of the workers: its process and port."""
    with bind_port("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    module = ["-m", "gateway"] if counting else ["-m", "benchmarks.gateway_metrics", _SERVE]
    command = [sys.executable, *module, "--worker-urls", *urls, "--host", "127.0.0.1", "--port", str(port)]
    with started([*command, "--log-level", "warning"], stdout=subprocess.DEVNULL) as process:
        wait_ready(f"http://127.0.0.1:{port}/readiness", process)
        yield psutil.Process(process.pid), port


def measure(process: psutil.Process, port: int, args: argparse.Namespace) -> tuple[float, float]:
    """Microseconds of CPU (a request, a chunk)."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(port, connections=32, requests=500, stream=False))  # warm-up
        before_s = cpu_s(process)
        runner.run(run(port, connections=32, requests=args.requests, stream=False))
        between_s = cpu_s(process)
        streams = runner.run(run(port, connections=args.streams, requests=args.streams, stream=True))
        after_s = cpu_s(process)
    return 1e6 * (between_s - before_s) / args.requests, 1e6 * (after_s - between_s) / streams.chunks


def main() -> int:
    if sys.argv[1:2] == [_SERVE]:
        return serve_without_metrics(sys.argv[2:])
    args = parse_args()
    with workers(args) as urls, gateway(urls, counting=True) as with_, gateway(urls, counting=False) as without:
        rounds = []
        for number in range(args.rounds):
            order = (with_, without) if number % 2 else (without, with_)
            figures = {pair[1]: measure(*pair, args) for pair in order}
            rounds.append((figures[with_[1]], figures[without[1]]))
            print(f"round {number + 1}: with {line(rounds[-1][0])}, without {line(rounds[-1][1])}", flush=True)
    statements_us = best_us(request_statements, 1000), best_us(chunk_statements, 10) / 1000
    for place, name in enumerate(("request", "chunk")):
        all_us = statistics.median(first[place] for first, _ in rounds)
        ratio = statistics.median(first[place] / second[place] for first, second in rounds)
        print(
            f"{name}: metrics {statements_us[place]:.2f} us of {all_us:.1f} us = "
            f"{100 * statements_us[place] / all_us:.1f} %; with / without {ratio:.3f}"
        )
    return 0


def serve_without_metrics(argv: Sequence[str]) -> int:
    """The gateway's own command, with counting replaced."""
    import gateway.app
    from gateway.__main__ import main as run_gateway

    gateway.app.Metrics = NoMetrics  # type: ignore[misc]
    return run_gateway(list(argv))


def line(figures: tuple[float, float]) -> str:
    return f"{figures[0]:.0f} us/request {figures[1]:.2f} us/chunk"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--interval-s", type=float, default=0.02, help="between two chunks of a stream")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
