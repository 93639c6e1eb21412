"""Policy names to policies."""

from __future__ import annotations

import random

from common.clock import Clock
from gateway.config import GatewaySettings
from gateway.routing.cache_aware import CacheAware
from gateway.routing.policy import Policy
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.prices import Prices
from gateway.routing.simple import LeastLoad, PowerOfTwo, Random, RoundRobin


def make_policy(settings: GatewaySettings, clock: Clock, rng: random.Random) -> Policy:
    """The policy of --policy."""
    match settings.policy:
        case "cache_aware":
            return CacheAware(PrefixIndex(settings.prefix_index_bytes), clock, Prices())
        case "round_robin":
            return RoundRobin()
        case "random":
            return Random(rng)
        case "power_of_two":
            return PowerOfTwo(rng)
        case "least_load":
            return LeastLoad()
    raise AssertionError(f"settings let the unknown policy {settings.policy!r} pass")
