"""Every rule of `canopy tune` over random scenarios: how often it speaks when it should, and only then; and whether
what it advises does what it promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from statistics import geometric_mean

import pytest

from common.tuning.finding import Finding, Verdict
from common.tuning.judge import judge
from tests.helpers.tuning_scenarios import Scenario, Truth, drawn, expected, played

NUM_SCENARIOS = 240
RULES = range(1, 23)
# Their notes are about what is not their condition: 8 to 10 GB free, batches that a graph would hold, a single machine.
SIDE_NOTES = (9, 14, 21)
NUM_FOLLOWED = 8  # scenarios of a rule in which its advice is followed

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


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


@cache
def plays() -> list[tuple[Scenario, list[Finding], Truth]]:
    """All scenarios, what is found in their logs, and what was so."""
    found = []
    for seed in range(NUM_SCENARIOS):
        scenario = drawn(seed)
        seen, truth = played(scenario)
        found.append((scenario, judge(seen), truth))
    return found


def speaks(rule: int, findings: list[Finding]) -> bool:
    """Whether a rule has found its condition."""
    return any(f.rule == rule and not (rule in SIDE_NOTES and f.verdict is Verdict.NOTE) for f in findings)


def test_precision_and_recall_over_random_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {rule: Score() for rule in RULES}
    faults: Counter[str] = Counter()
    for seed, (scenario, findings, truth) in enumerate(plays()):
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


def followed(rule: int) -> Iterator[tuple[Truth, Truth]]:
    """Scenarios in which the rule has advice, before and after it was followed: the first ones."""
    advised = [
        (scenario, finding, truth)
        for scenario, findings, truth in plays()
        for finding in findings
        if finding.rule == rule and finding.verdict is Verdict.CHANGE
    ]
    for scenario, finding, truth in advised[:NUM_FOLLOWED]:
        yield truth, played(_changed(scenario, finding))[1]


def _changed(scenario: Scenario, finding: Finding) -> Scenario:
    """With the advised flags; the size of the pool is the scenario's."""
    flags = dict(finding.flags)
    flags.pop("mem-fraction-static", None)
    assert flags
    for flag, value in flags.items():
        match flag:
            case "schedule-conservativeness":
                scenario = replace(scenario, conservativeness=float(value))
            case "max-running-requests":
                scenario = replace(scenario, max_running=int(value))
            case "cuda-graph-max-bs":
                scenario = replace(scenario, graph_max_bs=int(value))
            case "schedule-policy":
                scenario = replace(scenario, policy=value)
            case _:
                pytest.fail(f"--{flag} is no setting of a scenario")
    return scenario


def _speed(truth: Truth) -> float:
    return truth.output_tokens / truth.seconds


def _retracting(truth: Truth) -> float:
    return 1 / (1 + truth.retractions)


# Rule 19 has its own test, tests/tuning/test_prefix_policy.py: here the few shared beginnings stay cached in any order.
@pytest.mark.parametrize(
    ("rule", "benefit", "most_harm"), [(5, _speed, 0.95), (6, _retracting, 1.0), (14, _speed, 0.98)]
)
def test_advice_does_what_it_promises(
    rule: int, benefit: Callable[[Truth], float], most_harm: float, capsys: pytest.CaptureFixture[str]
) -> None:
    gains = [benefit(after) / benefit(before) for before, after in followed(rule)]
    with capsys.disabled():
        print(f"\nrule {rule}, gains where it was followed: {', '.join(f'{gain:.2f}' for gain in gains)}")
    assert len(gains) >= 4
    assert geometric_mean(gains) > 1.0
    assert min(gains) >= most_harm
