"""Sends one request and measures its answer. HTTP by aiohttp, whose parser is C; events are cut here, once a read."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp
import orjson

from benchmarks.serve.backends import Api, Ask, Wishes
from benchmarks.serve.outcomes import Outcome
from benchmarks.serve.prompts import size
from common.clock import Clock

_EVENT = b"data:"
_DONE = b"[DONE]"


class EventCutter:
    """Server-sent events out of bytes that come cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def cut(self, data: bytes) -> list[bytes]:
        """The data of each event whose line is complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[len(_EVENT) :].strip() for line in lines if line.startswith(_EVENT)]


@dataclass(frozen=True, slots=True)
class Client:
    """Sends asks to one base URL. Shares the session, and closes nothing."""

    session: aiohttp.ClientSession
    base_url: str
    api: Api
    wishes: Wishes
    clock: Clock

    async def send(self, ask: Ask) -> Outcome:
        """The answer's times and counts; a failure is an outcome too."""
        body = orjson.dumps(self.api.body(ask, self.wishes), option=orjson.OPT_SERIALIZE_NUMPY)
        headers = {"content-type": "application/json"}
        if ask.session is not None:
            headers["x-session-id"] = ask.session
        outcome = Outcome(begin_s=self.clock.now_s(), input_tokens=size(ask.prompt))
        try:
            url = self.base_url + self.api.path
            async with self.session.post(url, data=body, headers=headers) as response:
                if response.status != 200:
                    outcome.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                elif self.wishes.stream:
                    await self._read_stream(response, outcome)
                else:
                    self.api.whole(await response.read(), outcome)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            outcome.error = f"{type(error).__name__}: {error}".rstrip(": ")
        except (ValueError, KeyError, TypeError) as error:
            outcome.error = f"The answer is not one of {self.api.path} ({type(error).__name__}: {error})."
        outcome.latency_s = self.clock.now_s() - outcome.begin_s
        if not self.wishes.stream:
            outcome.ttft_s = outcome.latency_s
        self._judge(ask, outcome)
        return outcome

    async def _read_stream(self, response: aiohttp.ClientResponse, outcome: Outcome) -> None:
        cutter, done, last, last_s = EventCutter(), False, b"", 0.0
        async for data in response.content.iter_any():
            now_s = self.clock.now_s()
            for event in cutter.cut(data):
                if event == _DONE:
                    done = True
                elif self.api.event(event, outcome):
                    if last_s == 0.0:
                        outcome.ttft_s = now_s - outcome.begin_s
                    else:
                        outcome.itls_s.append(now_s - last_s)
                    last, last_s = event, now_s
        self.api.ended(outcome, last)
        if not done and not outcome.error:
            outcome.error = "The stream ended without [DONE]."

    def _judge(self, ask: Ask, outcome: Outcome) -> None:
        """Whether it counts: no error, and as long as it had to be."""
        exact = self.wishes.ignore_eos and ask.output_tokens is not None
        if exact and not outcome.error and outcome.output_tokens != ask.output_tokens:
            outcome.error = (
                f"{outcome.output_tokens} tokens came, not {ask.output_tokens}; a server without ignore_eos needs "
                "--disable-ignore-eos."
            )
        outcome.success = not outcome.error
