"""The block of figures that is printed, each with what it means, and a line a run where there are several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.serve.results import DEFINITIONS, PERCENTILES

_WIDTH = 58
_TITLES = {
    "e2e_latency": "End-to-End Latency",
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st)",
    "itl": "Inter-Token Latency",
}
_ROWS: tuple[tuple[str, str, str], ...] = (
    ("backend", "Backend", ""),
    ("dataset_name", "Dataset", ""),
    ("request_rate", "Traffic request rate", ""),
    ("max_concurrency", "Max request concurrency", ""),
    ("completed", "Successful requests", "d"),
    ("failed", "Failed requests", "d"),
    ("duration", "Benchmark duration (s)", ".2f"),
    ("total_input_tokens", "Total input tokens", "d"),
    ("total_cached_tokens", "Of these from a prefix cache", "d"),
    ("total_output_tokens", "Total generated tokens", "d"),
    ("total_output_tokens_retokenized", "Total generated tokens (retokenized)", "d"),
    ("request_throughput", "Request throughput (req/s)", ".2f"),
    ("request_goodput", "Request goodput (req/s)", ".2f"),
    ("input_throughput", "Input token throughput (tok/s)", ".2f"),
    ("output_throughput", "Output token throughput (tok/s)", ".2f"),
    ("max_output_tokens_per_s", "Peak output token throughput (tok/s)", ".2f"),
    ("total_throughput", "Total token throughput (tok/s)", ".2f"),
    ("max_concurrent_requests", "Peak concurrent requests", "d"),
    ("concurrency", "Concurrency", ".2f"),
    ("client_cpu_us_per_request", "CPU of this client per request (us)", ".0f"),
)
_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("request_rate", "rate", ""),
    ("max_concurrency", "conc.", ""),
    ("completed", "done", "d"),
    ("failed", "failed", "d"),
    ("request_throughput", "req/s", ".2f"),
    ("request_goodput", "good/s", ".2f"),
    ("output_throughput", "out tok/s", ".1f"),
    ("input_throughput", "in tok/s", ".1f"),
    ("mean_ttft_ms", "TTFT", ".1f"),
    ("p99_ttft_ms", "p99", ".1f"),
    ("mean_tpot_ms", "TPOT", ".2f"),
    ("mean_itl_ms", "ITL", ".2f"),
    ("mean_e2e_latency_ms", "E2E", ".1f"),
)


def table(figures: Mapping[str, Any]) -> str:
    """One run."""
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}"]
    for key, title, form in _ROWS:
        if figures.get(key) is not None:
            lines.append(_row(title, _text(figures[key], form)))
    for name, title in _TITLES.items():
        if f"mean_{name}_ms" not in figures:
            continue
        lines.append(f"{title:-^{_WIDTH}}")
        for part in ("mean", "median", *(f"p{p}" for p in PERCENTILES), *(["max"] if name == "itl" else [])):
            label = f"{part.capitalize()} {'E2E Latency' if name == 'e2e_latency' else name.upper()} (ms)"
            lines.append(_row(label, _text(figures[f"{part}_{name}_ms"], ".2f")))
        lines.append(f"  = {DEFINITIONS[name]}")
    if "goodput" in figures:
        limits = ", ".join(f"{_TITLES[name]} <= {limit:g} ms" for name, limit in figures["goodput"].items())
        lines += [f"{'Goodput':-^{_WIDTH}}", _row("Share of requests within limits", f"{figures['goodput_share']:.1%}")]
        lines.append(f"  = {DEFINITIONS['goodput']}: {limits}")
    lines.append("=" * _WIDTH)
    return "\n".join([*lines, *(f"note: {note}" for note in figures.get("notes", ()))])


def levels(runs: Sequence[Mapping[str, Any]]) -> str:
    """Several runs, a line each; latencies in ms."""
    columns = [column for column in _COLUMNS if any(run.get(column[0]) is not None for run in runs)]
    if all(run.get("output_throughput") is not None for run in runs):
        columns = [column for column in columns if column[0] != "input_throughput"]
    rows = [[title for _, title, _ in columns]]
    rows += [[_text(run.get(key), form) for key, _, form in columns] for run in runs]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _row(title: str, value: str) -> str:
    return f"{title + ':':<44}{value:>{_WIDTH - 44}}"


def _text(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
