"""The constants of cache_aware, in one place, with where they come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Everything is turned into seconds until this request's first token, plus what it costs others.

    Values without a physical meaning were fitted on the simulated session workload of tests/helpers/gateway_sim.py, at
    caches of 30,000, 15,000 and 8,000 tokens a worker; halving or doubling any of them changes little.
    """

    prefill_tokens_per_s: float = 8000.0  # of a worker nothing is known of; learned from streamed answers
    bytes_per_token: float = 4.0  # of prompt text, until answers tell
    running_tokens: float = 200.0  # a request in flight slows others down like so much prefill
    over_capacity_s: float = 1.0  # for each request beyond the worker's max_running_requests: it will queue
    displacement: float = 8.0  # prefill seconds that later requests pay per second's worth of text displaced
    reuse_s: float = 10.0  # age at which text is half as likely to be used again; learned from reuse seen
    equal_share: float = 0.05  # prices that differ by less than this share ...
    equal_s: float = 0.001  # ... and this time are equal: the least busy worker gets the request
    learning_rate: float = 0.1  # of the running averages
    capacity_share: float = 0.95  # of a worker's pool that prompts fill; the rest is for answers being written
    min_learning_tokens: int = 256  # shorter prefills tell little about speed
    evidence_age_s: float = 2.0  # a block touched less long ago may still be in the making: its absence proves nothing
