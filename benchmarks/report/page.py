"""The page: a table of all runs, plots, what was run, and what the figures mean. One HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from benchmarks.report import plots
from benchmarks.report.runs import RunRecord, baseline, drawn
from benchmarks.report.theme import COLOURS, styles
from benchmarks.serve.results import DEFINITIONS


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of the table. `better`: 1 = more, -1 = less, 0 = neither."""

    key: str
    group: str
    title: str
    digits: int
    better: int = 0


COLUMNS = (
    Column("completed", "requests", "done", 0),
    Column("failed", "requests", "failed", 0, -1),
    Column("request_throughput", "throughput", "req/s", 2, 1),
    Column("output_throughput", "throughput", "out tok/s", 1, 1),
    Column("input_throughput", "throughput", "in tok/s", 1, 1),
    Column("request_goodput", "throughput", "good req/s", 2, 1),
    Column("cache_hit_rate", "throughput", "prefix hits", 3, 1),
    Column("mean_ttft_ms", "TTFT (ms)", "mean", 1, -1),
    Column("p99_ttft_ms", "TTFT (ms)", "p99", 1, -1),
    Column("mean_tpot_ms", "TPOT (ms)", "mean", 2, -1),
    Column("p99_tpot_ms", "TPOT (ms)", "p99", 2, -1),
    Column("mean_itl_ms", "ITL (ms)", "mean", 2, -1),
    Column("p99_itl_ms", "ITL (ms)", "p99", 2, -1),
    Column("mean_e2e_latency_ms", "end to end (ms)", "mean", 1, -1),
    Column("p99_e2e_latency_ms", "end to end (ms)", "p99", 1, -1),
)
_SETTINGS = (
    *("client", "time", "model", "backend", "dataset_name", "dataset_path", "num_prompts", "request_rate"),
    *("max_concurrency", "burstiness", "random_input_len", "random_output_len", "random_range_ratio", "seed"),
    *("duration", "total_input_tokens", "total_output_tokens", "client_cpu_us_per_request", "client_cpu_share"),
)
_OF_DATASET = ("gsp_", "conv_")
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e_latency": "End-to-end latency"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure: its text, how far it is from the baseline's, whether that is better (1) or worse (-1), and whether no
    run of its level has a better one."""

    text: str
    change: str = ""
    verdict: int = 0
    best: bool = False


def page(title: str, runs: Sequence[RunRecord]) -> str:
    """The whole file. Raises UserError without matplotlib."""
    columns = [column for column in COLUMNS if any(run.figures.get(column.key) is not None for run in runs)]
    if all(run.generates for run in runs):
        columns = [column for column in columns if column.key != "input_throughput"]
    names = dict.fromkeys([*_SETTINGS, *(name for run in runs for name in run.figures if name.startswith(_OF_DATASET))])
    settings = [name for name in names if any(_setting(run, name) is not None for run in runs)]
    template = resources.files("benchmarks.report").joinpath("page.html").read_text(encoding="utf-8")
    swept = [name for name in dict.fromkeys(run.series for run in runs) if sum(r.series == name for r in runs) > 1]
    return (
        Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(
            title=title,
            light=styles(dark=False),
            dark=styles(dark=True),
            runs=runs,
            groups=_groups(columns),
            columns=columns,
            rows=[[cell(runs, run, column) for column in columns] for run in runs],
            notes=[(run.name, note) for run in runs for note in _notes(run)],
            series=list(dict.fromkeys(run.series for run in runs)),
            swept=swept,
            drawn=[run.name for run in drawn(runs, COLOURS)],
            sweeps=[Markup(svg) for svg in plots.sweeps(runs)],  # our own drawings; matplotlib escapes their texts
            distributions=[Markup(svg) for svg in plots.distributions(runs)],
            timelines=Markup(plots.timelines(runs) or ""),
            same=[(name, shown(_setting(runs[0], name))) for name in settings if _alike(runs, name)],
            different=[
                (name, [shown(_setting(run, name)) for run in runs]) for name in settings if not _alike(runs, name)
            ],
            definitions=[(_NAMES.get(name, name.capitalize()), text) for name, text in DEFINITIONS.items()],
        )
    )


def cell(runs: Sequence[RunRecord], run: RunRecord, column: Column) -> Cell:
    """A run's figure beside those of the others."""
    value, base = run.figures.get(column.key), baseline(runs, run)
    if value is None:
        return Cell("–")
    text = f"{value:,.{column.digits}f}"
    if not column.better:
        return Cell(text)
    peers = [other.figures.get(column.key) for other in runs if other.level == run.level]
    values = {round(peer, column.digits) for peer in peers if peer is not None}
    best = len(values) > 1 and round(value, column.digits) == (max(values) if column.better > 0 else min(values))
    before = base.figures.get(column.key) if base is not None else None
    if not before:
        return Cell(text, best=best)
    share = value / before - 1
    verdict = 0 if abs(share) < 0.01 else int((share > 0) == (column.better > 0)) * 2 - 1
    change = "0%" if abs(share) < 0.005 else f"{share:+.0%}" if abs(share) < 9.995 else f"×{value / before:,.0f}"
    return Cell(text, change, verdict, best)


def shown(value: Any) -> str:
    """A setting as text."""
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for column in columns:
        counts[column.group] = counts.get(column.group, 0) + 1
    return list(counts.items())


def _alike(runs: Sequence[RunRecord], name: str) -> bool:
    values: Mapping[str, None] = dict.fromkeys(shown(_setting(run, name)) for run in runs)
    return len(values) == 1


def _setting(run: RunRecord, name: str) -> Any:
    """None where the run's prompts have nothing to do with it."""
    value = run.figures.get(name)
    if name.startswith("random_") and not str(run.figures.get("dataset_name", "random")).startswith("random"):
        return None
    if name == "random_output_len" and not run.generates:
        return None
    if name == "time" and isinstance(value, str):
        return value[: len("2026-11-30T12:00:00")].replace("T", " ")
    return value


def _notes(run: RunRecord) -> list[str]:
    """What a reader must know before the figures."""
    failed = [f"{run.failed} of {run.failed + run.figures['completed']} requests failed."] if run.failed else []
    return [*failed, *(run.figures.get("notes") or ())]
