"""The frontend's questions to the scheduler and the scheduler's messages to the frontend."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from msgspec.structs import replace

from worker.ipc.messages import (
    CallAnswer,
    CallReply,
    ContinueGeneration,
    FlushCache,
    FrontendMessage,
    GetHotPrefixes,
    GetLoad,
    HotPrefix,
    HotPrefixes,
    LoadReport,
    PauseGeneration,
    ProfileCall,
    SchedulerCall,
    StartProfile,
    StopProfile,
    UpdateWeights,
    WeightsUpdated,
)
from worker.server.errors import RequestFault

_PROFILE_TIMEOUT_S = 60.0
_ANSWER_TIMEOUT_S = 10.0  # the scheduler answers between two steps, and a step may be long


class SchedulerClient:
    """Asks and waits for the answer with the same call id. `receive` gets every answer that arrives. After `end` all
    calls, those under way too, raise RequestFault (503)."""

    def __init__(self, send: Callable[[FrontendMessage], None]) -> None:
        self._send = send
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[CallAnswer]] = {}
        self._ended: str | None = None  # why nobody answers any more

    async def load(self) -> LoadReport:
        """The scheduler's state in numbers. Raises RequestFault (503) if it does not answer."""
        report = await self._call(lambda call_id: GetLoad(call_id=call_id))
        assert isinstance(report, LoadReport)
        return report

    async def flush_cache(self) -> CallReply:
        """Empty the prefix cache; not ok while requests run or wait."""
        reply = await self._call(lambda call_id: FlushCache(call_id=call_id))
        assert isinstance(reply, CallReply)
        return reply

    async def hot_prefixes(self, max_tokens: int) -> list[HotPrefix]:
        """The most hit prefixes of the cache. Raises RequestFault (503) if the scheduler does not answer."""
        answer = await self._call(lambda call_id: GetHotPrefixes(call_id=call_id, max_tokens=max_tokens))
        assert isinstance(answer, HotPrefixes)
        return answer.prefixes

    async def pause(self, *, retract: bool) -> None:
        """Have nothing computed until `go_on`. Raises RequestFault (503) if the scheduler does not answer."""
        await self._call(lambda call_id: PauseGeneration(call_id=call_id, retract=retract))

    async def go_on(self) -> None:
        """End a pause. Raises RequestFault (503) if the scheduler does not answer."""
        await self._call(lambda call_id: ContinueGeneration(call_id=call_id))

    async def update_weights(self, asked: UpdateWeights) -> WeightsUpdated | CallReply:
        """Have the weights replaced, however long it takes; not ok if they stay as they were."""
        answer = await self._call(lambda call_id: replace(asked, call_id=call_id), timeout_s=None)
        assert isinstance(answer, WeightsUpdated | CallReply)
        return answer

    async def start_profile(self, asked: StartProfile) -> CallReply:
        """Have the next steps recorded; not ok if that cannot be. The first start in a process takes seconds."""
        reply = await self._call(lambda call_id: replace(asked, call_id=call_id), timeout_s=_PROFILE_TIMEOUT_S)
        assert isinstance(reply, CallReply)
        return reply

    async def stop_profile(self) -> CallReply:
        """Have what was recorded written, however long it takes; not ok if nothing is recorded."""
        reply = await self._call(lambda call_id: StopProfile(call_id=call_id), timeout_s=None)
        assert isinstance(reply, CallReply)
        return reply

    def receive(self, answer: CallAnswer) -> None:
        """Take an answer. One that nobody waits for any more is dropped."""
        future = self._pending.get(answer.call_id)
        if future is not None and not future.done():
            future.set_result(answer)

    def end(self, message: str) -> None:
        """The scheduler answers nothing more, for the reason given."""
        self._ended = message
        for future in self._pending.values():
            if not future.done():
                future.set_exception(RequestFault(503, message))

    async def _call(
        self,
        message: Callable[[int], SchedulerCall | UpdateWeights | ProfileCall],
        timeout_s: float | None = _ANSWER_TIMEOUT_S,
    ) -> CallAnswer:
        if self._ended is not None:
            raise RequestFault(503, self._ended)
        call_id = next(self._ids)
        future = self._pending[call_id] = asyncio.get_running_loop().create_future()
        self._send(message(call_id))
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise RequestFault(503, f"The scheduler did not answer within {timeout_s:.0f} s.") from None
        finally:
            del self._pending[call_id]
