"""The simulated accelerator predicts the measured workloads, with the whole scheduler above it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import arguments, offline, step_times
from common.errors import UserError


@pytest.fixture(scope="module")
def outcomes() -> dict[str, offline.Outcome]:
    with offline.loaded(["--device", "sim"]) as bench:
        bench.run("warm-up", offline.WARM_UP, 1)
        return {name: bench.run(name, workload, 0) for name, workload in offline.WORKLOADS.items()}


@pytest.mark.parametrize("workload", sorted(offline.WORKLOADS))
def test_predictions_are_within_a_tenth_of_what_an_h200_took(
    outcomes: dict[str, offline.Outcome], workload: str
) -> None:
    assert outcomes[workload].seconds == pytest.approx(offline.MEASURED_S[workload], rel=0.1)


def test_the_program_prints_both(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["offline", "--device", "sim", "--workload", "single"])
    offline.main()
    line = capsys.readouterr().out
    assert line.startswith("single") and f"measured on an H200 {offline.MEASURED_S['single']:.2f} s" in line


@pytest.mark.parametrize("load", [offline.loaded, step_times.loaded], ids=["offline", "step_times"])
def test_the_large_model_is_not_loaded_on_a_cpu_unasked(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"^No GPU was found, .* or insist with --device cpu\.$"), load([]):
        pass


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--device", "cpu"], "Loading random weights of a Llama-3-8B shape (--device cpu)."),
        (["--device", "auto", "--model=small"], "Loading small (--device auto)."),
    ],
)
def test_what_was_asked_for_is_told_before_it_is_loaded(
    flags: Sequence[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small").mkdir()
    Path("small", "config.json").write_text('{"architectures": ["Unheard"]}')
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def stop(*_: Any) -> None:
        raise UserError("This is where it would be loaded.")

    monkeypatch.setattr(offline, "running_scheduler", stop)
    with pytest.raises(UserError, match="where it would be loaded"), offline.loaded(flags):
        pass
    assert capsys.readouterr().err == f"{line}\n"


def test_faults_of_step_times_are_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["step_times", "--out", str(tmp_path / "x")])
    with pytest.raises(SystemExit) as end:
        arguments.run(step_times.main)
    assert end.value.code == 2 and capsys.readouterr().err.startswith("error: No GPU was found")
