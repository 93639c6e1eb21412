"""`canopy plan [TRACE]`: from arguments to an answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.traces import read_trace
from common.errors import UserError
from deploy.plan.lengths import parse_lengths
from deploy.plan.planning import Question, Row, answer, best
from deploy.plan.report import as_json, refusals, table, verdict, what_was_run
from deploy.plan.settings import PlanSettings, read_request
from deploy.plan.slices import slices_of
from deploy.plan.workload import DescribedWorkload, TraceWorkload, Workload

_PIPE_WIDTH = 200


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Print the answer. Returns 0. Raises UserError, also if no size is enough."""
    trace = [] if not argv or argv[0].startswith("-") else [argv[0]]
    request = read_request(argv[len(trace) :], env)
    own = request.own
    workload = _workload(Path(trace[0]) if trace else None, own)
    slices = slices_of(workload.duration_s, workload.num_requests, own.sample_requests)
    question = Question(workload=workload, slices=slices, targets=request.targets, low=request.low, high=request.high)
    if own.plot:
        _check_plot(Path(own.plot))
    _say(what_was_run(question), own)
    rows = answer(question, request.variants, jobs=request.jobs, tried=_tried)
    _show(question, rows, own)
    if request.targets and best(rows) is None:
        raise UserError(_none_is_enough(question, rows))
    return 0


def _workload(trace: Path | None, own: PlanSettings) -> Workload:
    if trace is not None:
        if own.rate is not None:
            raise UserError(f"--rate describes a load, and {trace} is one; leave one of the two out.")
        recording = read_trace(trace, flag="TRACE", limit=own.trace_requests)
        return TraceWorkload(recording, speed=own.trace_speed, rounds=own.trace_rounds)
    if own.rate is None:
        raise UserError("There is no load: name a trace file, or describe one by --rate, --prompt-tokens and others.")
    return DescribedWorkload(
        rate_per_s=own.rate,
        duration_s=own.hours * 3600,
        prompt=parse_lengths(own.prompt_tokens, flag="--prompt-tokens"),
        output=parse_lengths(own.output_tokens, flag="--output-tokens"),
        shared_share=own.shared_prefix_share,
        prefixes=own.shared_prefixes,
        seed=own.seed,
    )


def _show(question: Question, rows: Sequence[Row], own: PlanSettings) -> None:
    if own.plot:
        from deploy.plan.plot import draw

        draw(Path(own.plot), question, rows)
    if own.json_output:
        print(as_json(question, rows))
        return
    console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
    console.print(table(question, rows))
    for sentence in (*refusals(rows), verdict(question, rows)):
        if sentence:
            print(sentence)


def _check_plot(path: Path) -> None:
    """Before the work, not after it. Raises UserError."""
    from benchmarks.report import theme

    theme.pyplot("--plot")
    if path.suffix != ".svg":
        raise UserError(f"--plot: the picture is SVG; give it a name that ends with .svg instead of {path.name}.")
    if not path.resolve().parent.is_dir():
        raise UserError(f"--plot: there is no directory {path.resolve().parent}.")


def _tried(row: Row) -> None:
    """A line while trials run, where somebody looks."""
    if sys.stderr.isatty():
        shares = ", ".join(f"{share:.1%}" for share in row.attainments)
        print(f"tried {row.replicas} replicas {row.variant}: {shares}", file=sys.stderr)


def _say(sentence: str, own: PlanSettings) -> None:
    print(sentence, file=sys.stderr if own.json_output else sys.stdout, flush=True)


def _none_is_enough(question: Question, rows: Sequence[Row]) -> str:
    largest = max(rows, key=lambda row: row.replicas)
    missed = [
        f"{target.name} is kept by {share:.1%} of the requests"
        for target, share in zip(question.targets, largest.attainments, strict=True)
        if not target.met(share)
    ]
    return (
        f"No size up to {question.high} keeps all targets: with {largest.replicas} replicas {' and '.join(missed)}; "
        "allow more replicas by --replicas, or ask for less."
    )
