"""The autoscaler's benchmark: its light replica against the real scheduler, its traces, a whole run."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks import autoscale
from benchmarks.autoscale_replica import Job, LightReplica, Machine
from benchmarks.traces import TraceRequest
from tests.helpers.sim_bench import SimBench, h200, random_prompt

SPEED = 0.1


def poisson(rate_per_s: float, number: int) -> list[TraceRequest]:
    """Requests with lengths as spread as recorded ones."""
    rng, now_s, found = random.Random(3), 0.0, []
    for _ in range(number):
        now_s += rng.expovariate(rate_per_s)
        found.append(TraceRequest(now_s, int(rng.expovariate(1 / 1155)) + 10, int(rng.expovariate(1 / 211)) + 1))
    return found


def ttft_of_the_scheduler(requests: list[TraceRequest]) -> tuple[list[float], SimBench]:
    bench = SimBench(profile=h200(answer_tokens=None), sim_speed=SPEED)
    coming, served = list(requests), []
    while coming or not bench.scheduler.idle:
        while coming and coming[0].arrival_s <= bench.clock.now_s():
            request = coming.pop(0)
            prompt = random_prompt(len(coming), request.prompt_tokens)
            served.append(bench.submit(prompt, request.output_tokens, ignore_eos=True))
            served[-1].arrival_s = request.arrival_s
        if not bench.scheduler.step() and coming:
            bench.clock.wait_until(coming[0].arrival_s)
    return [one.first_token_s for one in served], bench


def ttft_of_the_light_replica(requests: list[TraceRequest], pool_tokens: int) -> tuple[list[float], LightReplica]:
    machine = Machine.of(h200(), speed=SPEED, pool_tokens=pool_tokens, max_running=512)
    replica, ttft_s = LightReplica(machine, "a"), []
    for request in requests:
        while replica.due_s is not None and replica.due_s <= request.arrival_s:
            replica.advance()
        replica.submit(
            Job(
                request.arrival_s,
                request.prompt_tokens,
                request.output_tokens,
                lambda now_s, arrival_s=request.arrival_s: ttft_s.append(now_s - arrival_s),  # type: ignore[misc]
                lambda now_s: None,
            ),
            request.arrival_s,
        )
    while replica.due_s is not None:
        replica.advance()
    return ttft_s, replica


@pytest.mark.parametrize("rate_per_s", [1.0, 2.5])
def test_the_light_replica_is_as_fast_as_the_real_scheduler(rate_per_s: float) -> None:
    requests = poisson(rate_per_s, 60)
    real_s, bench = ttft_of_the_scheduler(requests)
    light_s, replica = ttft_of_the_light_replica(requests, bench.load.max_total_num_tokens)
    assert np.mean(light_s) == pytest.approx(np.mean(real_s), rel=0.03)
    assert np.quantile(light_s, 0.9) == pytest.approx(np.quantile(real_s, 0.9), rel=0.05)
    report, told = bench.load, replica.load()
    assert told.prefill_s_total == pytest.approx(report.prefill_s_total, rel=0.03)
    assert told.prompt_tokens_total == report.prompt_tokens_total
    assert (told.running_requests, told.waiting_tokens, told.used_tokens, told.ttft_counts[-1]) == (0, 0, 0, 60)


def write_trace(path: Path, arrivals_s: list[float]) -> Path:
    """A file as Azure writes them, all requests alike."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
        for at_s in arrivals_s:
            minutes, seconds = divmod(at_s, 60)
            writer.writerow([f"2023-11-16 18:{int(minutes):02d}:{seconds:010.7f}", 1500, 20])
    return path


def hump() -> list[float]:
    """A quarter of an hour with a busy middle: 0.5 to 6.5 requests a second."""
    rng, now_s, found = random.Random(1), 0.0, []
    while now_s < 901:
        found.append(now_s)
        now_s += rng.expovariate(0.5 + 6 * math.sin(math.pi * now_s / 901) ** 4)
    return found


def test_the_autoscaler_costs_less_than_the_static_fleet_that_is_as_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    trace = write_trace(tmp_path / "hump.csv", hump())
    table, picture = tmp_path / "out.csv", tmp_path / "out.svg"
    args = ["--trace", str(trace), "--start", "5", "--down-delay", "60", "--csv", str(table), "--plot", str(picture)]
    assert autoscale.main(args) == 0
    assert "the autoscaler saves" in capsys.readouterr().out
    with table.open() as file:
        ours, *static = list(csv.DictReader(file))
    as_good = [float(row["replica_hours"]) for row in static if float(row["attainment"]) >= float(ours["attainment"])]
    assert float(ours["replica_hours"]) < 0.8 * min(as_good)
    assert float(ours["attainment"]) > 0.95
    assert {row["failed"] for row in [ours, *static]} == {"0"}
    assert picture.read_text().startswith("<?xml")
