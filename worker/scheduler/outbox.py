"""News for the frontend, gathered during a step and sent as one message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from common.clock import Clock
from worker.ipc.messages import FinishReason, RequestTimes, SchedulerMessage, StepOutput, TokenDelta, TokenScore
from worker.scheduler.request import Request


class Outbox:
    """Collects news until `flush`. Between two of them a request's plain tokens come before its deltas."""

    def __init__(self, emit: Callable[[SchedulerMessage], None], clock: Clock) -> None:
        self._emit = emit
        self._clock = clock
        self._deltas: list[TokenDelta] = []
        self._rids: list[str] = []
        self._tokens: list[int] = []

    def add(
        self,
        request: Request,
        token_ids: list[int],
        num_outputs: int,
        finish: FinishReason | None,
        scores: Sequence[TokenScore] = (),
        vector: bytes = b"",
    ) -> None:
        """News of one request with `num_outputs` outputs, `token_ids` included; `scores` are theirs, if asked for.
        `vector`: what it gets in place of tokens."""
        self._deltas.append(
            TokenDelta(
                rid=request.rid,
                token_ids=token_ids,
                prompt_tokens=request.prompt_len,
                cached_tokens=request.cached_tokens,
                completion_tokens=num_outputs,
                finish=finish,
                queue_time_s=request.queue_time_s,
                num_retractions=request.num_retractions,
                scores=list(scores),
                prompt_scores=request.prompt_scores if num_outputs == len(token_ids) else [],
                times=self._times(request, num_outputs) if request.traced else None,
                vector=vector,
            )
        )

    def _times(self, request: Request, num_outputs: int) -> RequestTimes:
        now_s = self._clock.now_s()
        if num_outputs and not request.first_token_s:
            request.first_token_s = now_s
        admitted_s = request.arrival_s + request.queue_time_s if request.admitted else 0.0
        return RequestTimes(request.arrival_s, admitted_s, request.first_token_s, now_s)

    def add_tokens(self, rids: list[str], tokens: list[int]) -> None:
        """One new token each for requests that go on and have had a delta since they were admitted."""
        self._rids += rids
        self._tokens += tokens

    def refuse(self, rid: str, prompt_len: int, status: int, message: str, param: str | None) -> None:
        """End a request that never entered the queue."""
        reason = FinishReason(kind="abort", status=status, message=message, param=param)
        self._deltas.append(
            TokenDelta(
                rid=rid, token_ids=[], prompt_tokens=prompt_len, cached_tokens=0, completion_tokens=0, finish=reason
            )
        )

    def flush(self) -> None:
        """Send what there is."""
        if self._deltas or self._rids:
            message = StepOutput(deltas=self._deltas, rids=self._rids, tokens=self._tokens)
            self._deltas, self._rids, self._tokens = [], [], []
            self._emit(message)
