"""Experiments: bounds, the paired comparison, decisions, proposals, and the loop over a laboratory that is made up."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from common.tuning.observation import Facts, Observation, Sample
from deploy.tune.trials.bounds import BOUNDS, Change, Range, Value, check, nearest
from deploy.tune.trials.comparison import compare, student_quantile
from deploy.tune.trials.decision import Decision, Rules, decide
from deploy.tune.trials.journal import Journal
from deploy.tune.trials.laboratory import CanaryFailed, LaboratoryLost, Situation, Stretch, Window
from deploy.tune.trials.loop import Experimenter
from deploy.tune.trials.proposal import Tried, propose
from worker.log_lines import StartupLine

SETTINGS: dict[str, Value] = {
    "schedule-conservativeness": 1.0,
    "schedule-policy": "fcfs",
    "max-running-requests": 64,
    "chunked-prefill-size": 8192,
    "cuda-graph-max-bs": 256,
    "mem-fraction-static": 0.8,
}


def stretch(tokens: float, **rest: float) -> Stretch:
    values = {"seconds": 10.0, "running": 50.0, "queue_share": 1.0, **rest}
    return Stretch(tokens=tokens, **values)


def windows(canary: Sequence[float], others: Sequence[Sequence[float]], **rest: float) -> list[Window]:
    """Tokens of the canary, and of each other replica, by window."""
    return [
        Window(stretch(ours, **rest), [stretch(tokens) for tokens in theirs])
        for ours, theirs in zip(canary, zip(*others, strict=True), strict=True)
    ]


def noisy(level: float, seed: int, count: int = 8, spread: float = 0.01) -> list[float]:
    rng = random.Random(seed)
    return [level * (1 + rng.gauss(0, spread)) for _ in range(count)]


@given(st.sampled_from(sorted(BOUNDS)), st.floats(-1e9, 1e9), st.floats(0.1, 10_000))
def test_no_value_leaves_its_bounds(flag: str, value: float, now: float) -> None:
    bound = BOUNDS[flag]
    allowed = nearest(flag, value, now)
    if not isinstance(bound, Range):
        assert allowed is None
        return
    assert isinstance(allowed, int | float)
    assert bound.low <= allowed <= bound.high
    assert nearest(flag, allowed, None) == allowed


def test_counts_grow_by_at_most_four() -> None:
    assert nearest("max-running-requests", 4096, 16) == 64
    assert nearest("max-running-requests", 1, 64) == 16
    assert nearest("chunked-prefill-size", 16384, 1024) == 4096


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tp-size": 8}, "may not set --tp-size"),
        ({"schedule-policy": "random"}, "may not set --schedule-policy random"),
        ({"mem-fraction-static": 0.99}, "from 0.5 to 0.94"),
        ({"max-running-requests": 1000}, "now to 256"),
    ],
)
def test_what_goes_too_far_is_refused(change: Change, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check(change, SETTINGS)


@pytest.mark.parametrize(("p", "degrees", "value"), [(0.975, 10, 2.228), (0.995, 5, 4.032), (0.95, 30, 1.697)])
def test_quantiles_are_those_of_tables(p: float, degrees: int, value: float) -> None:
    assert student_quantile(p, degrees) == pytest.approx(value, rel=0.005)


def test_a_clear_gain_is_kept_and_a_clear_loss_dropped() -> None:
    others = [noisy(1000, 1), noisy(1000, 2)]
    gain = compare(windows(noisy(1200, 3), others), looks=5)
    assert gain.low < gain.gain < gain.high
    assert gain.gain == pytest.approx(0.2, abs=0.02)
    assert decide(gain, Rules())[0] is Decision.KEEP
    loss = compare(windows(noisy(900, 3), others), looks=5)
    assert decide(loss, Rules())[0] is Decision.DROP


def test_what_traffic_does_to_all_cancels_out() -> None:
    traffic = [1000.0, 200.0, 3000.0, 50.0, 800.0]
    seen = compare(windows([1.1 * tokens for tokens in traffic], [traffic]), looks=1)
    assert (seen.low, seen.high) == pytest.approx((0.1, 0.1))


def test_replicas_that_differ_anyway_widen_the_interval() -> None:
    alike = compare(windows(noisy(1100, 3), [noisy(1000, 1), noisy(1000, 2)]), looks=1)
    unlike = compare(windows(noisy(1100, 3), [noisy(850, 1), noisy(1150, 2)]), looks=1)
    assert alike.low > 0.05
    assert unlike.low < 0


def test_equal_settings_are_seldom_kept() -> None:
    kept = 0
    for seed in range(60):
        canary, other = noisy(1000, seed, 20, 0.05), noisy(1000, seed + 1000, 20, 0.05)
        for count in range(4, 21):
            decision, _ = decide(compare(windows(canary[:count], [other[:count]]), Rules().looks), Rules())
            if decision is not Decision.GO_ON:
                kept += decision is Decision.KEEP
                break
    assert kept <= 6


def test_a_change_for_safety_may_cost_a_little() -> None:
    cheap, dear = (compare(windows(noisy(level, 3), [noisy(1000, 1)]), looks=1) for level in (990, 900))
    assert decide(cheap, Rules())[0] is not Decision.KEEP
    assert decide(cheap, Rules(), for_safety=True)[0] is Decision.KEEP
    assert decide(dear, Rules(), for_safety=True)[0] is Decision.DROP


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"queue_share": 0.2}, "too little load"),
        ({"recomputed_tokens": 400.0}, "computed again"),
        ({"first_tokens": 10.0, "ttft_sum_s": 30.0}, "times as long"),
        ({"failures": 9.0}, "without their answer"),
    ],
)
def test_more_tokens_are_not_taken_at_any_price(changes: dict[str, float], reason: str) -> None:
    base = Stretch(seconds=10, tokens=1000, running=50, queue_share=1.0, first_tokens=10, ttft_sum_s=10)
    seen = [Window(stretch(1300 + number, **changes), [base]) for number in range(6)]
    decision, because = decide(compare(seen, looks=1), Rules())
    assert decision is Decision.DROP
    assert reason in because


def observation(running: int, queued: int, usage: float, *, rows: int = 64, **rest: object) -> Observation:
    samples = [Sample(running, queued, usage)] * 30
    facts = Facts(
        max_running_requests=rows, schedule_conservativeness=1.0, schedule_policy="fcfs", mem_fraction_static=0.8
    )
    return Observation("replica-0", minutes=1.0, samples=samples, facts=facts, **rest)  # type: ignore[arg-type]


def situation(seen: Observation, **settings: Value) -> Situation:
    return Situation({**SETTINGS, **{k.replace("_", "-"): v for k, v in settings.items()}}, [seen], 140.0)


def test_a_bound_on_running_requests_is_raised_at_once_with_the_graphs_it_needs() -> None:
    found = propose(situation(observation(64, 100, 0.4)), [])
    assert found is not None
    assert found.rule == 5
    assert found.change == {"max-running-requests": 256}
    many = propose(situation(observation(64, 100, 0.1), cuda_graph_max_bs=64), [])
    assert many is not None
    assert many.change == {"max-running-requests": 256, "cuda-graph-max-bs": 512}


def test_memory_that_is_free_goes_to_the_pool_at_once_if_the_pool_is_full() -> None:
    startup = StartupLine(10**6, 8192, 16384, 64, 8192, "gpu", 20.5)
    full = propose(situation(observation(50, 100, 0.95, startup=startup)), [])
    assert full is not None
    assert full.change == {"mem-fraction-static": 0.907}
    roomy = propose(situation(observation(64, 100, 0.5, startup=startup)), [])
    assert roomy is not None
    assert roomy.rule == 5


def test_memory_between_the_guides_bands_goes_to_a_full_pool() -> None:
    startup = StartupLine(10**6, 8192, 16384, 64, 8192, "gpu", 9.5)
    found = propose(situation(observation(50, 100, 0.95, startup=startup)), [])
    assert found is not None
    assert found.rule == 0
    assert found.change == {"mem-fraction-static": 0.829}


def test_a_dropped_step_is_halved_once_and_then_left() -> None:
    seen = situation(observation(64, 100, 0.1))
    dropped: list[Tried] = []
    tried = []
    for _ in range(3):
        found = propose(seen, dropped)
        assert found is not None
        tried.append(dict(found.change))
        dropped.append(Tried(found.change, is_final=True))
    assert tried[0] == {"max-running-requests": 256}
    assert tried[1] == {"max-running-requests": 128}
    assert all(change.get("max-running-requests", 0) < 128 for change in tried[2:])


@given(st.lists(st.integers(0, 3), max_size=20))
def test_proposals_end_and_stay_within_bounds(drops: list[int]) -> None:
    seen = situation(observation(64, 100, 0.1))
    dropped: list[Tried] = []
    for _ in range(60):
        found = propose(seen, dropped)
        if found is None:
            return
        check(found.change, seen.settings)
        assert all(found.change != tried.change for tried in dropped)
        dropped.append(Tried(found.change, is_final=bool(drops)))
    pytest.fail("it never ends")


@dataclass
class MadeUpLaboratory:
    """A fleet whose throughput is a formula of its settings."""

    settings: dict[str, Value] = field(default_factory=lambda: dict(SETTINGS))
    canary: dict[str, Value] | None = None
    calls: list[str] = field(default_factory=list)
    fails: bool = False
    is_lost: bool = False
    queued: int = 100

    def look(self) -> Situation:
        return Situation(self.settings, [observation(self._rows(self.settings), self.queued, 0.4)], None)

    def begin(self, change: Change) -> None:
        self.calls.append("begin")
        if self.fails:
            raise CanaryFailed("it does not start")
        self.canary = {**self.settings, **change}

    def window(self) -> Window:
        if self.is_lost:
            raise LaboratoryLost("gone")
        assert self.canary is not None
        rng = random.Random(len(self.calls))
        self.calls.append("window")
        ours, theirs = (self._rows(s) * 10 * rng.uniform(0.99, 1.01) for s in (self.canary, self.settings))
        return Window(stretch(ours), [stretch(theirs)])

    def keep(self) -> None:
        assert self.canary is not None
        self.calls.append("keep")
        self.settings, self.canary = self.canary, None

    def drop(self) -> None:
        self.calls.append("drop")
        self.canary = None

    @staticmethod
    def _rows(settings: dict[str, Value]) -> int:
        rows = settings["max-running-requests"]
        assert isinstance(rows, int)
        return rows


def experimenter(laboratory: MadeUpLaboratory, path: Path | None = None, limit: int = 3) -> Experimenter:
    told: list[str] = []
    return Experimenter(laboratory, Journal(path), model="m", rules=Rules(), limit=limit, tell=told.append)


def test_what_helps_is_kept_and_logged(tmp_path: Path) -> None:
    laboratory = MadeUpLaboratory()
    result = experimenter(laboratory, tmp_path / "log", limit=2).run()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["kept", "kept"]
    assert lines[0]["change"] == {"max-running-requests": 256}
    assert lines[0]["before"] == {"max-running-requests": 64}
    assert lines[0]["rule"] == 5
    assert lines[0]["measured"]["low"] > 0
    assert result.kept["max-running-requests"] == laboratory.settings["max-running-requests"]
    assert "drop" not in laboratory.calls


def test_a_canary_that_does_not_start_is_dropped() -> None:
    laboratory = MadeUpLaboratory(fails=True)
    result = experimenter(laboratory, limit=2).run()
    assert [entry.outcome for entry in result.entries] == ["dropped", "dropped"]
    assert laboratory.settings == SETTINGS
    assert laboratory.calls == ["begin", "drop", "begin", "drop"]


def test_no_canary_is_left_when_the_fleet_is_lost() -> None:
    laboratory = MadeUpLaboratory(is_lost=True)
    with pytest.raises(LaboratoryLost):
        experimenter(laboratory).run()
    assert laboratory.calls[-1] == "drop"


def test_idle_replicas_are_not_experimented_with() -> None:
    laboratory = MadeUpLaboratory(queued=0)
    result = experimenter(laboratory).run()
    assert not result.entries
    assert "too little to do" in result.stopped
    assert not laboratory.calls


def test_a_journal_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--journal"):
        Journal(tmp_path / "none" / "log")
