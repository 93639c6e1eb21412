"""Simulated workers for router benchmarks: `python -m benchmarks.gateway_workers --count 4` prints one URL a line.

All in one process. They answer at once, or stream `chunks` events `interval` apart, with next to no CPU of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import uvloop

from benchmarks.tiny_http import RequestProtocol

MODEL = "simulated"
_CONTROL = {
    b"/health": b"",
    b"/v1/models": json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode(),
    b"/model_info": json.dumps({"model_path": MODEL, "is_generation": True}).encode(),
    b"/get_model_info": json.dumps({"model_path": MODEL, "is_generation": True}).encode(),
    b"/server_info": json.dumps({"model_path": MODEL, "served_model_name": MODEL}).encode(),
    b"/get_server_info": json.dumps({"model_path": MODEL, "served_model_name": MODEL}).encode(),
    b"/v1/loads": json.dumps({"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]}).encode(),
}
_ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "An answer. " * 8}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 90, "completion_tokens": 20, "total_tokens": 110},
    }
).encode()
_EVENT = (
    b"data: "
    + json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": MODEL,
            "choices": [{"index": 0, "delta": {"content": " token"}, "finish_reason": None}],
        }
    ).encode()
    + b"\n\n"
)
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class SimulatedWorker(RequestProtocol):
    """One connection. Requests come whole or in pieces, one at a time."""

    def __init__(self, chunks: int, interval_s: float) -> None:
        super().__init__()
        self._chunks = chunks
        self._interval_s = interval_s

    def answer(self, path: bytes, body: bytes) -> None:
        if path.startswith(b"/v1/chat") and (b'"stream":true' in body or b'"stream": true' in body):
            self._write(_STREAM_HEAD)
            self._stream(self._chunks)
        elif path.startswith(b"/v1/chat"):
            self._whole(b"200 OK", _ANSWER)
        elif path in _CONTROL:
            self._whole(b"200 OK", _CONTROL[path])
        else:
            self._whole(b"404 Not Found", b"{}")

    def _stream(self, left: int) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        if not left:
            self._write(_LAST)
            return
        self._write(_CHUNK)
        asyncio.get_running_loop().call_later(self._interval_s, self._stream, left - 1)

    def _whole(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._write(head + body)

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)


async def serve(count: int, chunks: int, interval_s: float) -> None:
    """Listen on `count` free ports, for ever."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        server = await loop.create_server(lambda: SimulatedWorker(chunks, interval_s), "127.0.0.1", 0)
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--chunks", type=int, default=100, help="events of a stream")
    parser.add_argument("--interval-s", type=float, default=0.02, help="between them")
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(args.count, args.chunks, args.interval_s))


if __name__ == "__main__":
    main()
