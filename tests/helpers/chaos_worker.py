"""A worker process that misbehaves on command: `python -m tests.helpers.chaos_worker --port 0`.

Prints its port when it serves. POST /chaos {"mode": ...} changes how it answers, GET /chaos tells what it did. Every
answer is a story that follows from the request, so that whoever reads it can tell whether it is right.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import uuid
from typing import Any

from common.process import die_with_parent
from tests.helpers.fake_worker import FakeWorker, Received, Reply
from tests.helpers.story_worker import StoryTeller, tokenize

MODES = ("well", "slow", "full", "failing", "garbage", "cutting")
_WORDS = 10
_PACE_S = {"slow": 0.25}
_USUAL_PACE_S = 0.01


def story_of(question: str) -> str:
    """The right answer to a question: ten words that no other question has."""
    digest = hashlib.sha256(question.encode()).hexdigest()
    return " ".join(digest[index * 5 : index * 5 + 5] for index in range(_WORDS))


def question_of(fields: dict[str, Any]) -> str:
    return str(next(message["content"] for message in fields["messages"] if message["role"] == "user"))


class ChaosWorker:
    """A FakeWorker with a mode."""

    def __init__(self, port: int) -> None:
        self.mode = "well"
        self.hold = asyncio.Event()  # streams wait before their last word while it is clear
        self.hold.set()
        self.worker = FakeWorker(
            self.answer, incarnation=uuid.uuid4().hex, port=port, other={"/chaos": self.chaos, "/tokenize": tokenize}
        )

    async def chaos(self, request: Received, reply: Reply) -> None:
        if request.body:
            self.mode = request.json["mode"]
            (self.hold.clear if request.json.get("hold") else self.hold.set)()
        self.worker.requests.clear()
        await reply.json({"mode": self.mode, "active": self.worker.active})

    async def answer(self, request: Received, reply: Reply) -> None:
        fields = request.json
        if self.mode == "full":
            await reply.json({"error": {"message": "full"}}, 429, retry_after="1")
        elif self.mode == "failing":
            await reply.json({"error": {"message": "failed"}}, 500)
        elif self.mode == "garbage":
            await reply.raw(b"\x16\x03\x01\x00 no HTTP at all\r\n\r\n")
            reply.cut()
        elif fields.get("stream"):
            await self._stream(fields, reply)
        else:
            await asyncio.sleep(_PACE_S.get(self.mode, _USUAL_PACE_S) * _WORDS)
            message = {"role": "assistant", "content": story_of(question_of(fields))}
            await reply.json({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    async def _stream(self, fields: dict[str, Any], reply: Reply) -> None:
        events = StoryTeller(story_of(question_of(fields)), name=self.worker.incarnation).answer(fields)
        await reply.stream_head()
        for index, item in enumerate(events):
            if self.mode == "cutting" and index == len(events) // 2:
                reply.cut()
                return
            if index == len(events) - 2:
                await self.hold.wait()
            await reply.chunk(item)
            await asyncio.sleep(_PACE_S.get(self.mode, _USUAL_PACE_S))
        await reply.last_chunk()


async def _main(port: int) -> None:
    chaos = ChaosWorker(port)
    async with chaos.worker:
        print(json.dumps({"port": chaos.worker.port}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    die_with_parent(os.getppid())
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    asyncio.run(_main(parser.parse_args().port))
