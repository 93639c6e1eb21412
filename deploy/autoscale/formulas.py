"""Every formula of the autoscaler, with its unit. Demand is counted in replicas: 2.3 means that 2.3 are needed.

Prefill is a queue with one server in each replica, so the share of time in which steps with prefill run is its
utilisation, whatever the model, the hardware and the prompts; TTFT grows without bound as it nears 1. Decodes need
pages of the KV pool and places in the batch. What a replica needs is the scarcest of the three; what a fleet needs is
the sum, because work that one replica sheds another one takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_ROUNDING = 1e-9  # replicas; so that 3.0000000001 are 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """How full a replica should be. Shares are of 1."""

    prefill_share: float = 0.65  # of time in steps with prefill
    token_usage: float = 0.8  # of the KV pool
    running_share: float = 0.9  # of max_running_requests
    clear_s: float = 20.0  # a queue should be gone in this time


def prefill_demand(prefill_share: float, queue_growth_tokens_per_s: float, speed_tokens_per_s: float) -> float:
    """Replicas kept wholly busy by the prompts that arrive: those computed, and those by which the queue grew.

    share [1] + growth [tokens/s] / speed [tokens/s]. A speed of 0 is not known yet: the queue then counts for nothing.
    """
    growth = max(0.0, queue_growth_tokens_per_s)
    return prefill_share + (growth / speed_tokens_per_s if speed_tokens_per_s > 0 else 0.0)


def backlog_demand(waiting_tokens: float, speed_tokens_per_s: float, clear_s: float) -> float:
    """Replicas that clear the queue in `clear_s`: tokens / (tokens/s * s)."""
    return waiting_tokens / (speed_tokens_per_s * clear_s) if speed_tokens_per_s > 0 else 0.0


def replica_demand(prefill: float, token_usage: float, running_share: float, targets: Targets) -> float:
    """Replicas needed for what one replica does now: its scarcest resource, each over how full it should be."""
    return max(
        prefill / targets.prefill_share, token_usage / targets.token_usage, running_share / targets.running_share
    )


def prefill_speed(uncached_tokens: float, prefill_s: float) -> float:
    """Prompt tokens computed in a second of steps with prefill, tokens/s; 0 if there were none."""
    return uncached_tokens / prefill_s if prefill_s > 0 else 0.0


def wanted(demand: float) -> int:
    """Whole replicas for a demand."""
    return math.ceil(demand - _ROUNDING)


def beyond_noise(demand: float, margin: float) -> float:
    """What of a momentary demand counts at once, in replicas: with a margin of 0.25, 4 replicas' worth of 5."""
    return demand / (1.0 + margin)


def fits_one_fewer(demand: float, replicas: int, hysteresis: float) -> bool:
    """Whether `replicas` - 1 would carry the demand with a share `hysteresis` [1] to spare."""
    return demand <= (replicas - 1) * (1.0 - hysteresis) + _ROUNDING


def cache_value(cached_tokens: float, hit_tokens: float, prompt_tokens: float) -> float:
    """What a replica's prefix cache is worth, in tokens: those it holds, times the share of recent prompt tokens that
    it served from them. A full cache nobody asks for is worth nothing, nor is a good hit rate on a few tokens."""
    return cached_tokens * hit_tokens / prompt_tokens if prompt_tokens > 0 else 0.0
