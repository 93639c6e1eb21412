"""Which cached prefix goes first when the pool is full: --radix-eviction-policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

# Requests that must have started on a prefix for slru to count it as proven (SGLang: SLRUStrategy.protected_threshold).
SLRU_PROVEN_HITS = 2

EvictionPolicyName = Literal["lru", "lfu", "slru", "priority"]


class Usage(Protocol):
    """What is known about the use of a run of cached pages. None of it ever decreases."""

    last_use: int  # counts accesses to the cache
    hits: int  # requests that started on it
    priority: int  # highest of the requests that stored or extended it; higher stays longer


# The smallest goes first. It must not decrease while its Usage grows: the cache corrects old values when it meets them.
EvictionOrder = Callable[[Usage], tuple[int, int]]


def _lru(usage: Usage) -> tuple[int, int]:
    """Least recently used first."""
    return (0, usage.last_use)


def _lfu(usage: Usage) -> tuple[int, int]:
    """Fewest hits first."""
    return (usage.hits, usage.last_use)


def _slru(usage: Usage) -> tuple[int, int]:
    """Prefixes not proven by hits first."""
    return (int(usage.hits >= SLRU_PROVEN_HITS), usage.last_use)


def _priority(usage: Usage) -> tuple[int, int]:
    """Prefixes of the least urgent requests first."""
    return (usage.priority, usage.last_use)


EVICTION_ORDERS: dict[EvictionPolicyName, EvictionOrder] = {
    "lru": _lru,
    "lfu": _lfu,
    "slru": _slru,
    "priority": _priority,
}
