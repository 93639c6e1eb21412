"""Warming: what siblings are asked for, what the new replica gets, and what a failure costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.autoscale.warmup import PrefixWarmer, choose
from deploy.autoscale.warmup import _Prefix as Prefix
from deploy.fleet.description import AutoscalingDescription, ModelDescription, ReplicaBounds
from tests.deploy.autoscale.reports import view

NEW = "http://new:80"


def model(warm_tokens: int = 1000, **engine: Any) -> ModelDescription:
    autoscaling = AutoscalingDescription(warm_tokens=warm_tokens)
    bounds = ReplicaBounds(min=1, max=3)
    return ModelDescription(name="m", model="m", replicas=bounds, autoscaling=autoscaling, engine=engine)


class Replicas:
    """Answers for all of them: `told` by host; hosts without an entry do not answer."""

    def __init__(self, told: Mapping[str, Any], generate_status: int = 200) -> None:
        self._told = told
        self._generate_status = generate_status
        self.asked: list[httpx.Request] = []
        self.computed: list[list[int]] = []
        self.warmer = PrefixWarmer(httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if request.url.path == "/generate":
            assert request.url.host == "new"
            self.computed.append(json.loads(request.content)["input_ids"])
            return httpx.Response(self._generate_status)
        if request.url.host not in self._told:
            raise httpx.ConnectError("nobody there")
        return httpx.Response(200, json=self._told[request.url.host])


def told(*prefixes: tuple[list[int], int]) -> dict[str, Any]:
    return {"incarnation": "x", "prefixes": [{"input_ids": ids, "hits": hits} for ids, hits in prefixes]}


async def test_the_hottest_of_all_siblings_are_computed() -> None:
    replicas = Replicas({"a": told(([1, 2], 5), ([3], 1)), "b": told(([4, 5], 9))})
    await replicas.warmer.warm(NEW, model(), [view("a"), view("b")])
    assert sorted(replicas.computed) == [[1, 2], [3], [4, 5]]


async def test_the_pool_bounds_what_is_asked_for() -> None:
    replicas = Replicas({"a": told()})
    await replicas.warmer.warm(NEW, model(warm_tokens=10**6), [view("a", max_total_tokens=5000)])
    assert replicas.asked[0].url.params["max_tokens"] == "2500"


async def test_the_busiest_four_are_asked_with_the_key() -> None:
    replicas = Replicas({})
    siblings = [view(f"r{n}", cached_tokens_total=n) for n in range(6)]
    await replicas.warmer.warm(NEW, model(admin_api_key="k"), siblings)
    assert {request.url.host for request in replicas.asked} == {"r2", "r3", "r4", "r5"}
    assert {request.headers["authorization"] for request in replicas.asked} == {"Bearer k"}


async def test_without_siblings_or_tokens_nothing_is_asked() -> None:
    replicas = Replicas({})
    await replicas.warmer.warm(NEW, model(), [])
    await replicas.warmer.warm(NEW, model(warm_tokens=0), [view("a")])
    assert replicas.asked == []


async def test_a_refusal_is_an_oserror() -> None:
    replicas = Replicas({"a": told(([1, 2], 5))}, generate_status=503)
    with pytest.raises(OSError, match="could not be computed"):
        await replicas.warmer.warm(NEW, model(), [view("a")])


def test_a_beginning_of_a_chosen_prefix_is_left_out_and_shared_tokens_count_once() -> None:
    prefixes = [Prefix([1, 2, 3], 9), Prefix([1, 2], 8), Prefix([1, 2, 4], 7), Prefix([5, 6], 6)]
    assert choose(prefixes, 4) == [[1, 2, 3], [1, 2, 4]]
    assert choose(prefixes, 6) == [[1, 2, 3], [1, 2, 4], [5, 6]]


@settings(max_examples=40)
@given(st.lists(st.builds(Prefix, st.lists(st.integers(1, 3), max_size=5), st.integers(1, 9))), st.integers(0, 12))
def test_chosen_prefixes_fit(prefixes: list[Prefix], max_tokens: int) -> None:
    chosen = choose(prefixes, max_tokens)
    different = {tuple(ids[:length]) for ids in chosen for length in range(1, len(ids) + 1)}
    assert len(different) <= max_tokens
    assert all(ids in [prefix.input_ids for prefix in prefixes] for ids in chosen)
