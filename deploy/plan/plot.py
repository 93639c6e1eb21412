"""Draws what each fleet size buys: the share of requests that keep each target, against replicas and replica-hours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import theme
from deploy.plan.planning import Question, Row, best
from deploy.plan.targets import Target

_NAMES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "Whole answer"}
_HEADROOM = 1.06  # of the shares' range, above and below


def draw(path: Path, question: Question, rows: Sequence[Row]) -> None:
    """One panel for each target, one line for each choice of settings. Raises UserError without matplotlib, and if the
    file cannot be written."""
    count = max(len(question.targets), 1)
    figure, panels = theme.pyplot("--plot").subplots(
        count, 1, figsize=(8.5, 1.4 + 2.7 * count), sharex=True, squeeze=False, layout="constrained"
    )
    for index, panel in enumerate(panels[:, 0]):
        _panel(panel, question, rows, index)
    hours = question.workload.duration_s / 3600
    load = f"{question.workload.num_requests:,} requests in {hours:,.2f} h"
    figure.suptitle(f"What each fleet keeps of {load}", x=0.01, ha="left", fontsize=12.5)
    bottom = panels[-1, 0]
    bottom.set_xlabel("replicas")
    bottom.set_xticks(sorted({row.replicas for row in rows}))
    _replica_hours(panels[0, 0], hours)
    if len({row.variant for row in rows}) > 1:
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=8.5)
    path.write_text(theme.picture(figure), encoding="utf-8")


def _panel(panel: Any, question: Question, rows: Sequence[Row], index: int) -> None:
    if not question.targets:
        theme.label(panel, "No targets were given", "", "")
        return
    target = question.targets[index]
    for number, variant in enumerate(dict.fromkeys(row.variant for row in rows)):
        tried = [row for row in rows if row.variant == variant]
        sizes, shares = [row.replicas for row in tried], [100 * row.attainments[index] for row in tried]
        shade = theme.colour(number)
        panel.plot(sizes, shares, color=shade, linewidth=1.8, label=variant or None)
        for row, share in zip(tried, shares, strict=True):  # hollow: this target is missed
            inside = shade if target.met(row.attainments[index]) else theme.PANEL
            panel.plot(row.replicas, share, "o", markersize=6, markeredgecolor=shade, markerfacecolor=inside, zorder=3)
    theme.label(panel, _words(target), "", "% of requests")
    panel.axhline(target.percentile, color=theme.INK, linestyle="--", linewidth=1)
    _limits(panel, [100 * row.attainments[index] for row in rows], target)
    chosen = best(rows)
    if chosen is not None:
        panel.axvline(chosen.replicas, color=theme.GOOD, linewidth=7, alpha=0.25)
        if index == 0:
            _say(panel, chosen.replicas, rows)


def _words(target: Target) -> str:
    limit = f"{1000 * target.limit_s:g} ms" if target.limit_s < 1 else f"{target.limit_s:g} s"
    return f"{_NAMES[target.metric]}: at most {limit} for {target.percentile:g} % (dashed)"


def _limits(panel: Any, shares: Sequence[float], target: Target) -> None:
    """All shares and the target, with room around them, and never far above 100 %."""
    low, high = min(*shares, target.percentile), max(*shares, target.percentile)
    room = max(high - low, 0.5) * (_HEADROOM - 1)
    panel.set_ylim(max(low - room, -2.0), high + room)


def _say(panel: Any, replicas: int, rows: Sequence[Row]) -> None:
    """On the side of the line where more room is."""
    sizes = [row.replicas for row in rows]
    left = replicas - min(sizes) > max(sizes) - replicas
    panel.annotate(
        f"{replicas} {'is' if replicas == 1 else 'are'} enough",
        (replicas, 0.35),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        xytext=(-9 if left else 9, 0),
        ha="right" if left else "left",
        color=theme.GOOD,
        fontweight="bold",
        bbox={"facecolor": theme.PANEL, "edgecolor": "none", "pad": 1.5},
    )


def _replica_hours(panel: Any, hours: float) -> None:
    top = panel.secondary_xaxis("top", functions=(lambda n: n * hours, lambda h: h / hours))
    top.set_xlabel("replica-hours of the whole load", loc="right")
    top.spines["top"].set_visible(False)
    top.tick_params(length=0)
