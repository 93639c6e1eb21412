"""Draws runs of benchmarks/autoscale.py as one SVG: the load, how many replicas served it, and what that bought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.autoscale_fleet import Outcome
from benchmarks.traces import TraceRequest
from common.errors import UserError

_BINS = 240


def plot(path: Path, requests: Sequence[TraceRequest], outcomes: Sequence[Outcome], *, target_s: float) -> None:
    """`outcomes[0]` is the autoscaler's. Raises UserError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("--plot needs matplotlib; install 'canopy-serve[plots]'.") from None
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "canopy", "svg.fonttype": "none"})  # same figures, same picture
    from matplotlib import pyplot

    figure, (load, size, late, price) = pyplot.subplots(
        4, 1, figsize=(9, 11), height_ratios=[2, 2, 2, 3], constrained_layout=True
    )
    end_s = requests[-1].arrival_s
    bin_s = end_s / _BINS
    tokens: Counter[int] = Counter()
    for request in requests:
        tokens[int(request.arrival_s / bin_s)] += request.prompt_tokens
    hours = [(number + 0.5) * bin_s / 3600 for number in range(_BINS)]
    load.plot(hours, [tokens[number] / bin_s / 1000 for number in range(_BINS)], color="tab:gray")
    load.set_ylabel("prompt tokens/s (thousands)")
    _draw_sizes(size, outcomes[0], end_s)
    _draw_late(late, outcomes, bin_s, target_s)
    _draw_price(price, outcomes, target_s)
    for axes in (load, size, late):
        axes.set_xlim(0, end_s / 3600)
    late.set_xlabel("hours")
    for axes in (load, size, late, price):
        axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _draw_sizes(axes: Any, outcome: Outcome, end_s: float) -> None:
    sizes = [*outcome.sizes, (end_s, outcome.sizes[-1][1], outcome.sizes[-1][2])]
    hours = [at_s / 3600 for at_s, _, _ in sizes]
    axes.step(hours, [paid for _, paid, _ in sizes], where="post", color="tab:orange", label="paid for", linewidth=1)
    axes.step(hours, [ready for _, _, ready in sizes], where="post", color="tab:blue", label="serving", linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("replicas, autoscaler")
    axes.legend(loc="upper right")


def _draw_late(axes: Any, outcomes: Sequence[Outcome], bin_s: float, target_s: float) -> None:
    """Late answers over time, of the autoscaler and of the two static fleets nearest to it."""
    ours = outcomes[0]
    near = sorted(outcomes[1:], key=lambda other: abs(other.replica_hours - ours.replica_hours))[:2]
    for outcome in (ours, *sorted(near, key=lambda other: other.replica_hours)):
        late: Counter[int] = Counter()
        for arrival_s, ttft_s in zip(outcome.arrivals_s, outcome.ttft_s, strict=True):
            late[int(arrival_s / bin_s)] += ttft_s > target_s
        total, cumulative = 0, []
        for number in range(_BINS):
            total += late[number]
            cumulative.append(total)
        hours = [(number + 1) * bin_s / 3600 for number in range(_BINS)]
        axes.plot(hours, cumulative, label=outcome.name)
    axes.set_ylabel(f"answers later than {target_s:g} s, so far")
    axes.legend(loc="upper left")


def _draw_price(axes: Any, outcomes: Sequence[Outcome], target_s: float) -> None:
    ours, static = outcomes[0], outcomes[1:]
    points = [(other.replica_hours, 100 * other.attainment(target_s)) for other in static]
    axes.plot(*zip(*points, strict=True), marker="o", color="tab:gray", label="static fleets")
    for other, (hours, share) in zip(static, points, strict=True):
        axes.annotate(other.name.removeprefix("static "), (hours, share), textcoords="offset points", xytext=(6, -12))
    axes.plot([ours.replica_hours], [100 * ours.attainment(target_s)], marker="*", markersize=14, label="autoscaler")
    good = [share for _, share in points if share > 50]
    axes.set_ylim(min([*good, 100 * ours.attainment(target_s)]) - 2, 100.5)
    axes.set_xlabel("replica-hours")
    axes.set_ylabel(f"% of answers begun within {target_s:g} s")
    axes.legend(loc="lower right")
