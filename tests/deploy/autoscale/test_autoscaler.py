"""The autoscaler as the controller asks it."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.autoscale.autoscaler import make_autoscaler
from deploy.autoscale.signals import BadReport, replica_load
from deploy.fleet.description import AutoscalingDescription, ModelDescription, ReplicaBounds
from tests.deploy.autoscale.reports import view


def model(**changes: Any) -> ModelDescription:
    bounds = ReplicaBounds(min=1, max=6)
    return ModelDescription(name="m", model="m", replicas=bounds, autoscaling=AutoscalingDescription(**changes))


def test_a_busy_replica_gets_company_and_leaves_it_when_it_is_calm() -> None:
    scaler = make_autoscaler(model(down_delay_s=60.0))
    current, now_s, prefill_s = 1, 0.0, 0.0
    for _ in range(30):  # one replica, always computing prompts
        current = scaler.desired([view("a", prefill_s_total=prefill_s)], current, now_s)
        now_s, prefill_s = now_s + 2, prefill_s + 2
    assert current == 2
    for _ in range(100):
        views = [view("a", prefill_s_total=prefill_s), view("b")][: max(current, 1)]
        current = scaler.desired(views, current, now_s)
        now_s += 2
    assert current == 1


def test_failed_replicas_are_on_their_way() -> None:
    scaler = make_autoscaler(model(down_delay_s=0.0))
    for now_s in range(0, 200, 2):
        assert scaler.desired([view("a"), view("b", "failed")], 2, float(now_s)) == 2


def test_who_does_not_serve_yet_goes_first_then_the_least_valuable_cache() -> None:
    scaler = make_autoscaler(model())
    for at, hits in ((0, 0), (2, 900)):
        told = {"evictable_tokens": 10_000, "prompt_tokens_total": 500 * at}
        views = [
            view("hot", cached_tokens_total=hits, **told),
            view("cold", cached_tokens_total=hits // 3, **told),
            view("new", "starting"),
        ]
        scaler.desired(views, 3, float(at))
    assert scaler.victim(views) == "replica-new"
    assert scaler.victim(views[:2]) == "replica-cold"
    assert scaler.victim([view("hot"), view("unknown")]) == "replica-hot"


def test_among_equals_the_one_with_the_fewest_requests_goes() -> None:
    scaler = make_autoscaler(model())
    views = [view("a", running_requests=3), view("b", running_requests=1)]
    scaler.desired(views, 2, 0.0)
    assert scaler.victim(views) == "replica-b"


@pytest.mark.parametrize(
    "answer", [{}, {"loads": []}, {"loads": [{"num_running_reqs": 1}], "incarnation": "a"}, None, [1]]
)
def test_a_report_of_another_maker_is_told_apart(answer: Any) -> None:
    with pytest.raises(BadReport):
        replica_load(answer)
