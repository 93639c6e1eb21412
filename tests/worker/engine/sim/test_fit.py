"""The fitting tool finds the costs that made the times, through noise and the host's floor."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.step_cases import BatchBuilder, cases
from common.errors import UserError
from tests.helpers.fake_runner import runner_info
from tests.helpers.sim_bench import h200
from worker.engine.page_table import PageTable
from worker.engine.sim import fit
from worker.engine.sim.measured import MeasuredDevice, MeasuredStep
from worker.engine.sim.profile import load_profile
from worker.engine.sim.shape import ShapeReader
from worker.engine.sim.step_time import StepCosts, step_time_s

INFO = runner_info(num_pages=20_000, page_size=16, max_rows=512, context_len=40_960, vocab_size=1000)
DEVICE = MeasuredDevice(
    device="Abacus 9000",
    model="a model",
    source="counting beads",
    dtype="bfloat16",
    page_size=16,
    memory=h200().memory,
)


@pytest.fixture(scope="module")
def shapes() -> list[MeasuredStep]:
    """What benchmarks/step_times.py measures, without times."""
    table = PageTable(max_rows=INFO.max_rows, context_len=INFO.context_len, page_size=INFO.page_size)
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    reader, builder = ShapeReader(table, sizes=sizes, captured=True, cascade=True), BatchBuilder(INFO)
    steps = []
    for case in cases():
        if case.fits(INFO, 300_000):
            batch = builder.batch(case)
            table.apply(batch.page_writes)
            steps.append(MeasuredStep(kind=case.kind, shape=reader.read(batch), times_s=[]))
    return steps


def timed(steps: list[MeasuredStep], costs: StepCosts, noise: float) -> list[MeasuredStep]:
    random = np.random.default_rng(0)
    return [
        msgspec.structs.replace(
            step,
            times_s=(step_time_s(step.shape, costs) * (1 + noise * random.standard_normal(5))).tolist(),
        )
        for step in steps
    ]


@pytest.mark.parametrize("floor_s", [0.0, 9e-3])
def test_costs_are_found_again(shapes: list[MeasuredStep], floor_s: float) -> None:
    costs = msgspec.structs.replace(h200().costs, eager_floor_s=floor_s)
    for noise, tolerance in ((0.0, 0.005), (0.03, 0.06)):
        found = fit.fit_costs(timed(shapes, costs, noise))
        for error in fit.errors(timed(shapes, costs, 0.0), found):
            assert error.worst < tolerance and abs(error.bias) < tolerance / 2, error


@given(st.integers(0, 10_000), st.integers(1, 8))
def test_nnls_meets_the_conditions_of_an_optimum(seed: int, width: int) -> None:
    random = np.random.default_rng(seed)
    matrix, target = random.standard_normal((12, width)), random.standard_normal(12)
    x = fit.nnls(matrix, target)
    gradient = matrix.T @ (target - matrix @ x)
    assert (x >= 0).all()
    assert (gradient <= 1e-8).all()  # raising anything does not help
    assert np.abs(gradient[x > 0]).max(initial=0) < 1e-8


def write(path: Path, *lines: msgspec.Struct) -> Path:
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    return path


def test_the_command(shapes: list[MeasuredStep], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = write(tmp_path / "steps.jsonl", DEVICE, *timed(shapes, h200().costs, 0.01))
    out = tmp_path / "profile.json"
    assert fit.main([str(steps), "--out", str(out), "--answer-tokens", "5", "50"]) == 0
    profile = load_profile(str(out))
    assert (profile.device, profile.memory, profile.answer_tokens) == ("Abacus 9000", h200().memory, (5, 50))
    assert profile.source == f"fitted to {len(shapes)} steps measured by counting beads"
    table = capsys.readouterr().out.splitlines()
    assert [line[:20].strip() for line in table[1:]] == list(dict.fromkeys(step.kind for step in shapes))


def test_what_it_refuses(shapes: list[MeasuredStep], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = [msgspec.structs.replace(step, times_s=[1.0]) for step in shapes[:3]]
    (tmp_path / "broken").write_bytes(b'{"type": "step"}')
    for path, sentence in (
        (tmp_path / "absent", "Cannot read"),
        (tmp_path / "broken", "holds no measured steps"),
        (write(tmp_path / "no-device", *few), "must hold one device"),
        (write(tmp_path / "few", DEVICE, *few), "too few steps to fit"),
    ):
        assert fit.main([str(path), "--out", str(tmp_path / "out.json")]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and sentence in error and error.count("\n") == 1
    with pytest.raises(SystemExit) as ended:
        fit.main(["x", "--out", "y", "--answer-tokens", "9", "3"])
    assert ended.value.code == 2


def test_too_few_steps_by_themselves(shapes: list[MeasuredStep]) -> None:
    with pytest.raises(UserError, match="too few"):
        fit.fit_profile(DEVICE, [step for step in timed(shapes, h200().costs, 0) if step.kind != "single"], None)
