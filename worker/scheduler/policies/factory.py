"""The policy that --schedule-policy names."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

from worker.cache.prefix import PrefixCache
from worker.scheduler.policies.base import QueuePolicy
from worker.scheduler.policies.cache_agnostic import FirstComeFirstServed, LongestOutputFirst, RandomOrder
from worker.scheduler.policies.dfs_weight import DepthFirstByWeight
from worker.scheduler.policies.longest_prefix import LongestPrefixMatch

PolicyName = Literal["fcfs", "lpm", "dfs-weight", "lof", "random", "priority"]


def make_policy(name: PolicyName, cache: PrefixCache, draw_seed: Callable[[], int]) -> QueuePolicy:
    """The policy of a name. Without a prefix cache there is nothing to match, so those that match are fcfs. `priority`
    is fcfs too: the queue itself keeps a lane for each priority."""
    match name:
        case "lpm" if cache.enabled:
            return LongestPrefixMatch(cache)
        case "dfs-weight" if cache.enabled:
            return DepthFirstByWeight(cache)
        case "lof":
            return LongestOutputFirst()
        case "random":
            return RandomOrder(random.Random(draw_seed()))
        case _:
            return FirstComeFirstServed()
