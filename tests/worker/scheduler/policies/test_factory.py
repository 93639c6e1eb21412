"""The policy of each name, with and without a prefix cache."""

from __future__ import annotations

import pytest

from worker.cache.no_prefix import NoPrefixCache
from worker.cache.radix import RadixCache
from worker.scheduler.policies.cache_agnostic import FirstComeFirstServed, LongestOutputFirst, RandomOrder
from worker.scheduler.policies.dfs_weight import DepthFirstByWeight
from worker.scheduler.policies.factory import PolicyName, make_policy
from worker.scheduler.policies.longest_prefix import LongestPrefixMatch


@pytest.mark.parametrize(
    ("name", "kind", "without_cache"),
    [
        ("fcfs", FirstComeFirstServed, FirstComeFirstServed),
        ("lpm", LongestPrefixMatch, FirstComeFirstServed),
        ("dfs-weight", DepthFirstByWeight, FirstComeFirstServed),
        ("lof", LongestOutputFirst, LongestOutputFirst),
        ("random", RandomOrder, RandomOrder),
        ("priority", FirstComeFirstServed, FirstComeFirstServed),
    ],
)
def test_policy_by_name(name: PolicyName, kind: type, without_cache: type) -> None:
    assert type(make_policy(name, RadixCache(1), lambda: 0)) is kind
    assert type(make_policy(name, NoPrefixCache(1), lambda: 0)) is without_cache
