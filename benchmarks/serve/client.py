"""Sends one request and measures its answer. HTTP by aiohttp: its parser is C, and load must cost little."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from benchmarks.serve.workloads import Ask
from common.clock import Clock

_EVENT = b"data: "


@dataclass(frozen=True, slots=True)
class Api:
    """How a backend is spoken to: path, and whether the fields are SGLang's own or OpenAI's."""

    path: str
    native: bool


BACKENDS = {
    "canopy": Api("/generate", native=True),
    "sglang": Api("/generate", native=True),
    "sglang-oai": Api("/v1/completions", native=False),
    "vllm": Api("/v1/completions", native=False),
}


@dataclass(slots=True)
class Outcome:
    """One request. Times in seconds; `itls_s` are the gaps between stream events after the first that carries a token.
    Without streaming the first token counts as arriving with the last."""

    success: bool = False
    error: str = ""
    begin_s: float = 0.0
    ttft_s: float = 0.0
    latency_s: float = 0.0
    itls_s: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    retractions: int = 0


@dataclass(frozen=True, slots=True)
class Client:
    """Sends asks to one base URL. Shares the session, and closes nothing."""

    session: aiohttp.ClientSession
    base_url: str
    api: Api
    model: str
    stream: bool
    extra: dict[str, Any]
    clock: Clock

    async def send(self, ask: Ask) -> Outcome:
        """The answer's times and counts; a failure is an outcome too."""
        outcome = Outcome(begin_s=self.clock.now_s(), input_tokens=len(ask.input_ids))
        try:
            async with self.session.post(
                self.base_url + self.api.path,
                data=orjson.dumps(self._fields(ask)),
                headers={"content-type": "application/json"},
            ) as response:
                if response.status != 200:
                    outcome.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                elif self.stream:
                    await self._read_stream(response, outcome)
                else:
                    self._count(outcome, orjson.loads(await response.read()))
                    outcome.success = not outcome.error
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            outcome.error = f"{type(error).__name__}: {error}"
            outcome.success = False
        outcome.latency_s = self.clock.now_s() - outcome.begin_s
        if not self.stream:
            outcome.ttft_s = outcome.latency_s
        if outcome.success and outcome.output_tokens != ask.output_tokens and self.extra_ignores_eos:
            outcome.success, outcome.error = False, f"{outcome.output_tokens} tokens came, not {ask.output_tokens}"
        return outcome

    @property
    def extra_ignores_eos(self) -> bool:
        """Whether answers must be as long as asked for."""
        return bool(self.extra.get("ignore_eos"))

    def _fields(self, ask: Ask) -> dict[str, Any]:
        if self.api.native:
            sampling = {"max_new_tokens": ask.output_tokens, **self.extra}
            return {"input_ids": ask.input_ids, "sampling_params": sampling, "stream": self.stream, "model": self.model}
        fields = {"model": self.model, "prompt": ask.input_ids, "max_tokens": ask.output_tokens, "stream": self.stream}
        return fields | self.extra | ({"stream_options": {"include_usage": True}} if self.stream else {})

    async def _read_stream(self, response: aiohttp.ClientResponse, outcome: Outcome) -> None:
        last_s = 0.0
        async for event in _events(response):
            now_s = self.clock.now_s()
            if event == b"[DONE]":
                outcome.success = not outcome.error
                break
            fields = orjson.loads(event)
            if not self._count(outcome, fields):
                continue
            if last_s == 0.0:
                outcome.ttft_s = now_s - outcome.begin_s
            else:
                outcome.itls_s.append(now_s - last_s)
            last_s = now_s
        if not outcome.success and not outcome.error:
            outcome.error = "The stream ended without [DONE]."

    def _count(self, outcome: Outcome, fields: dict[str, Any]) -> bool:
        """Take the counts of an answer or event. Returns whether it carries tokens."""
        if "error" in fields:
            outcome.error = str(fields["error"])[:200]
            return False
        if self.api.native:
            meta = fields["meta_info"]
            grown = int(meta["completion_tokens"]) > outcome.output_tokens
            outcome.output_tokens = int(meta["completion_tokens"])
            outcome.cached_tokens = int(meta.get("cached_tokens", 0))
            outcome.retractions = int(meta.get("num_retractions", 0))
            return grown
        usage = fields.get("usage")
        if usage:
            outcome.output_tokens = int(usage["completion_tokens"])
            outcome.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
        return bool(fields.get("choices"))


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The data of each server-sent event."""
    async for line in response.content:
        if line.startswith(_EVENT):
            yield line[len(_EVENT) :].rstrip()
