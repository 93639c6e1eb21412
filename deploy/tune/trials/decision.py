"""When an experiment has seen enough, and what becomes of the change. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from deploy.tune.trials.comparison import MIN_WINDOWS, Comparison

SIGMAS = 3.0  # of a Poisson count: clients who leave are no fault of the canary


class Decision(Enum):
    """KEEP: roll it out. DROP: the canary leaves. GO_ON: one more window."""

    KEEP = "kept"
    DROP = "dropped"
    GO_ON = "goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a change must show. Shares unless a name says otherwise."""

    max_windows: int = 20
    min_gain: float = 0.01  # more tokens a second: a change that surely brings less is not worth it
    max_loss: float = 0.05  # of tokens a second, that a change for safety may cost
    min_queue_share: float = 0.5  # of the time with requests waiting: a replica that has too little to do shows nothing
    max_recomputed_share: float = 0.1  # of its tokens, because of retractions
    max_ttft_ratio: float = 1.25  # canary's mean time to first token over the others'

    @property
    def looks(self) -> int:
        """How often the interval is looked at, at most."""
        return max(1, self.max_windows - MIN_WINDOWS + 1)


def decide(seen: Comparison, rules: Rules, *, for_safety: bool = False) -> tuple[Decision, str]:
    """The decision after the windows so far, and why: half a sentence. A change `for_safety` need not bring more tokens
    a second, only not cost many."""
    most, least = (-rules.max_loss, -rules.max_loss) if for_safety else (rules.min_gain, 0.0)
    if seen.failures > seen.others_failures + SIGMAS * math.sqrt(seen.others_failures + 1):
        elsewhere = f"{seen.others_failures:.1f} at another replica"
        return Decision.DROP, f"{seen.failures:.0f} requests ended without their answer at the canary, {elsewhere}"
    if seen.windows < MIN_WINDOWS:
        return Decision.GO_ON, ""
    if seen.queue_share < rules.min_queue_share:
        share = f"{seen.queue_share:.0%}"
        return Decision.DROP, f"requests waited in {share} of the time only: too little load to tell them apart"
    if seen.high < most:
        return Decision.DROP, f"not worth it: {_gain(seen)}"
    if seen.low > least:
        return _guarded(seen, rules)
    if seen.windows >= rules.max_windows and for_safety and seen.gain > least:
        return Decision.KEEP, f"no sign of a loss in {seen.windows} windows: {_gain(seen)}"
    if seen.windows >= rules.max_windows:
        return Decision.DROP, f"no difference in {seen.windows} windows: {_gain(seen)}"
    return Decision.GO_ON, ""


def _guarded(seen: Comparison, rules: Rules) -> tuple[Decision, str]:
    """More tokens a second, but not at any price."""
    if seen.recomputed_share > rules.max_recomputed_share:
        again = f"{seen.recomputed_share:.0%} of its tokens computed again after retractions"
        return Decision.DROP, f"{_gain(seen)}, but {again}"
    if seen.ttft_ratio is not None and seen.ttft_ratio > rules.max_ttft_ratio:
        return Decision.DROP, f"{_gain(seen)}, but first tokens take {seen.ttft_ratio:.2f} times as long"
    return Decision.KEEP, _gain(seen)


def _gain(seen: Comparison) -> str:
    return f"{seen.gain:+.1%} tokens/s ({seen.low:+.1%} to {seen.high:+.1%})"
