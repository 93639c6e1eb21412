"""The answer for people, as a table, and for programs, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from deploy.plan.measured import METRICS
from deploy.plan.planning import Question, Row, best
from deploy.plan.slices import Slice

_PERCENTILES = (50, 90, 99)


def table(question: Question, rows: Sequence[Row]) -> Table:
    """One line for each fleet that was tried."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    varied = any(row.variant for row in rows)
    if varied:
        made.add_column("settings", no_wrap=True)
    for title in ("replicas", "replica-hours", "TTFT p50", "p90", "p99", "TPOT p50", "p90", "hits", "out tok/s"):
        made.add_column(title, justify="right", no_wrap=True)
    for target in question.targets:
        made.add_column(target.name, justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    chosen = best(rows)
    for row in rows:
        seen = row.measured
        cells = [
            f"{row.replicas}",
            _hours(replica_hours(question, row)),
            *(_seconds(seen.percentile_s("ttft", percent)) for percent in _PERCENTILES),
            *(_seconds(seen.percentile_s("tpot", percent)) for percent in _PERCENTILES[:2]),
            f"{seen.hit_rate:.1%}",
            f"{seen.output_tokens_per_s:,.0f}",
            *(f"{share:.2%}" for share in row.attainments),
            "enough" if row.enough else "too few" if question.targets else "",
        ]
        made.add_row(*([row.variant] if varied else []), *cells, style="bold" if row is chosen else None)
    return made


def verdict(question: Question, rows: Sequence[Row]) -> str:
    """The answer in a sentence, if there is one."""
    chosen = best(rows)
    if chosen is None or not question.targets:
        return ""
    settings = f" with {chosen.variant}" if chosen.variant else ""
    keep = "replica keeps" if chosen.replicas == 1 else "replicas keep"
    return (
        f"{chosen.replicas} {keep} all targets{settings}: {_hours(replica_hours(question, chosen))} replica-hours "
        f"for {question.workload.duration_s / 3600:,.2f} h."
    )


def what_was_run(question: Question) -> str:
    """How much of the load every trial runs."""
    workload, slices = question.workload, question.slices
    load = f"{workload.num_requests:,} requests in {workload.duration_s / 3600:,.2f} h"
    if len(slices) == 1 and slices[0] == Slice(0.0, 0.0, workload.duration_s):
        return f"{load}, all of them run in virtual time."
    run_s = sum(part.end_s - part.begin_s for part in slices)
    counted_s = sum(part.counted_s for part in slices)
    return (
        f"{load}. Run are {len(slices)} slices of {run_s / len(slices):,.0f} s, evenly spread: "
        f"{run_s / workload.duration_s:.1%} of the time, of which {counted_s / run_s:.0%} count and the rest warms "
        "fleet and caches up. --sample-requests 0 runs everything."
    )


def refusals(rows: Sequence[Row]) -> list[str]:
    """Why requests were refused, with how many of the largest fleet's."""
    faults = rows[-1].measured.faults if rows else {}
    return [f"{count} requests were refused: {fault}" for fault, count in list(faults.items())[:3]]


def _hours(hours: float) -> str:
    return f"{hours:,.{1 if hours >= 10 else 2}f}"


def replica_hours(question: Question, row: Row) -> float:
    """Of the whole load, not only of the slices."""
    return row.replicas * question.workload.duration_s / 3600


def as_json(question: Question, rows: Sequence[Row]) -> str:
    """Times in seconds."""
    chosen = best(rows) if question.targets else None
    document = {
        "requests": question.workload.num_requests,
        "duration_s": question.workload.duration_s,
        "slices": [[part.begin_s, part.count_s, part.end_s] for part in question.slices],
        "targets": [target.name for target in question.targets],
        "replicas": chosen.replicas if chosen else None,
        "settings": chosen.variant if chosen else None,
        "fleets": [_fields(question, row) for row in rows],
    }
    return json.dumps(document, indent=2)


def _fields(question: Question, row: Row) -> dict[str, Any]:
    seen = row.measured
    latencies = {
        f"{metric}_p{percent}_s": seen.percentile_s(metric, percent) for metric in METRICS for percent in _PERCENTILES
    }
    return {
        "settings": row.variant,
        "replicas": row.replicas,
        "replica_hours": replica_hours(question, row),
        "enough": row.enough,
        "attainment": {t.name: share for t, share in zip(question.targets, row.attainments, strict=True)},
        "counted_requests": seen.num_requests,
        "refused_requests": seen.num_refused,
        "requests_per_s": seen.requests_per_s,
        "output_tokens_per_s": seen.output_tokens_per_s,
        "hit_rate": seen.hit_rate,
        **latencies,
    }


def _seconds(value_s: float) -> str:
    return f"{1000 * value_s:.1f} ms" if value_s < 1 else f"{value_s:.2f} s"
