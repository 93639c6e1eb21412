"""Scripted workers that look alive: answers stream word by word, loads follow what they do, prompts are remembered."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.helpers.fake_worker import DONE, MODEL, FakeWorker, Received, Reply, event
from tests.helpers.gateway_harness import CHAT, chat_body

POOL_TOKENS = 200_000
TEXT = "A prefix cache keeps what was computed for the beginning of a prompt , so that the next one need not ."
WORDS = TEXT.split()


class LivelyWorker(FakeWorker):
    """Streams `WORDS`, one each `word_s`; its load report follows its work. `base_usage`: of its KV pool when idle."""

    word_s = 0.03
    words = WORDS
    base_usage = 0.2
    hit_rate = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.script = self._answer
        self.max_total_num_tokens = POOL_TOKENS

    async def _answer(self, request: Received, reply: Reply) -> None:
        body = request.json
        prompt_tokens = 8 + sum(len(message["content"]) for message in body["messages"]) // 4
        words = self.words[: body.get("max_tokens", len(self.words))]
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(words),
            "prompt_tokens_details": {"cached_tokens": int(prompt_tokens * self.hit_rate)},
        }
        await reply.stream_head()
        for word in words:
            await asyncio.sleep(self.word_s)
            await reply.chunk(event({"choices": [{"index": 0, "delta": {"content": f"{word} "}}]}))
        await reply.chunk(event({"choices": [], "usage": usage}))
        await reply.chunk(DONE)
        await reply.last_chunk()

    async def _control(self, path: str, reply: Reply) -> None:
        if path == "/flush_cache":
            await reply.json({"ok": True})
            return
        self.load = self._load_now()
        await super()._control(path, reply)

    def _load_now(self) -> dict[str, Any]:
        usage = min(self.base_usage + 0.02 * self.active, 1.0)
        return {
            "num_running_reqs": self.active,
            "num_waiting_reqs": max(self.active - 24, 0),
            "num_used_tokens": int(usage * POOL_TOKENS),
            "max_total_num_tokens": POOL_TOKENS,
            "token_usage": usage,
            "gen_throughput": self.active / self.word_s,
            "cache_hit_rate": self.hit_rate,
        }


@contextlib.asynccontextmanager
async def lively_workers(number: int) -> AsyncIterator[list[LivelyWorker]]:
    """So many of them, each with a usage and a hit rate of its own."""
    rng = random.Random(7)
    async with contextlib.AsyncExitStack() as stack:
        workers = []
        for _ in range(number):
            worker = LivelyWorker()
            worker.base_usage, worker.hit_rate = rng.uniform(0.1, 0.95), rng.uniform(0.3, 0.95)
            workers.append(await stack.enter_async_context(worker))
        yield workers


@contextlib.asynccontextmanager
async def chats(client: httpx.AsyncClient, at_once: int, *, pause_s: float = 0.0) -> AsyncIterator[None]:
    """Clients that chat all the time while inside; each tells a story of its own that grows."""

    async def chat(number: int) -> None:
        text = f"story {number}: "
        while True:
            text = (text + "and then " * 40)[-6000:]
            async with client.stream("POST", CHAT, content=chat_body(text, stream=True, model=MODEL)) as answer:
                async for _ in answer.aiter_bytes():
                    pass
            await asyncio.sleep(pause_s)

    tasks = [asyncio.create_task(chat(number)) for number in range(at_once)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
