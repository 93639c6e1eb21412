"""Whether the canary does more than the others: a paired comparison of windows. Pure.

Each window gives one figure, the logarithm of the canary's tokens a second over the others' mean: what traffic does to
both cancels out. The interval is Student's, over the windows, widened by how much the others differ among themselves.
It is looked at after each window, so each look gets an equal part of the error allowed in all (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance

from deploy.tune.trials.laboratory import Stretch, Window

MIN_WINDOWS = 4
ERROR = 0.05  # that the interval misses the truth in any of the looks


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The canary against the others. Gains are shares: 0.1 is 10 % more tokens a second; the interval is simultaneous
    for all looks. Infinite where there are too few windows."""

    windows: int
    gain: float
    low: float
    high: float
    tokens_per_s: float  # the canary's
    others_tokens_per_s: float  # mean
    queue_share: float  # the lower one of canary and others
    recomputed_share: float  # of the canary's tokens
    retractions_per_minute: float  # the canary's
    ttft_ratio: float | None  # canary's mean over others'; None if nobody answered
    failures: float  # the canary's
    others_failures: float  # mean


def compare(windows: Sequence[Window], looks: int) -> Comparison:
    """What `windows`, at least one, say, where `looks` are taken in all."""
    canary = [window.canary for window in windows]
    others = [stretch for window in windows for stretch in window.others]
    gain, low, high = _interval(windows, looks)
    seconds, tokens = sum(s.seconds for s in canary), sum(s.tokens for s in canary)
    ours, theirs = _ttft_s(canary), _ttft_s(others)
    return Comparison(
        windows=len(windows),
        gain=gain,
        low=low,
        high=high,
        tokens_per_s=tokens / seconds,
        others_tokens_per_s=sum(s.tokens for s in others) / sum(s.seconds for s in others),
        queue_share=min(_queue_share(canary), _queue_share(others)),
        recomputed_share=sum(s.recomputed_tokens for s in canary) / max(tokens, 1.0),
        retractions_per_minute=sum(s.retractions for s in canary) * 60 / seconds,
        ttft_ratio=None if ours is None or not theirs else ours / theirs,
        failures=sum(s.failures for s in canary),
        others_failures=sum(s.failures for s in others) / len(windows[0].others),
    )


def student_quantile(p: float, degrees: int) -> float:
    """Of Student's t distribution, by its expansion about the normal one (Abramowitz and Stegun 26.7.5)."""
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / float(degrees) ** (power + 1) for power, term in enumerate(terms))


def _interval(windows: Sequence[Window], looks: int) -> tuple[float, float, float]:
    """(gain, low, high)."""
    rates = [(_rate(w.canary), fmean(_rate(s) for s in w.others)) for w in windows]
    if any(ours <= 0 or theirs <= 0 for ours, theirs in rates):
        ours, theirs = (sum(rate) for rate in zip(*rates, strict=True))
        return (ours / theirs - 1 if theirs else math.inf), -1.0, math.inf
    logs = [math.log(ours / theirs) for ours, theirs in rates]
    mean, count = fmean(logs), len(logs)
    if count < MIN_WINDOWS:
        return math.expm1(mean), -1.0, math.inf
    noise = variance(logs) / count
    half = student_quantile(1 - ERROR / 2 / max(looks, 1), count - 1) * math.sqrt(noise + _spread(windows))
    return math.expm1(mean), math.expm1(mean - half), math.expm1(mean + half)


def _spread(windows: Sequence[Window]) -> float:
    """Variance of canary minus others' mean that stems from replicas being unequal for reasons of their own, as far as
    it exceeds what windows alone explain."""
    number = len(windows[0].others)
    if number < 2 or any(_rate(s) <= 0 for w in windows for s in w.others):
        return 0.0
    by_replica = [[math.log(_rate(w.others[i])) for w in windows] for i in range(number)]
    centred = [
        [value - fmean(series[at] for series in by_replica) for at, value in enumerate(row)] for row in by_replica
    ]
    within = fmean(variance(row) for row in centred) / len(windows)
    between = variance([fmean(row) for row in centred])
    return max(0.0, between - within) * (1 + 1 / number)


def _rate(stretch: Stretch) -> float:
    return stretch.tokens / stretch.seconds


def _queue_share(stretches: Sequence[Stretch]) -> float:
    return fmean(s.queue_share for s in stretches)


def _ttft_s(stretches: Sequence[Stretch]) -> float | None:
    began = sum(s.first_tokens for s in stretches)
    return sum(s.ttft_sum_s for s in stretches) / began if began else None
