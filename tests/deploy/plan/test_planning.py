"""Trials in processes of their own, slices, and faults that only a trial finds."""

from __future__ import annotations

import pytest

from common.errors import UserError
from deploy.plan.lengths import parse_lengths
from deploy.plan.planning import Question, Variant, answer, best
from deploy.plan.report import what_was_run
from deploy.plan.slices import slices_of
from deploy.plan.targets import parse_targets
from deploy.plan.workload import DescribedWorkload
from tests.helpers.planned_fleets import small_spec


def question(*, sample: int = 0, high: int = 4) -> Question:
    """Prompts of 2,000 tokens at 4 a second, on devices a tenth as fast: some 2 replicas' worth of prefill."""
    load = DescribedWorkload(
        rate_per_s=4.0,
        duration_s=180.0,
        prompt=parse_lengths("2000", flag=""),
        output=parse_lengths("2", flag=""),
        shared_share=0.0,
        prefixes=1,
        seed=1,
    )
    slices = slices_of(load.duration_s, load.num_requests, sample)
    return Question(workload=load, slices=slices, targets=parse_targets(["ttft_p90=3s"]), low=1, high=high)


@pytest.mark.long
def test_processes_find_what_one_alone_finds() -> None:
    variants = [Variant("", small_spec(speed=0.1))]
    alone, several = (answer(question(), variants, jobs=jobs) for jobs in (1, 2))
    chosen = [best(rows) for rows in (alone, several)]
    assert chosen[0] is not None and chosen[1] is not None
    assert chosen[0].replicas == chosen[1].replicas > 1
    assert chosen[0].attainments == chosen[1].attainments
    assert {row.replicas: row.enough for row in alone}[chosen[0].replicas - 1] is False


@pytest.mark.long
def test_slices_tell_about_what_the_whole_load_does() -> None:
    spec = [Variant("", small_spec(speed=0.1))]
    sampled, whole = (question(sample=count, high=3) for count in (560, 0))
    assert "slices" in what_was_run(sampled) and "all of them" in what_was_run(whole)
    rows = [
        answer(Question(workload=q.workload, slices=q.slices, targets=q.targets, low=3, high=3), spec, jobs=1)[0]
        for q in (sampled, whole)
    ]
    few, all_ = (row.measured for row in rows)
    assert few.num_requests < all_.num_requests == pytest.approx(720, rel=0.1)
    assert few.percentile_s("ttft", 90) == pytest.approx(all_.percentile_s("ttft", 90), rel=0.15)
    assert few.requests_per_s == pytest.approx(all_.requests_per_s, rel=0.1)


def test_settings_that_no_replica_can_run_with_are_the_users_fault() -> None:
    with pytest.raises(UserError, match="--mem-fraction-static"):
        answer(question(), [Variant("", small_spec(mem_fraction_static=0.01))], jobs=1)
