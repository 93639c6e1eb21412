"""News for the frontend, gathered during a step and sent as one message."""

from __future__ import annotations

from collections.abc import Callable

from worker.ipc.messages import FinishReason, SchedulerMessage, StepOutput, TokenDelta
from worker.scheduler.request import Request


class Outbox:
    """Collects deltas until `flush`."""

    def __init__(self, emit: Callable[[SchedulerMessage], None]) -> None:
        self._emit = emit
        self._deltas: list[TokenDelta] = []

    def add(self, request: Request, token_ids: list[int], finish: FinishReason | None) -> None:
        """News of one request, whose `output_ids` already hold `token_ids`."""
        self._deltas.append(
            TokenDelta(
                rid=request.rid,
                token_ids=token_ids,
                prompt_tokens=request.prompt_len,
                cached_tokens=request.cached_tokens,
                completion_tokens=len(request.output_ids),
                finish=finish,
                queue_time_s=request.queue_time_s,
                num_retractions=request.num_retractions,
            )
        )

    def add_tokens(self, requests: list[Request], token_ids: list[int]) -> None:
        """One new token each for requests that go on. As `add`, without a call for each: it is the hottest loop."""
        self._deltas += [
            TokenDelta(
                rid=request.rid,
                token_ids=[token],
                prompt_tokens=request.prompt_len,
                cached_tokens=request.cached_tokens,
                completion_tokens=len(request.output_ids),
                queue_time_s=request.queue_time_s,
                num_retractions=request.num_retractions,
            )
            for request, token in zip(requests, token_ids, strict=True)
        ]

    def refuse(self, rid: str, prompt_len: int, status: int, message: str) -> None:
        """End a request that never entered the queue."""
        reason = FinishReason(kind="abort", status=status, message=message)
        self._deltas.append(
            TokenDelta(
                rid=rid, token_ids=[], prompt_tokens=prompt_len, cached_tokens=0, completion_tokens=0, finish=reason
            )
        )

    def flush(self) -> None:
        if self._deltas:
            deltas, self._deltas = self._deltas, []
            self._emit(StepOutput(deltas=deltas))
