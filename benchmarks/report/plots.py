"""Plots as SVG text whose colours are the page's: matplotlib draws, and placeholder colours become CSS variables."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from benchmarks.report.runs import RunRecord, drawn
from benchmarks.serve.results import QUANTILES
from common.errors import UserError

COLOURS = 8  # of runs or series; a page has a variable --s0 ... for each
_INK, _SOFT, _LINE = "#0a0c01", "#0a0c02", "#0a0c03"
_PLACEHOLDER = re.compile(r"#0a0([bc])0([0-9])")
_CSS = {"1": "var(--ink)", "2": "var(--soft)", "3": "var(--line)"}
_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e_latency": "end-to-end latency"}
_WIDE = 4
_SHARES = [share / 100 for share in QUANTILES]


def sweeps(runs: Sequence[RunRecord]) -> str | None:
    """Mean and p99 latency against throughput, a line for each series with several levels; None if there is none."""
    series = [name for name in _series(runs) if sum(run.series == name for run in runs) > 1]
    if not series:
        return None
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 3, figsize=(11.5, 3.7), constrained_layout=True)
    for name in series[:COLOURS]:
        levels = sorted((run for run in runs if run.series == name), key=lambda r: r.figures["output_throughput"])
        colour = _colour(_series(runs).index(name))
        for axis, key in zip(axes, ("ttft", "tpot", "e2e_latency"), strict=True):
            _draw_sweep(axis, levels, key, colour)
        _name_levels(axes[0], levels, above=series.index(name) % 2 == 1)
    for axis, title in zip(axes, ("TTFT", "TPOT", "End-to-end latency"), strict=True):
        _label(axis, title, "output tokens/s", "ms" if title == "TTFT" else "")
        _scale(axis.yaxis)
        axis.set_xlim(left=0)
    return _svg(figure)


def distributions(runs: Sequence[RunRecord]) -> str | None:
    """What share of requests (of gaps, for ITL) was at most so late; None if no run tells."""
    told = [(run, index) for index, run in enumerate(drawn(runs, COLOURS)) if run.figures.get("quantiles")]
    if not told:
        return None
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, 4, figsize=(11.5, 3.3), constrained_layout=True, sharey=True)
    for axis, (key, title) in zip(axes, _LATENCIES.items(), strict=True):
        for run, index in told:
            values = run.figures["quantiles"].get(key) or []
            if values:
                axis.plot([max(value, 1e-2) for value in values], _SHARES, color=_colour(index), linewidth=1.8)
        _label(axis, title[0].upper() + title[1:], "ms", "share of requests" if key == "ttft" else "")
        _scale(axis.xaxis)
        axis.set_ylim(0, 1.01)
    return _svg(figure)


def timelines(runs: Sequence[RunRecord]) -> str | None:
    """Throughput, requests in flight and TTFT while each run went on; None if no run tells."""
    told = [(run, index) for index, run in enumerate(drawn(runs, COLOURS)) if run.figures.get("timeline")]
    if not told:
        return None
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(3, 1, figsize=(11.5, 6.6), constrained_layout=True, sharex=True)
    rows = (
        ("output_throughput", "Output tokens/s"),
        ("in_flight", "Requests in flight"),
        ("ttft_ms", "Mean TTFT (ms)"),
    )
    for axis, (key, title) in zip(axes, rows, strict=True):
        for run, index in told:
            line = run.figures["timeline"]
            points = [
                ((number + 0.5) * line["step_s"], value) for number, value in enumerate(line[key]) if value is not None
            ]
            if points:
                axis.plot(*zip(*points, strict=True), color=_colour(index), linewidth=1.6)
        _label(axis, title, "seconds since the start" if key == "ttft_ms" else "", "")
        axis.set_xlim(left=0)
        if key == "ttft_ms":
            _scale(axis.yaxis)
        else:
            axis.set_ylim(bottom=0)
    return _svg(figure)


def _series(runs: Sequence[RunRecord]) -> list[str]:
    """Names in order of their first run."""
    return list(dict.fromkeys(run.series for run in runs))


def _draw_sweep(axis: Any, levels: Sequence[RunRecord], key: str, colour: str) -> None:
    rates = [run.figures["output_throughput"] for run in levels]
    for part, style in (("mean", "-"), ("p99", ":")):
        values = [max(run.figures.get(f"{part}_{key}_ms") or 0.0, 1e-2) for run in levels]
        axis.plot(rates, values, style, color=colour, linewidth=1.8, marker="o", markersize=4)


def _name_levels(axis: Any, levels: Sequence[RunRecord], *, above: bool) -> None:
    for run in levels:
        at = run.figures["output_throughput"], max(run.figures["mean_ttft_ms"], 1e-2)
        axis.annotate(run.level, at, (-4, 7 if above else -12), textcoords="offset points", color=_SOFT, fontsize=7.5)


def _scale(axis: Any) -> None:
    """Logarithmic if values differ by more than a few times, with plain numbers at 1, 2, 5, 10, ...; else from zero."""
    from matplotlib import ticker

    low, high = axis.get_data_interval()
    set_scale, set_limit = (
        (axis.axes.set_xscale, axis.axes.set_xlim)
        if axis.axis_name == "x"
        else (axis.axes.set_yscale, axis.axes.set_ylim)
    )
    if not 0 < low < high / _WIDE:
        set_limit(0)
        return
    set_scale("log")
    subs = (1, 2, 5) if high < 15 * low else (1, 3) if high < 200 * low else (1,)
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _label(axis: Any, title: str, x: str, y: str) -> None:
    axis.set_title(title, loc="left", fontsize=11, color=_INK)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(color=_LINE, linewidth=0.8)


def _colour(index: int) -> str:
    return f"#0a0b0{index % COLOURS}"


def _pyplot() -> Any:
    """Raises UserError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("canopy bench report needs matplotlib; install 'canopy-serve[plots]'.") from None
    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "svg.hashsalt": "canopy",  # same runs, same page
            "svg.fonttype": "none",
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "axes.edgecolor": _LINE,
            "axes.labelcolor": _SOFT,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "xtick.color": _SOFT,
            "ytick.color": _SOFT,
            "xtick.minor.size": 0,
            "ytick.minor.size": 0,
            "font.size": 9.5,
        }
    )
    return pyplot


def _svg(figure: Any) -> str:
    """As an element for a page: no size of its own, no metadata, colours by variables."""
    from matplotlib import pyplot

    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return _PLACEHOLDER.sub(lambda found: f"var(--s{found[2]})" if found[1] == "b" else _CSS[found[2]], text)
