"""Every live request of this replica: its answers so far and who waits for them. All of it lives on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count

import msgspec

from common.clock import Clock
from common.logs import REQUEST_ID, about_request
from worker.ipc.messages import (
    AbortRequest,
    FrontendMessage,
    GenerateRequest,
    StepOutput,
    StopMatched,
    TokenDelta,
)
from worker.server.answers import Answer
from worker.server.errors import RequestFault
from worker.server.metrics import RequestMetrics
from worker.server.request_log import RequestLog
from worker.server.served_weights import ServedWeights
from worker.server.tokenizer import TextCodec
from worker.server.tracing import CURRENT_TRACE

log = logging.getLogger(__name__)

CLIENT_GONE = 499  # status of a request whose client left; nobody sees it


class Generation:
    """The sequences of one client request. Its handler waits on `updates` or `finished`; use it as a context manager,
    so that leaving early aborts what still runs."""

    def __init__(self, streams: Streams, id_: str, answers: Sequence[Answer], interval_tokens: int | None) -> None:
        self.id = id_  # the client's, or ours if it gave none
        self.answers = answers
        self._streams = streams
        self._interval_tokens = interval_tokens  # of news between two wake-ups; None: only ends wake
        self._ready: dict[int, None] = {}  # answers with news, in their order of arrival
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort(CLIENT_GONE, "The client left.")

    async def updates(self) -> AsyncIterator[Answer]:
        """Answers that have something to read or have ended; each ended one comes once more, last."""
        open_answers = len(self.answers)
        while open_answers:
            while not self._ready:
                await self._wait()
            answer = self.answers[self._take_first()]
            open_answers -= answer.finish is not None
            yield answer

    async def finished(self) -> None:
        """Wait until every answer has ended."""
        async for _ in self.updates():
            pass

    def abort(self, status: int, message: str) -> None:
        """End what still runs, here and in the scheduler."""
        for answer in self.answers:
            if answer.finish is None:
                self._streams.abort_answer(answer, status, message)

    def notify(self, answer: Answer) -> None:
        """Called by Streams when an answer has news."""
        if answer.finish is None:
            interval = self._interval_tokens and (answer.interval_tokens or self._interval_tokens)
            if interval is None or (answer.read_tokens and answer.unread_tokens < interval):
                return
        self._ready[answer.index] = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take_first(self) -> int:
        index = next(iter(self._ready))
        del self._ready[index]
        return index

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Streams:
    """Owner of the live sequences; the only sender of GenerateRequest, AbortRequest and StopMatched.

    The scheduler knows a sequence by an id that is never used again: news of one that a client has aborted, still on
    their way, cannot be taken for those of another to which the client gave the same id.
    """

    def __init__(
        self,
        send: Callable[[FrontendMessage], None],
        tokenizer: TextCodec,
        metrics: RequestMetrics,
        request_log: RequestLog,
        clock: Clock,
        stream_interval_tokens: int,
        weights: ServedWeights,
    ) -> None:
        self._send = send
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._request_log = request_log
        self._clock = clock
        self._stream_interval_tokens = stream_interval_tokens
        self._weights = weights
        self._serial = count()
        self._live: dict[str, tuple[Answer, Generation]] = {}  # by the scheduler's id
        self._by_id: dict[str, Answer] = {}  # by the client's
        self._groups: dict[str, Generation] = {}  # by their id, which may differ from the rids of their sequences
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_live(self) -> int:
        """Sequences that have not ended."""
        return len(self._live)

    def start(self, group_id: str, requests: Sequence[GenerateRequest], *, stream: bool) -> Generation:
        """Send sequences to the scheduler. Raises RequestFault if one of the ids is in use."""
        used = next((r for r in (group_id, *(q.rid for q in requests)) if r in self._groups or r in self._by_id), None)
        if used is not None:
            raise RequestFault(400, f"The request id {used!r} is in use.", param="rid")
        now_s, request_id, trace = self._clock.now_s(), REQUEST_ID.get(), CURRENT_TRACE.get()
        pipeline = self._tokenizer.pipeline
        answers = [
            Answer(
                r.rid,
                self._renamed(r, traced=trace is not None),
                i,
                pipeline(r.sampling),
                now_s,
                self._weights,
                request_id=request_id,
                streamed=stream,
            )
            for i, r in enumerate(requests)
        ]
        if trace is not None:
            trace.sent(answers, now_s)
        generation = Generation(self, group_id, answers, self._stream_interval_tokens if stream else None)
        self._groups[group_id] = generation
        self._idle.clear()
        for answer in answers:
            self._live[answer.request.rid] = (answer, generation)
            self._by_id[answer.id] = answer
            self._request_log.received(answer)
            self._send(answer.request)
        return generation

    def deliver(self, output: StepOutput) -> None:
        """Hand one step's news to their requests. News of a request that has ended here are dropped."""
        now_s = self._clock.now_s()
        for rid, token in zip(output.rids, output.tokens, strict=True):
            self._deliver(rid, token, now_s)
        for delta in output.deltas:
            self._deliver(delta.rid, delta, now_s)

    def _deliver(self, rid: str, news: TokenDelta | int, now_s: float) -> None:
        """`news` is a delta, or one token."""
        entry = self._live.get(rid)
        if entry is None:
            return
        answer, generation = entry
        try:
            self._take(answer, news, now_s)
        except Exception:  # one request's text must not take the others down
            log.exception("Cannot make text of request %s", rid, extra=about_request(answer.request_id))
            self.abort_answer(answer, 500, "The server could not make text of the answer; its log says why.")
            return
        generation.notify(answer)
        if answer.finish is not None:
            self._end(answer)

    def abort(self, rid: str) -> None:
        """End a client's request, or one sequence, by its exact id. An unknown id is ignored."""
        if (generation := self._groups.get(rid)) is not None:
            generation.abort(400, "The request was aborted.")
        elif (answer := self._by_id.get(rid)) is not None:
            self.abort_answer(answer, 400, "The request was aborted.")

    def abort_all(self, status: int, message: str) -> None:
        """End every request."""
        for answer, _ in list(self._live.values()):
            self.abort_answer(answer, status, message)

    def abort_answer(self, answer: Answer, status: int, message: str) -> None:
        """End one live sequence from our side and tell the scheduler."""
        _, generation = self._live[answer.request.rid]
        self._send(AbortRequest(rid=answer.request.rid))
        answer.abort(status, message)
        self._end(answer)
        generation.notify(answer)

    def expire_after(self, timeout_s: float, generation: Generation, message: str) -> None:
        """End a generation with status 503 unless it ends within `timeout_s`."""
        asyncio.get_running_loop().call_later(timeout_s, generation.abort, 503, message)

    async def wait_idle(self) -> None:
        """Wait until no sequence is live."""
        await self._idle.wait()

    def _take(self, answer: Answer, news: TokenDelta | int, now_s: float) -> None:
        before_s, had = answer.last_s, len(answer.output_ids)
        told_end = False
        if isinstance(news, int):
            answer.take_token(news, now_s)
        else:
            answer.take(news, now_s)
            told_end = news.finish is not None
        new = len(answer.output_ids) - had
        if (new and not had) or answer.vector:
            answer.first_s = now_s
            self._metrics.on_first_token(now_s - answer.started_s, answer.queue_time_s, stream=answer.streamed)
        elif new:
            self._metrics.on_tokens(now_s - before_s, new)
        if answer.finish is not None and not told_end:
            self._send(StopMatched(rid=answer.request.rid, num_output_tokens=len(answer.output_ids)))

    def _end(self, answer: Answer) -> None:
        _, generation = self._live.pop(answer.request.rid)
        del self._by_id[answer.id]
        assert answer.finish is not None
        e2e_s = self._clock.now_s() - answer.started_s
        self._request_log.finished(answer, e2e_s)
        self._metrics.on_end(answer, e2e_s)
        if all(other.finish is not None for other in generation.answers):
            del self._groups[generation.id]
        if not self._live:
            self._idle.set()

    def _renamed(self, request: GenerateRequest, *, traced: bool) -> GenerateRequest:
        return msgspec.structs.replace(request, rid=f"{request.rid}#{next(self._serial)}", traced=traced)
