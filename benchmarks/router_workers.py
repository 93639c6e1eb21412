"""Simulated workers behind HTTP, all in one process: `python -m benchmarks.router_workers --count 4` prints their URLs.

Each has the model of router_model.py in real time (`--speed-up` makes everything faster), speaks OpenAI's chats,
streamed or not, and reports `cached_tokens`. A line `stats` on standard input prints their counts as JSON, `reset`
empties them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Callable
from typing import Any

import orjson
import uvloop

from benchmarks.router_model import PREFILL_TOKENS_PER_S, STEP_S, WorkerModel
from benchmarks.tiny_http import RequestProtocol

MODEL = "simulated"
MAX_CHUNKS = 20  # of a streamed answer; longer ones put more tokens into a chunk
TOKEN_CHARS = 10
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Worker:
    """One simulated worker: its model, and what it answers."""

    def __init__(self, make_model: Callable[[], WorkerModel], number: int) -> None:
        self._make_model = make_model
        self._rng = random.Random(number)
        self.model = make_model()
        self.number = number

    def reset(self) -> None:
        """Like new."""
        self.model = self._make_model()

    def stats(self) -> dict[str, int]:
        model = self.model
        return {"requests": model.requests, "prompt": model.prompt_tokens, "cached": model.cached_tokens}

    def control(self, path: bytes) -> dict[str, Any] | None:
        """Bodies of the endpoints that routers ask for."""
        model = self.model
        info = {"model_path": MODEL, "served_model_name": MODEL, "is_generation": True}
        match path:
            case b"/health" | b"/health_generate":
                return {}
            case b"/v1/models":
                return {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "simulation"}]}
            case b"/model_info" | b"/get_model_info":
                return info
            case b"/server_info" | b"/get_server_info":
                return info | {"max_total_num_tokens": model.capacity_tokens} if model.capacity_tokens else info
            case b"/v1/loads":
                return {"loads": [{"num_running_reqs": model.active, "num_waiting_reqs": 0}]}
        return None

    async def chat(self, fields: dict[str, Any], send: Callable[[bytes], None]) -> None:
        """Answer one chat."""
        model, loop = self.model, asyncio.get_running_loop()
        text = "".join(message["content"] for message in fields["messages"])
        tokens = fields.get("max_tokens") or MAX_CHUNKS
        due_s, prompt, cached = model.prefill(text, loop.time())
        await asyncio.sleep(due_s - loop.time())
        model.active += 1
        try:
            usage = {
                "prompt_tokens": prompt,
                "completion_tokens": tokens,
                "total_tokens": prompt + tokens,
                "prompt_tokens_details": {"cached_tokens": cached},
            }
            if fields.get("stream"):
                answer = await self._stream(tokens, usage, send)
            else:
                answer = await self._whole(tokens, usage, send)
        finally:
            model.active -= 1
        if len(fields["messages"]) > 1:
            model.answered(text + answer)

    async def _stream(self, tokens: int, usage: dict[str, Any], send: Callable[[bytes], None]) -> str:
        chunks = min(tokens, MAX_CHUNKS)
        said = []
        for number in range(chunks):
            said.append(self._words(TOKEN_CHARS * min(tokens, MAX_CHUNKS) // chunks))
            event = _event({"choices": [{"index": 0, "delta": {"content": said[-1]}, "finish_reason": None}]})
            send(_HEAD + event if number == 0 else event)
            await asyncio.sleep(tokens / chunks * self.model.token_s)
        last = _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        send(last + _event({"choices": [], "usage": usage}) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        return "".join(said)

    async def _whole(self, tokens: int, usage: dict[str, Any], send: Callable[[bytes], None]) -> str:
        await asyncio.sleep(tokens * self.model.token_s)
        answer = self._words(TOKEN_CHARS * min(tokens, MAX_CHUNKS))
        message = {"role": "assistant", "content": answer}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        send(whole(200, {**_COMMON, "object": "chat.completion", "choices": [choice], "usage": usage}))
        return answer

    def _words(self, length: int) -> str:
        return self._rng.randbytes(length // 2).hex()


_COMMON = {"id": "chatcmpl-1", "created": 1, "model": MODEL}


def _event(fields: dict[str, Any]) -> bytes:
    """One chunk of a chunked body that is one event."""
    data = b"data: " + orjson.dumps({**_COMMON, "object": "chat.completion.chunk", **fields}) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(status: int, fields: dict[str, Any]) -> bytes:
    """A whole answer."""
    body = orjson.dumps(fields)
    reason = b"OK" if status == 200 else b"Not Found"
    head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (
        status,
        reason,
        len(body),
    )
    return head + body


class Connection(RequestProtocol):
    """One connection to a worker; requests one at a time."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self._task: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def answer(self, path: bytes, body: bytes) -> None:
        assert self._transport is not None
        if path == b"/v1/chat/completions":
            chat = self._worker.chat(orjson.loads(body), self._transport.write)
            self._task = asyncio.get_running_loop().create_task(chat)
            return
        fields = self._worker.control(path)
        self._transport.write(whole(404, {}) if fields is None else whole(200, fields))


async def serve(workers: list[Worker]) -> None:
    """Listen on one free port each; obey standard input until it ends."""
    loop = asyncio.get_running_loop()
    for worker in workers:
        server = await loop.create_server(lambda worker=worker: Connection(worker), "127.0.0.1", 0)  # type: ignore[misc]
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if command == "stats":
            print(json.dumps([worker.stats() for worker in workers]), flush=True)
        elif command == "reset":
            for worker in workers:
                worker.reset()
            print("reset", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--cache-blocks", type=int, default=0, help="of each worker's cache; 0 = endless")
    parser.add_argument("--block-chars", type=int, default=64)
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--speed-up", type=float, default=1.0)
    args = parser.parse_args()

    def make_model() -> WorkerModel:
        return WorkerModel(
            args.cache_blocks or None,
            block_chars=args.block_chars,
            block_tokens=args.block_tokens,
            speed=PREFILL_TOKENS_PER_S * args.speed_up,
            step_s=STEP_S / args.speed_up,
        )

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve([Worker(make_model, number) for number in range(args.count)]))


if __name__ == "__main__":
    main()
