"""Policy names to policies."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

from common.clock import Clock
from gateway.config import GatewaySettings
from gateway.kv_events.exact_index import ExactIndex
from gateway.routing.bucket import Bucket
from gateway.routing.cache_aware import CacheAware
from gateway.routing.hashing import ConsistentHashing, PrefixHash
from gateway.routing.longest_prefix import LongestPrefix
from gateway.routing.manual import Assignment, Manual
from gateway.routing.policy import Policy
from gateway.routing.prefix_index import BLOCK_BYTES
from gateway.routing.prefix_knowledge import PrefixKnowledge
from gateway.routing.prices import Prices
from gateway.routing.shadow import Shadow, ShadowTally
from gateway.routing.simple import LeastLoad, PowerOfTwo, Random, RoundRobin

Maker = Callable[[GatewaySettings, Clock, random.Random, ExactIndex | None], Policy]


def make_policy(
    settings: GatewaySettings, clock: Clock, rng: random.Random, exact: ExactIndex | None = None
) -> tuple[Policy, ShadowTally | None]:
    """The policy of --policy; with --shadow-policy wrapped, and with what the other one would have hit. `exact`: what
    workers say that they hold, in exact mode."""
    acting = _MAKERS[settings.policy](settings, clock, rng, exact)
    if settings.shadow_policy is None:
        return acting, None
    other = _MAKERS[settings.shadow_policy](settings, clock, random.Random(rng.random()), exact)
    knowledge = [_knowledge(settings, settings.prefix_index_bytes // 2) for _ in range(2)]
    tally = ShadowTally(settings.policy, settings.shadow_policy)
    return Shadow(acting, other, knowledge[0], knowledge[1], tally, clock), tally


def _knowledge(settings: GatewaySettings, max_bytes: int, exact: ExactIndex | None = None) -> PrefixKnowledge:
    return PrefixKnowledge(max_bytes, Prices(), max(settings.max_tree_size // BLOCK_BYTES, 1), exact)


def _cache_aware(settings: GatewaySettings, clock: Clock, rng: random.Random, exact: ExactIndex | None) -> Policy:
    return CacheAware(
        _knowledge(settings, settings.prefix_index_bytes, exact),
        clock,
        rng,
        Prices(),
        min_match=settings.cache_threshold,
        hot_requests=settings.balance_abs_threshold,
        hot_factor=settings.balance_rel_threshold,
    )


def _manual(settings: GatewaySettings, clock: Clock, rng: random.Random, exact: ExactIndex | None) -> Policy:
    return Manual(
        clock,
        rng,
        assignment=Assignment(settings.assignment_mode),
        max_idle_s=settings.sticky_idle_s,
        sweep_interval_s=settings.eviction_interval_s,
    )


def _bucket(settings: GatewaySettings, clock: Clock, rng: random.Random, exact: ExactIndex | None) -> Policy:
    return Bucket(clock, abs_threshold=settings.balance_abs_threshold, rel_threshold=settings.balance_rel_threshold)


_MAKERS: Mapping[str, Maker] = MappingProxyType(
    {
        "cache_aware": _cache_aware,
        "longest_prefix": lambda settings, clock, rng, exact: LongestPrefix(
            _knowledge(settings, settings.prefix_index_bytes, exact), clock
        ),
        "least_load": lambda settings, clock, rng, exact: LeastLoad(),
        "power_of_two": lambda settings, clock, rng, exact: PowerOfTwo(rng),
        "round_robin": lambda settings, clock, rng, exact: RoundRobin(),
        "random": lambda settings, clock, rng, exact: Random(rng),
        "consistent_hashing": lambda settings, clock, rng, exact: ConsistentHashing(rng),
        "prefix_hash": lambda settings, clock, rng, exact: PrefixHash(),
        "manual": _manual,
        "bucket": _bucket,
    }
)
