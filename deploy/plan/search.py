"""Which fleet sizes to try next: up in strides until one is enough, then between what is enough and what is not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice

from deploy.plan.fleet import FleetSpec
from deploy.plan.workload import Workload
from worker.engine.sim.step_time import TOKEN_KNOTS

_STRIDE = 1.5
_LOOKED_AT = 2000  # requests whose lengths the first guess is made from
_SHARED_BY = 64  # decodes of a step, in the first guess


def next_sizes(enough: Mapping[int, bool], *, low: int, high: int, start: int, at_once: int) -> list[int]:
    """At most `at_once` sizes from `low` to `high` that are worth a trial now; none: the answer is known. `enough`:
    what trials have shown; one replica more is taken never to make a fleet worse."""
    good = min((size for size, is_enough in enough.items() if is_enough), default=None)
    bad = max((size for size, is_enough in enough.items() if not is_enough), default=low - 1)
    if good is None:
        if bad >= high:
            return []
        first = max(min(start, high), low) if bad < low else min(math.ceil(bad * _STRIDE), high)
        sizes = [first]
        while len(sizes) < at_once and sizes[-1] < high:
            sizes.append(min(max(math.ceil(sizes[-1] * _STRIDE), sizes[-1] + 1), high))
        return sizes
    between = good - bad - 1
    if between <= 0:
        return []
    if bad < low and between > at_once:  # nothing failed yet: down in strides too
        return sorted({max(int(good / _STRIDE**stride), low) for stride in range(1, at_once + 1)})
    parts = min(at_once, between) + 1
    return sorted({bad + (good - bad) * part // parts for part in range(1, parts)})


def first_guess(spec: FleetSpec, workload: Workload) -> int:
    """Replicas that the work itself would keep busy, without waiting, sharing or caching."""
    costs, device_s, seen = spec.profile.costs, 0.0, 0
    token_s = sum(costs.token_slopes_s[: len(TOKEN_KNOTS)])
    for ask in islice(workload.asks(0.0, math.inf), _LOOKED_AT):
        context = ask.prompt_tokens + ask.output_tokens / 2
        decode_s = costs.every_step_s / _SHARED_BY + costs.sequence_s + costs.context_token_s * context
        device_s += ask.prompt_tokens * (token_s + costs.chunk_pair_s * ask.prompt_tokens / 2)
        device_s += ask.output_tokens * decode_s
        seen += 1
    per_s = workload.num_requests / max(workload.duration_s, 1e-9)
    return max(math.ceil(per_s * device_s / max(seen, 1) / spec.worker.sim_speed), 1)
