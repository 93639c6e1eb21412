"""Draws what each fleet size buys: the share of requests that keep each target, against replicas and replica-hours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from deploy.plan.planning import Question, Row, best

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "canopy", "svg.fonttype": "none"})  # same figures, same picture


def draw(path: Path, question: Question, rows: Sequence[Row]) -> None:
    """One panel for each target, one line for each choice of settings."""
    from matplotlib import pyplot

    count = max(len(question.targets), 1)
    figure, panels = pyplot.subplots(
        count, 1, figsize=(8, 1.2 + 2.8 * count), sharex=True, squeeze=False, layout="constrained"
    )
    for index, panel in enumerate(panels[:, 0]):
        _panel(panel, question, rows, index)
    hours = question.workload.duration_s / 3600
    top = panels[0, 0].secondary_xaxis("top", functions=(lambda n: n * hours, lambda h: h / hours))
    top.set_xlabel("replica-hours")
    panels[-1, 0].set_xlabel("replicas")
    panels[-1, 0].xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def _panel(panel: Any, question: Question, rows: Sequence[Row], index: int) -> None:
    for variant in dict.fromkeys(row.variant for row in rows):
        tried = [row for row in rows if row.variant == variant]
        shares = [100 * row.attainments[index] for row in tried] if question.targets else []
        panel.plot([row.replicas for row in tried][: len(shares)], shares, marker="o", label=variant or None)
    if question.targets:
        target = question.targets[index]
        panel.axhline(target.percentile, color="black", linestyle="--", linewidth=1)
        panel.set_title(f"{target.name}: dashed is what is asked for", loc="left", fontsize=10)
        panel.set_ylabel("% of requests in time")
    chosen = best(rows) if question.targets else None
    if chosen is not None:
        panel.axvline(chosen.replicas, color="tab:green", linewidth=6, alpha=0.25)
        panel.annotate(
            f"{chosen.replicas} {'is' if chosen.replicas == 1 else 'are'} enough",
            (chosen.replicas, 0.04),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            xytext=(-8, 0),
            ha="right",
            color="tab:green",
        )
    panel.grid(alpha=0.3)
    if any(row.variant for row in rows):
        panel.legend(fontsize=8)
