"""What --log-requests writes: a line when a sequence arrives and one when it has ended.

Level 0 has ids and counts, 1 the sampling parameters too, 2 the start of prompt and answer too, 3 all of them. Keys and
salts are in no line.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from common.logs import JsonLine, to_json, utc
from worker.config import WorkerSettings
from worker.server.answers import Answer
from worker.server.tokenizer import TextCodec

START_CHARACTERS = 2048  # of prompt and answer at level 2; the same number of token ids where there is no text

log = logging.getLogger(__name__)

Content = str | list[int] | None


class _Event:
    """Base of the two lines: fields that are None are left out of the text."""

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
        return f"{type(self).__name__}: {shown}"


@dataclass(frozen=True, slots=True)
class RequestReceived(_Event):
    """A sequence goes to the scheduler."""

    rid: str
    request_id: str | None  # of the client's HTTP request
    prompt_tokens: int
    sampling_params: dict[str, Any] | None
    prompt: Content


@dataclass(frozen=True, slots=True)
class RequestFinished(_Event):
    """A sequence has ended: how, and after how long."""

    rid: str
    request_id: str | None
    finish_reason: str
    message: str | None  # of an abort
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    e2e_latency_s: float
    queue_time_s: float | None
    sampling_params: dict[str, Any] | None
    answer: Content


class RequestLog:
    """Writes the lines. `text_of` turns token ids into text; None: ids are logged."""

    def __init__(
        self,
        *,
        enabled: bool,
        level: int,
        log_format: Literal["text", "json"],
        text_of: Callable[[Sequence[int]], str] | None,
    ) -> None:
        self._enabled = enabled
        self._level = level
        self._json = log_format == "json"
        self._text_of = text_of

    def received(self, answer: Answer) -> None:
        """A sequence goes to the scheduler."""
        if not self._enabled:
            return
        ids = answer.request.input_ids
        self._write(
            RequestReceived(answer.id, answer.request_id or None, len(ids), self._sampling(answer), self._prompt(ids))
        )

    def finished(self, answer: Answer, e2e_s: float) -> None:
        """A sequence has ended."""
        if not self._enabled:
            return
        assert answer.finish is not None
        self._write(
            RequestFinished(
                rid=answer.id,
                request_id=answer.request_id or None,
                finish_reason=answer.finish.kind,
                message=answer.finish.message or None,
                prompt_tokens=answer.prompt_tokens,
                cached_tokens=answer.cached_tokens,
                completion_tokens=len(answer.output_ids),
                e2e_latency_s=round(e2e_s, 4),
                queue_time_s=None if answer.last is None else round(answer.last.queue_time_s, 4),
                sampling_params=self._sampling(answer),
                answer=self._cut(answer.output_ids if self._text_of is None else answer.text),
            )
        )

    def _write(self, event: RequestReceived | RequestFinished) -> None:
        if self._json:
            head = {"time": utc(time.time()), "event": type(event).__name__}
            log.info("%s", JsonLine(to_json(head | dataclasses.asdict(event))))
        else:
            log.info("%s", event)

    def _sampling(self, answer: Answer) -> dict[str, Any] | None:
        return msgspec.structs.asdict(answer.request.sampling) if self._level >= 1 else None

    def _prompt(self, ids: list[int]) -> Content:
        if self._level < 2 or self._text_of is None:
            return self._cut(ids)
        return self._cut(self._text_of(ids if self._level >= 3 else ids[:START_CHARACTERS]))

    def _cut(self, content: str | list[int]) -> Content:
        if self._level < 2:
            return None
        return content if self._level >= 3 else content[:START_CHARACTERS]


def request_log(settings: WorkerSettings, tokenizer: TextCodec) -> RequestLog:
    """The log that the settings ask for."""

    def text_of(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False)

    return RequestLog(
        enabled=settings.log_requests,
        level=settings.log_requests_level,
        log_format=settings.log_requests_format,
        text_of=None if settings.skip_tokenizer_init else text_of,
    )
