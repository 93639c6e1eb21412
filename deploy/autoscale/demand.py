"""From load reports to the demand of a fleet, in replicas. Keeps the last seconds of them; time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deploy.autoscale import formulas
from deploy.autoscale.formulas import Targets
from deploy.autoscale.signals import within
from deploy.fleet.scaling import ReplicaLoad

_SPEED_MEMORY_S = 120.0  # seconds of prefill that the learnt speed reaches back
_SAME_S = 0.01  # reports nearer to each other are one
_VALUE_MEMORY_S = 300.0  # seconds of hits that a cache is valued by


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a fleet needs, as far as its reports tell.

    `missing`: ready replicas without a fresh report. `ttft_share`: of the answers begun in the window, those within
    the target; None without a target or answers.
    """

    replicas: float
    missing: int = 0
    ttft_share: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """A load, and when it was reported."""

    at_s: float
    load: ReplicaLoad


class DemandMeter:
    """Owner of the reports. `window_s`: over which rates are taken; a report older than `stale_s` is missing."""

    def __init__(
        self,
        targets: Targets,
        *,
        window_s: float = 20.0,
        stale_s: float = 10.0,
        ttft_target_s: float | None = None,
    ) -> None:
        self._targets = targets
        self._window_s = window_s
        self._stale_s = stale_s
        self._ttft_target_s = ttft_target_s
        self._seen: dict[str, deque[Report]] = {}  # by incarnation, oldest first; one of them before the window
        self._caches: dict[str, _CacheUse] = {}
        self._speed = _Speed()

    def measure(self, now_s: float, ready: Iterable[str], reports: Mapping[str, Report]) -> Demand:
        """Demand now. `ready`: incarnations that serve; `reports`: the latest of each, known or not."""
        present = list(ready)
        self._take(now_s, present, reports)
        fresh = [i for i in present if i in self._seen and now_s - self._seen[i][-1].at_s <= self._stale_s]
        total = sum(self._needs(self._seen[i]) for i in fresh)
        return Demand(replicas=total, missing=len(present) - len(fresh), ttft_share=self._ttft_share(fresh))

    def cache_values(self) -> dict[str, float]:
        """Worth of each replica's prefix cache in tokens, by incarnation. Those without a report are not in it."""
        return {i: self._caches[i].value(seen[-1].load) for i, seen in self._seen.items()}

    def _take(self, now_s: float, present: list[str], reports: Mapping[str, Report]) -> None:
        self._seen = {i: seen for i, seen in self._seen.items() if i in present}
        self._caches = {i: use for i, use in self._caches.items() if i in present}
        for incarnation in present:
            report = reports.get(incarnation)
            if report is None or report.load.incarnation != incarnation:
                continue
            seen = self._seen.setdefault(incarnation, deque())
            use = self._caches.setdefault(incarnation, _CacheUse())
            if seen:
                if report.at_s - seen[-1].at_s < _SAME_S:
                    continue
                self._speed.learn(seen[-1].load, report.load)
                use.learn(seen[-1], report)
            seen.append(report)
            while len(seen) > 2 and seen[1].at_s <= now_s - self._window_s:
                seen.popleft()

    def _needs(self, seen: deque[Report]) -> float:
        first, last = seen[0], seen[-1]
        load, speed = last.load, self._speed.tokens_per_s
        misses = _miss_share(first.load, load)
        share = growth = 0.0
        if (elapsed_s := last.at_s - first.at_s) > 0:
            share = min(1.0, (load.prefill_s_total - first.load.prefill_s_total) / elapsed_s)
            growth = misses * (load.waiting_tokens - first.load.waiting_tokens) / elapsed_s
        running = (load.running_requests + load.waiting_requests) / max(1, load.max_running_requests)
        prefill = formulas.prefill_demand(share, growth, speed)
        return formulas.replica_demand(prefill, load.token_usage, running, self._targets) + formulas.backlog_demand(
            misses * load.waiting_tokens, speed, self._targets.clear_s
        )

    def _ttft_share(self, fresh: Iterable[str]) -> float | None:
        if self._ttft_target_s is None:
            return None
        good = begun = 0.0
        for incarnation in fresh:
            seen = self._seen[incarnation]
            one_good, one_begun = within(seen[0].load, seen[-1].load, self._ttft_target_s)
            good, begun = good + one_good, begun + one_begun
        return good / begun if begun > 0 else None


def _miss_share(first: ReplicaLoad, last: ReplicaLoad) -> float:
    """Of the prompt tokens admitted between two reports, those that had to be computed; 1 if there were none."""
    prompt = last.prompt_tokens_total - first.prompt_tokens_total
    cached = last.cached_tokens_total - first.cached_tokens_total
    return 1.0 - cached / prompt if prompt > 0 else 1.0


class _Speed:
    """Prefill speed of the fleet's replicas, tokens/s; forgets at the pace of prefill, not of the clock."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._prefill_s = 0.0

    @property
    def tokens_per_s(self) -> float:
        return formulas.prefill_speed(self._tokens, self._prefill_s)

    def learn(self, before: ReplicaLoad, after: ReplicaLoad) -> None:
        prefill_s = after.prefill_s_total - before.prefill_s_total
        tokens = (after.prompt_tokens_total - after.cached_tokens_total) - (
            before.prompt_tokens_total - before.cached_tokens_total
        )
        if prefill_s <= 0 or tokens < 0:
            return
        kept = max(0.0, 1.0 - prefill_s / _SPEED_MEMORY_S)
        self._tokens = self._tokens * kept + tokens
        self._prefill_s = self._prefill_s * kept + prefill_s


class _CacheUse:
    """Recent prompt and hit tokens of one replica; what is old fades."""

    def __init__(self) -> None:
        self._prompt = 0.0
        self._hits = 0.0

    def learn(self, before: Report, after: Report) -> None:
        kept = max(0.0, 1.0 - (after.at_s - before.at_s) / _VALUE_MEMORY_S)
        a, b = before.load, after.load
        self._prompt = self._prompt * kept + b.prompt_tokens_total - a.prompt_tokens_total
        self._hits = self._hits * kept + b.cached_tokens_total - a.cached_tokens_total

    def value(self, load: ReplicaLoad) -> float:
        return formulas.cache_value(load.used_tokens + load.evictable_tokens, self._hits, self._prompt)
