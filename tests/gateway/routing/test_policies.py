"""Policies that do not read prompts, and the router around all of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from common.settings import load
from gateway.config import GatewaySettings
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity
from gateway.routing.factory import make_policy
from gateway.routing.policy import RouteRequest
from gateway.routing.router import RouteFault, Router
from gateway.routing.simple import LeastLoad, PowerOfTwo, RoundRobin
from gateway.settings.routing import POLICIES
from tests.helpers.clock import FakeClock


def registry_of(names: str, model: str = "m") -> Registry:
    registry = Registry()
    for name in names:
        registry.add(f"http://{name}:80", source="test", name=name, identity=Identity(model=model))
        registry.ready(f"http://{name}:80")
    return registry


def router_of(policy: str, names: str = "abc") -> Router:
    settings = GatewaySettings(policy=policy)
    made, _ = make_policy(settings, FakeClock(), random.Random(1))
    return Router(registry_of(names), made)


ASK = RouteRequest(model="m")


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_spreads_requests_without_text(policy: str) -> None:
    router = router_of(policy)
    names = []
    for _ in range(300):
        choice = router.route(ASK)
        choice.worker.load.begin(0, None)
        names.append(choice.worker.name)
    assert all(70 <= names.count(name) <= 130 for name in "abc")


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=20)
@given(tried=st.sets(st.sampled_from("abc")))
def test_tried_workers_are_never_chosen_again(policy: str, tried: set[str]) -> None:
    router = router_of(policy)
    urls = [f"http://{name}:80" for name in tried]
    if len(tried) == 3:
        with pytest.raises(RouteFault) as caught:
            router.route(ASK, urls)
        assert caught.value.status == 503
    else:
        assert {router.route(ASK, urls).worker.name for _ in range(20)} <= set("abc") - tried
    assert (router.another_after_s(ASK, urls, 0.0) is not None) == (len(tried) < 3)


def test_round_robin_takes_turns_per_model() -> None:
    registry = registry_of("ab")
    registry.add("http://z:80", source="test", name="z", identity=Identity(model="other"))
    registry.ready("http://z:80")
    router = Router(registry, RoundRobin())
    names = [router.route(RouteRequest(model=model)).worker.name for model in ("m", "other", "m", "other", "m")]
    assert names == ["a", "z", "b", "z", "a"]


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=6))
def test_least_load_takes_the_least_loaded(loads: list[int]) -> None:
    registry = registry_of("abcdef"[: len(loads)])
    for worker, load_ in zip(registry.snapshot.workers, loads, strict=True):
        for _ in range(load_):
            worker.load.begin(0, None)
    chosen = Router(registry, LeastLoad()).route(ASK).worker
    assert chosen.load.inflight == min(loads)


def test_power_of_two_never_takes_the_worst() -> None:
    registry = registry_of("abc")
    for _ in range(5):
        registry.snapshot.workers[1].load.begin(0, None)
    router = Router(registry, PowerOfTwo(random.Random(3)))
    assert {router.route(ASK).worker.name for _ in range(50)} == {"a", "c"}


@pytest.mark.parametrize(
    ("model", "status", "param"), [("other", 404, "model"), (None, 0, None), ("m", 0, None), ("default", 0, None)]
)
def test_models_of_one_model_gateway(model: str | None, status: int, param: str | None) -> None:
    router = router_of("round_robin")
    if not status:
        assert router.route(RouteRequest(model=model)).worker.name == "a"
        return
    with pytest.raises(RouteFault) as caught:
        router.route(RouteRequest(model=model))
    assert (caught.value.status, caught.value.param) == (status, param)


def test_no_model_with_several_is_400() -> None:
    registry = registry_of("a")
    registry.add("http://z:80", source="test", identity=Identity(model="other"))
    for model in (None, "default"):
        with pytest.raises(RouteFault) as caught:
            Router(registry, RoundRobin()).route(RouteRequest(model=model))
        assert (caught.value.status, caught.value.param) == (400, "model")
        assert "m, other" in caught.value.message


def test_a_known_model_without_ready_worker_is_503() -> None:
    registry = registry_of("a")
    registry.degrade("http://a:80", "x")
    for model in ("m", None):
        with pytest.raises(RouteFault) as caught:
            Router(registry, RoundRobin()).route(RouteRequest(model=model))
        assert caught.value.status == 503


def test_while_a_worker_has_not_told_its_model_nothing_is_unknown() -> None:
    registry = registry_of("a")
    registry.add("http://new:80", source="test")
    with pytest.raises(RouteFault) as caught:
        Router(registry, RoundRobin()).route(RouteRequest(model="other"))
    assert caught.value.status == 503


@pytest.mark.parametrize("flag", ["--policy", "--shadow-policy"])
def test_other_policies_are_refused_with_a_sentence(flag: str) -> None:
    with pytest.raises(UserError) as caught:
        load(GatewaySettings, [flag, "nonsense"], {}, prog="canopy gateway")
    assert f"{flag} 'nonsense'" in str(caught.value) and "cache_aware" in str(caught.value)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("sticky", "manual"), ("consistent_hash", "consistent_hashing"), ("cache-aware", "cache_aware")],
)
def test_policies_have_second_names(written: str, meant: str) -> None:
    loaded = load(GatewaySettings, ["--policy", written, "--shadow-policy", written], {}, prog="canopy gateway")
    assert (loaded.settings.policy, loaded.settings.shadow_policy) == (meant, meant)


def test_every_named_policy_can_be_made() -> None:
    for policy in POLICIES:
        router_of(policy)


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=30)
@given(asked=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), min_size=1, max_size=12))
def test_what_is_explained_is_what_would_be_done(policy: str, asked: list[tuple[int, int, bool]]) -> None:
    """And asking changes nothing: a router that was never asked chooses the same."""
    explained, silent = router_of(policy), router_of(policy)
    for text, key, stays in asked:
        raw = bytes([97 + text]) * 1024
        request = RouteRequest("m", raw, len(raw), key=b"k%d" % key if key else b"")
        offers = explained.explain(request)
        assert sorted(offer.worker.name for offer in offers) == list("abc")
        assert explained.explain(request) == offers
        names = []
        for router in (explained, silent):
            choice = router.route(request)
            ticket = choice.worker.load.begin(choice.uncached_tokens, None)
            if not stays:
                ticket.end()
            names.append(choice.worker.name)
        assert names == [offers[0].worker.name] * 2


@pytest.mark.parametrize("target", ["b", "http://b:80", "1"])
def test_a_client_may_name_its_worker(target: str) -> None:
    router = router_of("round_robin")
    asked = RouteRequest("m", target=target)
    assert {router.route(asked).worker.name for _ in range(5)} == {"b"}
    assert [offer.worker.name for offer in router.explain(asked)] == ["b"]
    assert router.another_after_s(asked, ["http://b:80"], 0.0) is None
    with pytest.raises(RouteFault) as caught:
        router.route(asked, ["http://b:80"])
    assert caught.value.status == 503


@pytest.mark.parametrize("target", ["x", "3", "99999999999", ""])
def test_a_worker_that_is_not_there_is_not_replaced(target: str) -> None:
    router = router_of("round_robin")
    if not target:
        assert router.route(RouteRequest("m", target=target)).worker.name == "a"
        return
    with pytest.raises(RouteFault) as caught:
        router.route(RouteRequest("m", target=target))
    assert (caught.value.status, caught.value.code) == (503, "target_not_ready")
