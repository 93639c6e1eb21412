"""Every rule of `canopy tune` over random scenarios: how often it speaks when it should, and only then."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from common.tuning.finding import Finding, Verdict
from common.tuning.judge import judge
from tests.helpers.tuning_scenarios import drawn, expected, played

NUM_SCENARIOS = 240
RULES = range(1, 23)


@dataclass
class Score:
    """Of one rule."""

    right: int = 0
    wrong: int = 0
    missed: int = 0
    silent: int = 0  # rightly

    @property
    def precision(self) -> float:
        return self.right / (self.right + self.wrong) if self.right + self.wrong else 1.0

    @property
    def recall(self) -> float:
        return self.right / (self.right + self.missed) if self.right + self.missed else 1.0


def speaks(rule: int, findings: list[Finding]) -> bool:
    """Whether a rule has found its condition. Rule 14 notes batches without a graph that are small enough for one."""
    return any(f.rule == rule and not (rule == 14 and f.verdict is Verdict.NOTE) for f in findings)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_precision_and_recall_over_random_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {rule: Score() for rule in RULES}
    faults: Counter[str] = Counter()
    for seed in range(NUM_SCENARIOS):
        scenario = drawn(seed)
        seen, truth = played(scenario)
        findings = judge(seen)
        for rule, should in expected(scenario, truth).items():
            score, does = scores[rule], speaks(rule, findings)
            score.right += should and does
            score.wrong += does and not should
            score.missed += should and not does
            score.silent += not should and not does
            if should != does:
                faults[f"rule {rule} {'missed' if should else 'wrong'} in scenario {seed}"] += 1
    lines = [f"{'rule':>4} {'right':>6} {'wrong':>6} {'missed':>6} {'silent':>6} {'precision':>9} {'recall':>6}"]
    for rule, score in scores.items():
        lines.append(
            f"{rule:>4} {score.right:>6} {score.wrong:>6} {score.missed:>6} {score.silent:>6} "
            f"{score.precision:>9.3f} {score.recall:>6.3f}"
        )
    with capsys.disabled():
        print("\n" + "\n".join(lines + sorted(faults)))
    for rule, score in scores.items():
        assert score.right + score.missed >= 5, f"rule {rule} was hardly provoked"
        assert score.wrong + score.silent >= 5, f"rule {rule} was hardly tried in vain"
        assert score.precision >= 0.95 and score.recall >= 0.95, f"rule {rule}: {score}"
