"""The batch benchmark on a small fleet: real replicas on the simulated device, gateway, `canopy batch`, kills."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks import batch_sweep
from benchmarks.batch_runs import Run, Sample
from benchmarks.batch_work import GROUP, write_work
from tests.helpers.text_models import save_tiny_chat_model


def test_work_comes_from_its_seed_alone(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_work(tmp_path / name, 200, seed)
    first = (tmp_path / "a").read_bytes()
    assert first == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()
    requests = [orjson.loads(line) for line in first.splitlines()]
    assert {request["custom_id"] for request in requests} == {f"r{number}" for number in range(200)}
    assert {request["url"] for request in requests} == {"/v1/chat/completions", "/v1/completions", "/generate"}
    group = [text_of(request["body"]) for request in requests if int(request["custom_id"][1:]) < GROUP]
    assert len(os.path.commonprefix(group)) > 500
    assert len(set(group)) == GROUP


def text_of(body: dict[str, Any]) -> str:
    """The prompt of any kind of request."""
    return str(body.get("prompt") or body.get("text") or body["messages"][0]["content"])


def test_the_steady_part_has_no_start_and_no_tail() -> None:
    run = Run("x", requests=1000)
    run.samples = [Sample(n, (80, 80), (10, 10), (0.9, 0.8)) for n in (0, 99, 100, 809, 810, 990)]
    assert [sample.answered for sample in run.steady] == [100, 809]
    assert run.means() == pytest.approx((80, 10, 0.85, 0.8))


@pytest.mark.long
def test_killed_ten_times_on_a_real_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 says that each run has each answer once."""
    model = save_tiny_chat_model(tmp_path / "model")
    argv = ["--model-path", str(model), "--replicas", "2", "--requests", "2000", "--sweep-requests", "400"]
    argv += ["--concurrencies", "64", "--best", "0", "--kills", "10", "--sim-speed", "1", "--pool-tokens", "60000"]
    assert batch_sweep.main([*argv, "--work", str(tmp_path / "work")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^canopy batch, 10 kills +2000 ", shown, re.MULTILINE)
