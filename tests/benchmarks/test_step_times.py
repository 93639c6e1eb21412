"""Measured steps of a real runner, from the program to a profile that the simulated accelerator loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import step_times
from tests.helpers.tiny_models import build_tiny
from worker.engine.sim import fit
from worker.engine.sim.measured import read_measured
from worker.engine.sim.profile import load_profile


def test_from_steps_to_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build_tiny("llama", tmp_path / "model")
    flags = ["--model-path", str(model.path), "--device", "cpu", "--cpu-threads", "1"]
    flags += ["--max-total-tokens", "5000", "--page-size", "16"]
    out = tmp_path / "steps.jsonl"
    assert step_times.run(out, flags, repeats=2, max_pool_tokens=5000) == 0
    device, steps = read_measured(out)
    assert device.model == "model, float32" and device.page_size == 16
    assert {step.kind for step in steps} >= {"single", "decode", "prefill"}
    assert all(len(step.times_s) == 2 and min(step.times_s) > 0 for step in steps)
    assert not any(step.shape.graph for step in steps)
    assert f"{len(steps)}/{len(steps)}" in capsys.readouterr().out
    profile = tmp_path / "profile.json"
    assert fit.main([str(out), "--out", str(profile)]) == 0
    assert load_profile(str(profile)).memory.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
