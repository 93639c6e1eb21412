"""Streamed chats at a steady rate against one address, from a thread of their own, and what became of each."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

_TIMEOUT_S = 120.0


@dataclass(slots=True)
class Chat:
    """One request. Times are of time.monotonic()."""

    sent_s: float
    first_byte_s: float | None = None
    ended_s: float | None = None
    fault: str = ""  # empty: whole answer

    @property
    def outcome(self) -> str:
        """answered, cut (after its stream had begun), or lost (before)."""
        if not self.fault:
            return "answered"
        return "cut" if self.first_byte_s is not None else "lost"


@dataclass(slots=True)
class SteadyLoad:
    """`with SteadyLoad(...) as load:` sends until the end of the block, then waits for the answers."""

    url: str
    model: str
    requests_per_second: float
    max_tokens: int = 16
    at_once: int | None = None  # chats under way at most: clients who wait for their answers
    chats: list[Chat] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> SteadyLoad:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send_all()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        assert self._thread is not None
        self._thread.join()

    @property
    def outcomes(self) -> Counter[str]:
        """Of the chats that have ended."""
        return Counter(chat.outcome for chat in self.chats if chat.ended_s is not None)

    @property
    def faults(self) -> Counter[str]:
        """What went wrong, counted."""
        return Counter(chat.fault for chat in self.chats if chat.fault)

    def longest_wait_s(self) -> float:
        """For the first byte."""
        return max((c.first_byte_s - c.sent_s for c in self.chats if c.first_byte_s is not None), default=0.0)

    async def _send_all(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, limits=limits) as client:
            tasks: list[asyncio.Task[None]] = []
            began_s = time.monotonic()
            room = asyncio.Semaphore(self.at_once or 10**9)
            while not self._stopped.is_set():
                await room.acquire()
                chat = Chat(sent_s=time.monotonic())
                self.chats.append(chat)
                tasks.append(asyncio.create_task(self._send(client, chat, len(self.chats))))
                tasks[-1].add_done_callback(lambda _: room.release())
                due_s = began_s + len(self.chats) / self.requests_per_second
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            await asyncio.gather(*tasks)

    async def _send(self, client: httpx.AsyncClient, chat: Chat, number: int) -> None:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": f"{number % 50} tells a tale"}],
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        last = ""
        try:
            async with client.stream("POST", f"{self.url}/v1/chat/completions", json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    chat.fault = f"HTTP {answer.status_code} {(await answer.aread()).decode()[:200]}"
                    return
                async for line in answer.aiter_lines():
                    if line:
                        chat.first_byte_s = chat.first_byte_s or time.monotonic()
                        last = line
            if last != "data: [DONE]":
                chat.fault = last[:200] or "an empty answer"
        except httpx.HTTPError as error:
            chat.fault = f"{type(error).__name__}: {error}"
        finally:
            chat.ended_s = time.monotonic()
