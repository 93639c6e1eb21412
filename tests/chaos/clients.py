"""Clients that ask, read byte by byte what comes back, and say whether it was right."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.fleet import DEADLINE_S, as_json
from tests.helpers.chaos_worker import story_of
from tests.helpers.fake_worker import MODEL
from tests.helpers.gateway_harness import CHAT, RawClient, request_bytes

_LEAVING = 0.05  # share of the clients that leave in the middle
_WHOLE = 0.3  # share that does not stream
_ERROR_STATUSES = frozenset({429, 500, 502, 503, 504})
_STATUS_OF_CODE = {"worker_failed": 502, "upstream_timeout": 504, "worker_unreachable": 503, "connect_timeout": 504}


@dataclass
class Tally:
    """What came back. `statuses` is what the gateway's own counter should say, but for clients that left."""

    asked: int = 0
    right: int = 0
    left: int = 0
    cut: int = 0  # bodies without streaming that ended early, and can be told to have: 502, or 504 if their worker hung
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    worst_s: float = 0.0

    @property
    def answered(self) -> int:
        return self.asked - self.left


async def ask_for(port: int, seconds: float, per_second: float, rng: random.Random) -> Tally:
    """Questions at a steady rate, whatever becomes of the earlier ones."""
    tally = Tally()
    start_s = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(seconds * per_second)):
            await asyncio.sleep(max(start_s + number / per_second - time.monotonic(), 0))
            tasks.create_task(_ask(port, f"question {number}", rng.random() >= _WHOLE, rng.random() < _LEAVING, tally))
    return tally


async def _ask(port: int, question: str, stream: bool, leaves: bool, tally: Tally) -> None:
    tally.asked += 1
    start_s = time.monotonic()
    try:
        async with asyncio.timeout(DEADLINE_S):
            fault = await _answer(port, question, stream, leaves, tally)
    except TimeoutError:
        fault = f"no end within {DEADLINE_S} s"
    except (ConnectionError, OSError) as error:
        fault = f"the gateway dropped the connection: {error!r}"
    if fault:
        tally.wrong.append(f"{question}: {fault}")
    tally.worst_s = max(tally.worst_s, time.monotonic() - start_s)


async def _answer(port: int, question: str, stream: bool, leaves: bool, tally: Tally) -> str:
    """Ask once. Returns what was wrong."""
    fields = {"model": MODEL, "messages": [{"role": "user", "content": question}], "stream": stream}
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = RawClient(reader, writer)
    try:
        await client.send(request_bytes(json.dumps(fields).encode(), CHAT, "connection: close"))
        if leaves:
            tally.left += 1
            await reader.read(200)
            return ""
        status, headers = await client.head()
        try:
            body = await client.body(headers)
        except asyncio.IncompleteReadError:
            if stream:
                return "the stream was cut"
            tally.cut += 1
            return ""
        if status != 200:
            return _judge_refusal(status, body, tally)
        return _judge_stream(body, story_of(question), tally) if stream else _judge_whole(body, question, tally)
    finally:
        client.close()


def _judge_refusal(status: int, body: bytes, tally: Tally) -> str:
    tally.statuses[status] += 1
    fields = as_json(body)
    clear = status in _ERROR_STATUSES and isinstance(fields, dict) and fields.get("error", {}).get("message")
    return "" if clear else f"unclear refusal {status}: {body!r}"


def _judge_whole(body: bytes, question: str, tally: Tally) -> str:
    tally.statuses[200] += 1
    fields = as_json(body)
    if not fields or fields["choices"][0]["message"]["content"] != story_of(question):
        return f"wrong answer: {body!r}"
    tally.right += 1
    return ""


def _judge_stream(body: bytes, story: str, tally: Tally) -> str:
    """The whole story and [DONE], or its beginning and one error."""
    *events, rest = body.split(b"\n\n")
    *events, last = [event.removeprefix(b"data: ") for event in events]
    texts = []
    for event in events:
        fields = as_json(event)
        if not fields or "error" in fields:
            return f"stray event {event!r}"
        texts += [choice["delta"].get("content", "") for choice in fields["choices"]]
    text = "".join(texts)
    if last == b"[DONE]":
        tally.statuses[200] += 1
        tally.right += text == story and not rest
        return "" if text == story and not rest else f"wrong text {text!r}"
    error = (as_json(last) or {}).get("error")
    if error is None or rest or not story.startswith(text):
        return f"no clear end: {text!r}, then {last!r}"
    tally.statuses[_STATUS_OF_CODE[error["code"]]] += 1
    return ""
