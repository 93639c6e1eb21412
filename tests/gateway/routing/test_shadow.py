"""The shadow policy: it is asked, counted and never obeyed."""

from __future__ import annotations

import random

import pytest

from gateway.config import GatewaySettings
from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity
from gateway.routing.factory import make_policy
from gateway.routing.policy import RouteRequest
from gateway.routing.router import Router
from gateway.routing.shadow import ShadowTally
from tests.helpers.clock import FakeClock


def router_of(policy: str, shadow: str | None) -> tuple[Router, ShadowTally | None]:
    registry = Registry()
    for name in "abcd":
        registry.add(f"http://{name}:80", source="test", name=name, identity=Identity(model="m"))
        registry.ready(f"http://{name}:80")
    settings = GatewaySettings(policy=policy, shadow_policy=shadow)
    made, tally = make_policy(settings, FakeClock(), random.Random(1))
    return Router(registry, made), tally


def asked(rounds: int = 10) -> list[RouteRequest]:
    texts = [bytes([65 + number]) * 4096 for number in range(9)]
    return [RouteRequest("m", text, len(text)) for _ in range(rounds) for text in texts]


def names(router: Router) -> list[str]:
    found = []
    for request in asked():
        choice = router.route(request)
        choice.worker.load.begin(choice.uncached_tokens, None).end()
        router.policy.served(choice, 1024, choice.cached_tokens, 10)
        found.append(choice.worker.name)
    return found


@pytest.mark.parametrize("shadow", ["cache_aware", "least_load", "manual", "random"])
def test_the_acting_policy_is_not_disturbed(shadow: str) -> None:
    alone, watched = router_of("round_robin", None)[0], router_of("round_robin", shadow)[0]
    assert names(alone) == names(watched)


def test_it_tells_what_would_have_been_hit() -> None:
    router, tally = router_of("round_robin", "cache_aware")
    names(router)
    assert tally is not None
    assert (tally.acting, tally.shadow, tally.choices) == ("round_robin", "cache_aware", 90)
    assert tally.prompt_tokens == 90 * 1024
    # Round robin over 4 workers meets each of 9 texts at every worker once before it hits.
    assert tally.acting_cached_tokens == (90 - 36) * 1024
    assert tally.shadow_cached_tokens == (90 - 9) * 1024
    assert 0 < tally.agreements < 90


def test_two_of_the_same_agree_always() -> None:
    router, tally = router_of("cache_aware", "cache_aware")
    names(router)
    assert tally is not None
    assert tally.agreements == tally.choices
    assert tally.acting_cached_tokens == tally.shadow_cached_tokens


def test_failures_reach_the_shadow_where_they_tell_something() -> None:
    router, _ = router_of("cache_aware", "cache_aware")
    choice = router.route(asked()[0])
    router.policy.failed(choice)
    again = router.route(asked()[0])
    assert again.known_blocks == 0
    assert again.shadow is not None and again.shadow.known_blocks == 0
