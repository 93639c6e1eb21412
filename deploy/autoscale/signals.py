"""Reads load reports: from the answer of GET /v1/loads to what the autoscaler works with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from deploy.fleet.scaling import ReplicaLoad


class BadReport(Exception):
    """The answer is no load report of ours."""


def replica_load(answer: Any) -> ReplicaLoad:
    """From the JSON of /v1/loads. Raises BadReport."""
    try:
        (entry,) = answer["loads"]
        totals, ttft = entry["totals"], answer["ttft"]
        return ReplicaLoad(
            incarnation=str(answer["incarnation"]),
            running_requests=int(entry["num_running_reqs"]),
            waiting_requests=int(entry["num_waiting_reqs"]),
            waiting_tokens=int(entry["num_waiting_tokens"]),
            used_tokens=int(entry["num_used_tokens"]),
            evictable_tokens=int(entry["num_evictable_tokens"]),
            max_total_tokens=int(entry["max_total_num_tokens"]),
            max_running_requests=int(entry["max_running_requests"]),
            token_usage=float(entry["token_usage"]),
            cache_hit_rate=float(entry["cache_hit_rate"]),
            prompt_tokens_total=int(totals["prompt_tokens_total"]),
            cached_tokens_total=int(totals["cached_tokens_total"]),
            prefill_s_total=float(totals["prefill_s_total"]),
            ttft_bounds_s=[float(bound) for bound in ttft["bounds_s"]],
            ttft_counts=[int(count) for count in ttft["counts"]],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadReport(f"not a load report of a replica: {error!r}") from None


def within(before: ReplicaLoad, after: ReplicaLoad, target_s: float) -> tuple[float, float]:
    """(answers begun within `target_s`, answers begun) between two reports of one process.

    Between two bounds the answers count as evenly spread, as in Prometheus' histogram_quantile; beyond the last bound
    they count as late.
    """
    grown = _differences(before.ttft_counts, after.ttft_counts)
    if not grown:
        return 0.0, 0.0
    bounds = [0.0, *after.ttft_bounds_s]
    for (low_s, high_s), (below, up_to) in zip(pairwise(bounds), pairwise([0.0, *grown[:-1]]), strict=True):
        if target_s < high_s:
            return below + (up_to - below) * (target_s - low_s) / (high_s - low_s), grown[-1]
    return ([0.0, *grown])[-2], grown[-1]


def _differences(before: Sequence[int], after: Sequence[int]) -> list[float]:
    if len(before) != len(after):
        return [float(count) for count in after]
    return [float(b - a) for a, b in zip(before, after, strict=True)]
