"""From what the processes tell to what the page shows: rows, points, and the difference between two moments. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from gateway.console.messages import Point, Row, Slice, Totals
from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import LoadReport, WorkerView
from gateway.resilience.guard import Standing

WINDOW = 10  # points that a TTFT percentile or a hit rate looks back on


SPEED_S = 5.0  # what a worker's tokens a second look back on


class Speeds:
    """Tokens a second of each worker, by how many it had generated at each report of the last seconds.

    What a worker itself calls its throughput is 0 while it writes only short answers.
    """

    def __init__(self) -> None:
        self._told: dict[str, deque[tuple[float, int]]] = {}  # by URL: when, how many

    def of(self, url: str, report: LoadReport | None) -> float | None:
        """The speed as of this report; its own word where there is nothing to compare."""
        if report is None:
            return None
        told = self._told.setdefault(url, deque())
        now = (report.received_s, report.generated_tokens)
        if told and now[1] < told[-1][1]:  # it started anew
            told.clear()
        if not told or now[0] > told[-1][0]:
            told.append(now)
        while now[0] - told[0][0] > SPEED_S:
            told.popleft()
        elapsed_s = told[-1][0] - told[0][0]
        if not report.generated_tokens or not elapsed_s:
            return round(report.gen_throughput, 1)
        return round((told[-1][1] - told[0][1]) / elapsed_s, 1)

    def keep(self, urls: Collection[str]) -> None:
        """Forget all others."""
        for url in self._told.keys() - set(urls):
            del self._told[url]


def rows(snapshot: Snapshot, slices: Sequence[Slice], speeds: Speeds) -> dict[str, Row]:
    """All workers by URL, in the registry's order."""
    speeds.keep([worker.url for worker in snapshot.workers])
    in_flight: Counter[str] = Counter()
    for one in slices:
        in_flight.update(one.in_flight)
    return {worker.url: _row(worker, in_flight[worker.url], speeds) for worker in snapshot.workers}


def _row(worker: WorkerView, in_flight: int, speeds: Speeds) -> Row:
    report = worker.load.report
    pool_tokens = (report.max_total_tokens if report is not None else 0) or worker.identity.max_total_tokens
    return Row(
        url=worker.url,
        name=worker.name,
        model=worker.model,
        state=worker.status.value,
        note=worker.message,
        breaker=worker.guard.breaker.state.value,
        resting=worker.guard.standing is Standing.RESTING,
        in_flight=in_flight,
        running=report.running_requests if report is not None else None,
        waiting=report.waiting_requests if report is not None else None,
        usage=round(report.token_usage, 3) if report is not None else None,
        pool_tokens=pool_tokens or None,
        hit_rate=round(report.cache_hit_rate, 3) if report is not None else None,
        tokens_per_s=speeds.of(worker.url, report),
    )


def changed(old: Mapping[str, Row], new: Mapping[str, Row]) -> list[dict[str, Any]]:
    """What of the rows is new: `url` and the fields that differ; all fields of a new row."""
    changes = []
    for url, row in new.items():
        before = old.get(url)
        if before is None:
            changes.append(msgspec.structs.asdict(row))
        elif before != row:
            fields = ((name, getattr(row, name)) for name in Row.__struct_fields__)
            changes.append({"url": url} | {name: value for name, value in fields if value != getattr(before, name)})
    return changes


class Series:
    """Makes points: remembers the counters of the moment before, and what the last ten seconds brought."""

    def __init__(self) -> None:
        self._totals: dict[int, Totals] = {}  # by process
        self._at = 0.0
        self._ttfts_s: deque[list[float]] = deque(maxlen=WINDOW)
        self._tokens: deque[tuple[int, int]] = deque(maxlen=WINDOW)  # prompt, cached

    def point(self, at: float, slices: Mapping[int, Slice], workers: Mapping[str, Row]) -> Point:
        """The fleet at Unix time `at`. Of a process that is new, what it counted before is left out."""
        gained = [_gained(self._totals.get(index), one.totals) for index, one in slices.items()]
        elapsed_s = max(at - self._at, 1e-3)
        self._totals, self._at = {index: one.totals for index, one in slices.items()}, at
        self._ttfts_s.append([ttft_s for one in slices.values() for ttft_s in one.ttfts_s])
        self._tokens.append((sum(g.prompt_tokens for g in gained), sum(g.cached_tokens for g in gained)))
        ttfts_ms = sorted(1000 * ttft_s for some in self._ttfts_s for ttft_s in some)
        prompt_tokens, cached_tokens = (sum(column) for column in zip(*self._tokens, strict=True))
        speeds = [row.tokens_per_s for row in workers.values() if row.tokens_per_s is not None]
        reasons: Counter[str] = Counter()
        for one in gained:
            reasons.update(one.choices)
        return Point(
            at=round(at, 3),
            ttft_p50_ms=quantile(ttfts_ms, 0.5),
            ttft_p95_ms=quantile(ttfts_ms, 0.95),
            tokens_per_s=round(sum(speeds), 1) if speeds else None,
            requests_per_s=round(sum(g.requests for g in gained) / elapsed_s, 1),
            errors_per_s=round(sum(g.errors for g in gained) / elapsed_s, 2),
            in_flight=sum(sum(one.in_flight.values()) for one in slices.values()),
            queued=sum(one.queued for one in slices.values()),
            hit_rate=round(cached_tokens / prompt_tokens, 3) if prompt_tokens else None,
            reasons={reason: number for reason, number in reasons.items() if number},
        )


def _gained(before: Totals | None, now: Totals) -> Totals:
    """What was counted since `before`; a process that has started anew counts from zero."""
    if before is None or now.requests < before.requests:
        return Totals()
    return Totals(
        requests=now.requests - before.requests,
        errors=now.errors - before.errors,
        prompt_tokens=now.prompt_tokens - before.prompt_tokens,
        cached_tokens=now.cached_tokens - before.cached_tokens,
        choices={reason: number - before.choices.get(reason, 0) for reason, number in now.choices.items()},
    )


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest-rank quantile of rising numbers, to a tenth; None of none."""
    return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 1) if ordered else None
