"""Finds the smallest fleet that keeps all targets, for each choice of settings. Trials run in several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from common.errors import UserError
from common.process import die_with_parent
from deploy.plan.fleet import FleetSpec
from deploy.plan.measured import Measured
from deploy.plan.search import first_guess, next_sizes
from deploy.plan.slices import Slice
from deploy.plan.targets import Target
from deploy.plan.trial import Trial, run_trial
from deploy.plan.workload import Workload

RunAll = Callable[[Sequence[Trial]], Sequence[Measured]]


@dataclass(frozen=True, slots=True)
class Variant:
    """One choice of settings; `name` is empty if there is only one."""

    name: str
    spec: FleetSpec


@dataclass(frozen=True, slots=True)
class Row:
    """A fleet that was tried. `attainments`: share of requests that keep each target, in the order of the targets."""

    variant: str
    replicas: int
    measured: Measured
    attainments: tuple[float, ...]
    enough: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: the load, what must be kept, sizes from `low` to `high`."""

    workload: Workload
    slices: Sequence[Slice]
    targets: tuple[Target, ...]
    low: int
    high: int


def answer(
    question: Question, variants: Sequence[Variant], *, jobs: int, tried: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """All fleets that were tried, by variant and size. `tried` hears of each as soon as it is known. Raises UserError
    for settings that no replica can run with, and if memory runs out."""
    if jobs == 1:
        return _answer(question, variants, lambda trials: list(map(run_trial, trials)), 1, tried)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _begin_trials, (os.getpid(),)) as pool:
        try:
            return _answer(question, variants, lambda trials: list(pool.map(run_trial, trials)), jobs, tried)
        except BrokenProcessPool:
            raise UserError("A trial's process was killed, perhaps for its memory; give fewer --jobs.") from None


def _begin_trials(parent_pid: int) -> None:
    """Of a process for trials: it ends with its parent, and at Ctrl-C without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent(parent_pid)


def _answer(
    question: Question, variants: Sequence[Variant], run_all: RunAll, at_once: int, tried: Callable[[Row], None]
) -> list[Row]:
    rows: list[Row] = []
    for variant in variants:
        start = min((row.replicas for row in rows if row.enough), default=0)
        found = _Search(question, variant, run_all, at_once, tried).run(start)
        rows += sorted(found, key=lambda row: row.replicas)
    return rows


def best(rows: Sequence[Row]) -> Row | None:
    """The fewest replicas that are enough; among equals those with most to spare. None: no fleet is enough."""
    good = [row for row in rows if row.enough]
    return min(good, key=lambda row: (row.replicas, -min(row.attainments, default=1.0))) if good else None


class _Search:
    def __init__(
        self,
        question: Question,
        variant: Variant,
        run_all: RunAll,
        at_once: int,
        tried: Callable[[Row], None],
    ) -> None:
        self._question = question
        self._variant = variant
        self._run_all = run_all
        self._at_once = at_once
        self._tried = tried
        self._rows: dict[int, Row] = {}

    def run(self, start: int) -> list[Row]:
        question = self._question
        start = start or first_guess(self._variant.spec, question.workload)
        while sizes := next_sizes(
            {size: row.enough for size, row in self._rows.items()},
            low=question.low,
            high=question.high,
            start=start,
            at_once=self._at_once,
        ):
            self._try(sizes)
        return list(self._rows.values())

    def _try(self, sizes: Sequence[int]) -> None:
        question, spec = self._question, self._variant.spec
        trials = [Trial(spec, question.workload, question.slices, size) for size in sizes]
        for size, measured in zip(sizes, self._run_all(trials), strict=True):
            attainments = tuple(target.attainment(measured) for target in question.targets)
            enough = all(target.met(share) for target, share in zip(question.targets, attainments, strict=True))
            self._rows[size] = row = Row(self._variant.name, size, measured, attainments, enough)
            self._tried(row)
