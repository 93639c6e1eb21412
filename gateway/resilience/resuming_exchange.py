"""An exchange that outlives its worker: a stream that breaks is continued by another one (--resume-streams).

Only requests that `continuation_of` lets through become one; the client then sees one stream, without a seam.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import orjson

from common.errors import HttpFault
from gateway.proxy.downstream import Downstream
from gateway.proxy.exchange import Exchange
from gateway.proxy.fetch import Fetcher, FetchError
from gateway.proxy.forwarder import Forwarder
from gateway.proxy.http1 import Headers, ResponseHead
from gateway.proxy.inbound import Inbound
from gateway.proxy.upstream import Failure, FailureKind
from gateway.resilience.continuation import Continuation, continuation_of
from gateway.resilience.outcomes import RETRIED_STATUSES, Outcome, outcome_of, rest_of
from gateway.resilience.resumable_stream import ResumableStream

_COUNT_TIMEOUT_S = 5.0  # at most; it takes milliseconds
_CAUSE = "resume"  # label of the metric that counts retries

# (worker's URL, text, time-out in seconds) -> tokens, None if it does not count them; raises FetchError
TokenCounter = Callable[[str, str, float], Awaitable[int | None]]


class ResumingExchange(Exchange):
    """One streamed request that may move to another worker after its first byte."""

    __slots__ = ("_changes", "_count", "_counting", "_stream", "_weights")

    def __init__(
        self,
        forwarder: Forwarder,
        inbound: Inbound,
        downstream: Downstream,
        continuation: Continuation,
        count: TokenCounter,
    ) -> None:
        super().__init__(forwarder, inbound, downstream)
        self._stream = ResumableStream(continuation)
        self._changes = forwarder.weight_changes.mark()
        self._weights = ""  # of the worker that began to answer
        self._count = count
        self._counting = False  # the next worker is asked how many tokens there are so far

    def on_head(self, head: ResponseHead) -> None:
        if self._status:
            self._on_next_head(head)
            return
        inbound = self.inbound
        super().on_head(head)
        if self._gate is not None and head.status == 200:
            assert self.choice is not None
            self._gate, self.inbound, self._weights = self._stream, inbound, self.choice.worker.weights

    def on_fail(self, failure: Failure) -> None:
        if self._gate is not self._stream or failure.kind is FailureKind.STALE:
            super().on_fail(failure)
            return
        self._connection = None
        assert self.choice is not None
        self._forwarder.note_failure(self.choice.worker, failure)
        self._go_elsewhere(failure, Outcome.REPLICA_FAULT)

    def worker_silent(self) -> None:
        if self._gate is not self._stream:
            super().worker_silent()
        elif (self._connection is not None or self._counting) and self._resumable:
            self._retried(_CAUSE, Outcome.REPLICA_FAULT)

    @property
    def _resumable(self) -> bool:
        """Not while weights change, so that `WorkerView.weights` say by which ones the rest would be."""
        return self._stream.resumable and self._forwarder.weight_changes.same_since(self._changes)

    def _on_next_head(self, head: ResponseHead) -> None:
        """The worker that takes over answers."""
        if head.status == 200 and head.event_stream:
            assert self._ticket is not None
            self._ticket.prefilled()
            self._progress_s = self._forwarder.clock.now_s()
            return
        if head.status in RETRIED_STATUSES:
            self._rest_s = rest_of(head.headers)
        failure = Failure(FailureKind.CUT, f"the next worker answered {head.status}")
        self._go_elsewhere(failure, outcome_of(head.status))

    def _go_elsewhere(self, failure: Failure, outcome: Outcome) -> None:
        """Complete the stream, or let another worker do so, or break it off."""
        ending = self._stream.ending()
        if ending is not None:
            self._complete(ending, outcome, failure.kind.value)
        elif outcome is Outcome.CLIENT_FAULT or not self._resumable or not self._retried(_CAUSE, outcome):
            self._break_off(failure, outcome)
        else:
            self._progress_s = self._forwarder.clock.now_s()

    def _dispatch(self, *, fresh: bool) -> None:
        if self._status:
            self._forwarder.spawn(self._dispatch_rest(fresh=fresh))
        else:
            super()._dispatch(fresh=fresh)

    async def _dispatch_rest(self, *, fresh: bool) -> None:
        """Ask the chosen worker for the rest of the answer."""
        assert self.choice is not None
        stream, choice = self._stream, self.choice
        if choice.worker.weights != self._weights:
            self._give_up("the next worker has other weights")
            return
        self._counting = True
        try:
            counted = stream.needs_count and stream.text
            tokens = await self._count(choice.worker.url, stream.text, self._time_to_count_s()) if counted else 0
        except FetchError as error:
            if not self.done and self.choice is choice:
                self._counting = False
                self.on_fail(error.failure)
            return
        if self.done or self.choice is not choice:  # the client left, or the worker was given up meanwhile
            return
        self._counting = False
        if tokens is None:
            self._give_up("the next worker does not count tokens")
            return
        body = stream.resume(tokens)
        self._scan_usage = False  # what the next worker tells is of a longer prompt than routing knows
        if body is not None:
            self.inbound = msgspec.structs.replace(self.inbound, body=body)
            super()._dispatch(fresh=fresh)
            return
        ending = stream.ending(at_limit=True)
        if ending is not None:
            self._complete(ending, Outcome.SERVED, "")
        else:
            self._give_up("the worker left before it told the usage")

    def _time_to_count_s(self) -> float:
        """No longer than this stream may be silent, and than it may take in all."""
        limits = self._forwarder.timeouts
        left_s = self.start_s + limits.total_s - self._forwarder.clock.now_s()
        return max(min(_COUNT_TIMEOUT_S, limits.idle_s, left_s), 0.0)

    def _give_up(self, message: str) -> None:
        """For a reason that is no fault of the worker at hand."""
        self._break_off(Failure(FailureKind.CUT, message), Outcome.CLIENT_FAULT)

    def _refuse(
        self, fault: HttpFault, outcome: Outcome = Outcome.CLIENT_FAULT, retry_after_s: int | None = None
    ) -> None:
        if self._status:
            self._give_up(fault.message)
        else:
            super()._refuse(fault, outcome, retry_after_s)


class ResumingExchanges:
    """Makes exchanges: resuming ones where the request allows it."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def __call__(self, forwarder: Forwarder, inbound: Inbound, downstream: Downstream) -> Exchange:
        continuation = continuation_of(inbound.endpoint, inbound.body) if inbound.route.stream else None
        if continuation is None:
            return Exchange(forwarder, inbound, downstream)

        keys = [item for item in inbound.head.headers if item[0] == b"authorization"]

        async def count(url: str, text: str, timeout_s: float) -> int | None:
            return await count_tokens(self._fetcher, url, continuation.model, text, keys, timeout_s)

        return ResumingExchange(forwarder, inbound, downstream, continuation, count)


async def count_tokens(
    fetcher: Fetcher, url: str, model: object, text: str, keys: Headers, timeout_s: float
) -> int | None:
    """How many tokens the worker takes `text` for; None if it has no /tokenize that says so. Raises FetchError.

    `keys`: the client's authorization, if it gave one.
    """
    body = orjson.dumps({"model": model, "prompt": text, "add_special_tokens": False})
    headers = [(b"content-type", b"application/json"), *keys]
    answer = await fetcher.fetch(url, "/tokenize", timeout_s=timeout_s, method="POST", headers=headers, body=body)
    try:
        count = orjson.loads(answer.body)["count"] if answer.status == 200 else None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        count = None
    return count if type(count) is int else None
