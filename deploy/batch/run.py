"""One run of a batch: sends what is not settled, as fast as the fleet can take it, and writes down what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from common.clock import Clock
from common.errors import UserError
from deploy.batch.connection import Answer, Broken, Connection, Unreachable, usage_of
from deploy.batch.contents import Contents
from deploy.batch.display import Display, Tally
from deploy.batch.journal import DiskFull, Journal
from deploy.batch.lines import Request, answer_line, error_line, response_of
from deploy.batch.steering import ReplicaLoad, Steering

_REPORT_EVERY_S = 0.25
_SYNC_EVERY_S = 5.0
_MAX_ATTEMPTS = 5  # of one request that breaks its connection or gets a 5xx
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 15.0
_REST_S = 1.0  # after back-pressure that does not say how long
_BUSY = (429, 503)


class GivenUp(Exception):
    """The gateway did not answer for too long. What was answered is in the output."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a run sends."""

    steer: bool
    patience_s: float


class BatchRun:
    """Owner of the requests in flight."""

    def __init__(
        self,
        contents: Contents,
        journal: Journal,
        connection: Connection,
        steering: Steering,
        display: Display,
        clock: Clock,
        rules: Rules,
    ) -> None:
        self._contents = contents
        self._journal = journal
        self._connection = connection
        self._steering = steering
        self._display = display
        self._clock = clock
        self._rules = rules
        self._loads: Sequence[ReplicaLoad] = ()
        self._room = asyncio.Event()
        self._heard_s = clock.now_s()  # when the gateway last answered anything
        self._away = False
        self.tally = Tally()

    async def run(self) -> None:
        """Until everything is settled. Raises UserError, GivenUp or DiskFull."""
        try:
            async with asyncio.TaskGroup() as helpers:
                tasks = [helpers.create_task(self._follow_load()), helpers.create_task(self._sync())]
                async with asyncio.TaskGroup() as requests:
                    for index, request in self._contents.requests(self._journal.settled):
                        await self._wait_for_room()
                        self._steering.on_sent()
                        requests.create_task(self._settle(index, request))
                for task in tasks:
                    task.cancel()
        except* (UserError, GivenUp, DiskFull) as group:
            raise _first(group) from None
        self._journal.sync()

    async def _wait_for_room(self) -> None:
        while not self._steering.may_send(self._clock.now_s()):
            self._room.clear()
            try:
                await asyncio.wait_for(self._room.wait(), _REPORT_EVERY_S)
            except TimeoutError:
                continue

    async def _settle(self, index: int, request: Request) -> None:
        """One request to its end."""
        try:
            await self._try(index, request)
        finally:
            self._steering.on_end()
            self._room.set()

    async def _try(self, index: int, request: Request) -> None:
        wait_s, attempts = _FIRST_WAIT_S, 0
        while True:
            try:
                answer = await self._connection.send(request)
            except Unreachable:
                self._is_away()
            except Broken as error:
                self._is_away()
                attempts += 1
                if attempts == _MAX_ATTEMPTS:
                    text = f"The connection broke {attempts} times: {error}"
                    return self._fail(index, error_line(request.custom_id, "connection", text))
            else:
                self._is_there()
                attempts += answer.status not in _BUSY
                if self._is_settled(index, request, answer, attempts):
                    return
                if answer.status in _BUSY:
                    wait_s = answer.retry_after_s or _REST_S
                    self._steering.rest(self._clock.now_s() + wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    def _is_settled(self, index: int, request: Request, answer: Answer, attempts: int) -> bool:
        if answer.status == 200:
            self._journal.answer(index, answer_line(request.custom_id, answer.request_id, 200, answer.body))
            prompt, cached, completion = usage_of(answer.body)
            self.tally.answered += 1
            self.tally.prompt_tokens += prompt
            self.tally.cached_tokens += cached
            self.tally.completion_tokens += completion
            return True
        if answer.status in _BUSY or (answer.status >= 500 and attempts < _MAX_ATTEMPTS):
            return False
        response = response_of(answer.request_id, answer.status, answer.body)
        text = f"The gateway answered {answer.status}."
        self._fail(index, error_line(request.custom_id, f"http_{answer.status}", text, response=response))
        return True

    def _fail(self, index: int, line: bytes) -> None:
        self._journal.fail(index, line)
        self.tally.failed += 1

    def _is_there(self) -> None:
        self._heard_s = self._clock.now_s()
        if self._away:
            self._away = False
            self._display.line("The gateway answers again.")

    def _is_away(self) -> None:
        """Raises GivenUp when it has been so for too long."""
        now_s = self._clock.now_s()
        self._steering.rest(now_s + _REST_S)
        if not self._away:
            self._away = True
            self._display.line("The gateway does not answer; waiting for it.")
        if now_s - self._heard_s > self._rules.patience_s:
            raise GivenUp(f"The gateway has not answered for {self._rules.patience_s:g} s (--patience-s)")

    async def _follow_load(self) -> None:
        while True:
            if self._rules.steer:
                try:
                    self._loads = await self._connection.loads()
                    self._is_there()
                except Unreachable:
                    self._loads = ()
                    self._is_away()
                self._steering.on_report(self._loads)
            else:
                self._steering.on_report([ReplicaLoad()])
            self._room.set()
            self._display.update(self.tally, self._loads, self._steering.in_flight)
            await asyncio.sleep(_REPORT_EVERY_S)

    async def _sync(self) -> None:
        while True:
            await asyncio.sleep(_SYNC_EVERY_S)
            await asyncio.to_thread(self._journal.sync)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
