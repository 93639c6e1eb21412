"""Drives a run: begins sessions when they are due, keeps the number in flight within its bound, collects outcomes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.serve.backends import Ask
from benchmarks.serve.client import Client
from benchmarks.serve.outcomes import Outcome
from benchmarks.serve.own_cost import OwnCost, measured
from benchmarks.serve.prompts import Prompt, answered, extended
from benchmarks.serve.workloads import Session


@dataclass(slots=True)
class Tally:
    """What is known while a run goes on; `outcomes` in order of their ends."""

    total: int
    sent: int = 0
    output_tokens: int = 0
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        """Requests whose answer is not over."""
        return self.sent - len(self.outcomes)


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is over. `begin_s` on the client's clock; `duration_s` from the first request's due time to the last
    answer's end."""

    outcomes: list[Outcome]
    planned: int
    begin_s: float
    duration_s: float
    own_cost: OwnCost

    @property
    def skipped(self) -> int:
        """Turns of conversations that were not sent, because an earlier one failed."""
        return self.planned - len(self.outcomes)


class Load:
    """One run. `due_s[i]` is when `sessions[i]` begins, ascending. `max_concurrency` bounds the requests in flight,
    None = no bound; a request that waits for room is sent late, and its latencies count from its sending."""

    def __init__(
        self, client: Client, sessions: Sequence[Session], due_s: Sequence[float], max_concurrency: int | None
    ) -> None:
        self._client = client
        self._sessions = sessions
        self._due_s = due_s
        self._room = asyncio.Semaphore(max_concurrency) if max_concurrency else None
        self.tally = Tally(sum(len(session.turns) for session in sessions))

    async def run(self) -> Run:
        """All outcomes. A failed turn ends its session."""
        clock = self._client.clock
        with _collected():
            async with measured() as cost:
                begin_s = clock.now_s()
                async with asyncio.TaskGroup() as tasks:
                    for number, (session, due_s) in enumerate(zip(self._sessions, self._due_s, strict=True)):
                        wait_s = begin_s + due_s - clock.now_s()
                        if wait_s > 0:
                            await asyncio.sleep(wait_s)
                        await self._enter()
                        tasks.create_task(self._play(session, begin_s + due_s, f"bench-{number}"))
                duration_s = clock.now_s() - begin_s
        return Run(self.tally.outcomes, self.tally.total, begin_s, duration_s, cost())

    async def _play(self, session: Session, due_s: float, name: str) -> None:
        """All turns; there is room for the first one already."""
        history: Prompt | None = None
        several = len(session.turns) > 1
        for number, turn in enumerate(session.turns):
            if number:
                due_s = self._client.clock.now_s() + turn.pause_s
                await asyncio.sleep(turn.pause_s)
                await self._enter()
            history = turn.prompt if history is None else extended(history, turn.prompt)
            ask = Ask(history, turn.output_tokens, turn.fields, name if several else None)
            outcome = await self._send(ask, due_s)
            if not outcome.success:
                return
            if several:
                history = answered(history, outcome)

    async def _send(self, ask: Ask, due_s: float) -> Outcome:
        self.tally.sent += 1
        try:
            outcome = await self._client.send(ask)
        finally:
            if self._room is not None:
                self._room.release()
        outcome.delay_s = max(0.0, outcome.begin_s - due_s)
        self.tally.outcomes.append(outcome)
        self.tally.output_tokens += outcome.output_tokens
        return outcome

    async def _enter(self) -> None:
        if self._room is not None:
            await self._room.acquire()


@contextmanager
def _collected() -> Iterator[None]:
    """Prompts are not looked through for garbage again and again while the run goes on."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
