"""The plots of the page, as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import fmean
from typing import Any

from benchmarks.report.runs import RunRecord, drawn
from benchmarks.report.theme import COLOURS, SOFT, colour, element, label, pyplot
from benchmarks.serve.results import QUANTILES

_COMMAND = "canopy bench report"
_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e_latency": "end-to-end latency"}
_COURSE = {
    "output_throughput": "Output tokens/s",
    "input_throughput": "Input tokens/s",
    "in_flight": "Requests in flight",
    "ttft_ms": "Mean TTFT (ms)",
}
_WIDE = 4
_LEAST_MS = 1e-2
_BELOW_MEDIAN = 20  # times; what is shorter is drawn at the edge: events that were read together
_MEDIAN = QUANTILES.index(50)
_SHARES = [share / 100 for share in QUANTILES]


def sweeps(runs: Sequence[RunRecord]) -> list[str]:
    """Mean and p99 latency against throughput, a line for each series with several levels; [] if there is none."""
    series = [name for name in _series(runs) if sum(run.series == name for run in runs) > 1]
    keys = _told(runs, ("ttft", "tpot", "e2e_latency")) if series else []
    tokens = "output tokens/s" if all(run.generates for run in runs) else "tokens/s, embeddings' input"
    panels = []
    for key in keys:
        figure, axis = pyplot(_COMMAND).subplots(figsize=(3.9, 3.6), constrained_layout=True)
        lowest = min(series, key=lambda name: fmean(_mean(r, keys[0]) for r in runs if r.series == name))
        for name in series[:COLOURS]:
            levels = sorted((run for run in runs if run.series == name), key=_order)
            _draw_sweep(axis, levels, key, colour(_series(runs).index(name)))
            if key == keys[0]:
                _name_levels(axis, levels, key, above=name != lowest)
        label(axis, _capital(_LATENCIES[key]), tokens, "ms")
        _scale(axis.yaxis)
        _from_zero(axis.xaxis)
        panels.append(element(figure))
    return panels


def distributions(runs: Sequence[RunRecord]) -> list[str]:
    """What share of requests (of gaps, for ITL) was at most so late; [] if no run tells."""
    told = [(run, index) for index, run in enumerate(drawn(runs, COLOURS)) if run.figures.get("quantiles")]
    panels = []
    for key in _told(runs, tuple(_LATENCIES)) if told else []:
        figure, axis = pyplot(_COMMAND).subplots(figsize=(3.1, 3.3), constrained_layout=True)
        lines = [(run.figures["quantiles"].get(key) or [], index) for run, index in told]
        floor = max(_LEAST_MS, min((values[_MEDIAN] for values, _ in lines if values), default=0.0) / _BELOW_MEDIAN)
        for values, index in lines:
            if values:
                axis.plot([max(value, floor) for value in values], _SHARES, color=colour(index), linewidth=1.8)
        label(axis, _capital(_LATENCIES[key]), "ms", "share of gaps" if key == "itl" else "share of requests")
        _scale(axis.xaxis)
        axis.set_ylim(0, 1.01)
        panels.append(element(figure))
    return panels


def timelines(runs: Sequence[RunRecord]) -> str | None:
    """Throughput, requests in flight and TTFT while each run went on; None if no run tells."""
    told = [(run, index) for index, run in enumerate(drawn(runs, COLOURS)) if run.figures.get("timeline")]
    if not told:
        return None
    rows = [
        (key, title)
        for key, title in _COURSE.items()
        if any(run.figures["timeline"].get(key) for run, _ in told)
        and (key != "input_throughput" or not all(run.generates for run in runs))
    ]
    height = 0.6 + 2 * len(rows)
    figure, axes = pyplot(_COMMAND).subplots(
        len(rows), 1, figsize=(11.5, height), constrained_layout=True, sharex=True, squeeze=False
    )
    for axis, (key, title) in zip(axes[:, 0], rows, strict=True):
        for run, index in told:
            line = run.figures["timeline"]
            values = line.get(key) or []
            points = [
                ((number + 0.5) * line["step_s"], value) for number, value in enumerate(values) if value is not None
            ]
            if points:
                axis.plot(*zip(*points, strict=True), color=colour(index), linewidth=1.6)
        label(axis, title, "seconds since the start" if key == rows[-1][0] else "", "")
        axis.set_xlim(left=0)
        if key == "ttft_ms":
            _scale(axis.yaxis)
        else:
            _from_zero(axis.yaxis)
    return element(figure)


def _told(runs: Sequence[RunRecord], keys: Sequence[str]) -> list[str]:
    """Latencies that some run has."""
    return [key for key in keys if any(run.figures.get(f"mean_{key}_ms") is not None for run in runs)]


def _mean(run: RunRecord, key: str) -> float:
    return float(run.figures.get(f"mean_{key}_ms") or 0.0)


def _throughput(run: RunRecord) -> float:
    """Output tokens a second; of embeddings those of their prompts."""
    return float(run.figures["output_throughput" if run.generates else "input_throughput"])


def _capital(title: str) -> str:
    return title[0].upper() + title[1:]


def _series(runs: Sequence[RunRecord]) -> list[str]:
    """Names in order of their first run."""
    return list(dict.fromkeys(run.series for run in runs))


def _order(run: RunRecord) -> tuple[float, float]:
    """Of a level in its sweep: by rate, then by bound."""
    rate, bound = run.figures.get("request_rate"), run.figures.get("max_concurrency")
    return (float(rate) if isinstance(rate, int | float) else inf, float(bound) if bound else inf)


def _draw_sweep(axis: Any, levels: Sequence[RunRecord], key: str, shade: str) -> None:
    levels = [run for run in levels if run.figures.get(f"mean_{key}_ms") is not None]
    rates = [_throughput(run) for run in levels]
    for part, style in (("mean", "-"), ("p99", ":")):
        values = [max(run.figures.get(f"{part}_{key}_ms") or 0.0, _LEAST_MS) for run in levels]
        axis.plot(rates, values, style, color=shade, linewidth=1.8, marker="o", markersize=4)


def _name_levels(axis: Any, levels: Sequence[RunRecord], key: str, *, above: bool) -> None:
    for run in levels:
        at = _throughput(run), max(_mean(run, key), _LEAST_MS)
        where = {"xytext": (-5, 5), "ha": "right"} if above else {"xytext": (5, -11), "ha": "left"}
        axis.annotate(run.level, at, textcoords="offset points", color=SOFT, fontsize=7.5, **where)


def _scale(axis: Any) -> None:
    """Logarithmic if values differ by more than a few times, with plain numbers at 1, 2, 5, 10, ...; else from zero."""
    from matplotlib import ticker

    low, high = axis.get_data_interval()
    if not 0 < low < high / _WIDE:
        _from_zero(axis)
        return
    (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
    subs = (1, 2, 5) if high < 15 * low else (1, 3) if high < 200 * low else (1,)
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(_number)


def _from_zero(axis: Any) -> None:
    """Linear, with plain numbers."""
    (axis.axes.set_xlim if axis.axis_name == "x" else axis.axes.set_ylim)(0)
    axis.set_major_formatter(_number)


def _number(value: float, place: int | None = None) -> str:
    return f"{value:,.10g}"
