"""The constants of cache_aware, in one place, with where they come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Everything is turned into seconds until this request's first token, plus what it costs others.

    Values without a physical meaning were fitted in virtual time (benchmarks/router_virtual.py) on the session workload
    at caches of 60,000 to 8,000 tokens a worker and on the two traces; halving or doubling any of them changes little.
    """

    prefill_tokens_per_s: float = 8000.0  # of a worker nothing is known of; learned from streamed answers
    bytes_per_token: float = 4.0  # of prompt text, until answers tell
    running_tokens: float = 200.0  # a request in flight slows others down like so much prefill
    over_capacity_s: float = 1.0  # for each request beyond the worker's max_running_requests: it will queue
    repeat: float = 1.5  # prefill weighs so much more than waiting (at workers with less to do than the mean: less)
    busy: float = 3.0  # ... and this much more times u / (1 - u), u: the worker's share of time spent on prefill lately
    balance_from: float = 0.05  # mean u from which on workers with less to do are wholly relieved of `repeat`
    recent_s: float = 30.0  # time constant of "lately"
    most_busy: float = 0.8  # bound on u
    displacement: float = 16.0  # prefill seconds that later requests pay per second's worth of text displaced
    reuse_s: float = 10.0  # age at which text is half as likely to be used again; learned from reuse seen
    equal_share: float = 0.05  # prices that differ by less than this share ...
    equal_s: float = 0.001  # ... and this time are equal: the least busy worker gets the request
    learning_rate: float = 0.1  # of the running averages
    capacity_share: float = 0.95  # of a worker's pool that prompts fill; the rest is for answers being written
    min_learning_tokens: int = 256  # shorter prompts tell little about the length of tokens or about speed
    speed_memory_s: float = 4.0  # of prefill that speeds are worked out from
    speed_prior_s: float = 0.5  # of prefill that the fleet's speed counts for in that of a worker
    first_prior_s: float = 0.1  # of prefill that the first guess counts for in the fleet's speed
    evidence_age_s: float = 2.0  # a block touched less long ago may still be in the making: its absence proves nothing
