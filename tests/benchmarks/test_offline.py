"""The simulated accelerator predicts the measured workloads, with the whole scheduler above it."""

from __future__ import annotations

import pytest

from benchmarks import offline


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
