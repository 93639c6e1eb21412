"""What one gateway process notes for the console: recent choices, how they ended, first tokens.

It looks on only while somebody keeps asking; a few seconds later it takes itself out of the data path.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from gateway.console.messages import Decision, Event, FirstToken, Outcome, Slice, Totals
from gateway.fleet.registry import Registry
from gateway.proxy.exchange import Exchange
from gateway.proxy.forwarder import Forwarder
from gateway.routing.policy import Choice

LEASE_S = 5.0  # of looking on, from each question
MAX_EVENTS = 120  # in one answer; the newest
_KEPT_EVENTS = 256
_KEPT_TTFTS = 1024


@dataclass(slots=True)
class _Attempt:
    """One that runs."""

    key: str
    number: int
    start_s: float
    ttft_s: float | None = None


class Recorder:
    """An ExchangeObserver. `process`: the number of this process among the gateway's. `wall_s`: Unix time."""

    def __init__(
        self, forwarder: Forwarder, registry: Registry, process: int, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._forwarder = forwarder
        self._registry = registry
        self._process = process
        self._wall_s = wall_s
        self._until_s = float("-inf")
        self._numbers = count(int(wall_s() * 1e6))  # larger than any of an earlier life of this process
        self._upto = next(self._numbers)
        self._events: deque[tuple[int, Event]] = deque(maxlen=_KEPT_EVENTS)
        self._ttfts: deque[tuple[int, float]] = deque(maxlen=_KEPT_TTFTS)
        self._attempts: dict[Exchange, _Attempt] = {}

    @property
    def looks_on(self) -> bool:
        """Whether the data path calls us."""
        return self in self._forwarder.observers

    def slice(self, since: int) -> Slice:
        """What came after `since` (an earlier answer's `upto`; 0: all there is), and look on from now."""
        self._until_s = self._forwarder.clock.now_s() + LEASE_S
        if not self.looks_on:
            self._forwarder.observers += (self,)
        in_flight = {w.url: w.load.inflight for w in self._registry.snapshot.workers if w.load.inflight}
        metrics = self._forwarder.metrics
        answers = metrics.answers
        totals = Totals(
            requests=sum(answers.values()),
            errors=sum(number for (_, status), number in answers.items() if status >= 500),
            prompt_tokens=metrics.prompt_tokens,
            cached_tokens=metrics.cached_tokens,
            choices=dict(metrics.choices),
        )
        return Slice(
            upto=self._upto,
            events=[event for number, event in self._events if number > since][-MAX_EVENTS:],
            ttfts_s=[ttft_s for number, ttft_s in self._ttfts if number > since],
            in_flight=in_flight,
            queued=max(self._forwarder.inflight - sum(in_flight.values()), 0),
            totals=totals,
        )

    # --- ExchangeObserver -------------------------------------------------------------------------------------------

    def chose(self, exchange: Exchange, choice: Choice) -> None:
        now_s = self._forwarder.clock.now_s()
        if now_s > self._until_s:
            self._leave()
            return
        before = self._attempts.get(exchange)
        self._upto = number = next(self._numbers)
        attempt = _Attempt(f"{self._process}.{number}", before.number + 1 if before is not None else 1, now_s)
        self._attempts[exchange] = attempt
        decision = Decision(
            key=attempt.key,
            at=round(self._wall_s(), 3),
            request=exchange.inbound.request_id.decode("latin-1"),
            model=choice.worker.model,
            worker=choice.worker.name,
            reason=choice.reason,
            prompt=choice.prompt_tokens,
            cached=choice.cached_tokens,
            wait_ms=round(choice.wait_s * 1000, 1),
            stream=exchange.inbound.route.stream,
            attempt=attempt.number,
        )
        self._events.append((number, decision))

    def retried(self, exchange: Exchange, cause: str) -> None:
        attempt = self._attempts.get(exchange)
        if attempt is not None:
            self._note_end(attempt, 0)

    def first_token(self, exchange: Exchange, ttft_s: float) -> None:
        attempt = self._attempts.get(exchange)
        if attempt is not None:
            attempt.ttft_s = ttft_s
            self._upto = next(self._numbers)
            self._ttfts.append((self._upto, ttft_s))
            self._events.append((self._upto, FirstToken(attempt.key, round(ttft_s * 1000, 1))))

    def ended(self, exchange: Exchange, status: int) -> None:
        attempt = self._attempts.pop(exchange, None)
        if attempt is not None:
            self._note_end(attempt, status)

    def _note_end(self, attempt: _Attempt, status: int) -> None:
        self._upto = next(self._numbers)
        ms = round((self._forwarder.clock.now_s() - attempt.start_s) * 1000, 1)
        ttft_ms = None if attempt.ttft_s is None else round(attempt.ttft_s * 1000, 1)
        self._events.append((self._upto, Outcome(attempt.key, status, ms, ttft_ms)))

    def _leave(self) -> None:
        """Nobody has asked for a while."""
        self._forwarder.observers = tuple(other for other in self._forwarder.observers if other is not self)
        self._attempts.clear()
