"""A model that knows one story by heart: whatever part of it a request ends with, it goes on from there.

Tokens are the story's words with the whitespace before them; so an interrupted answer can be told from a whole one.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.helpers.fake_worker import DONE, MODEL, Received, Reply, Script, event

TITLE = "Tell: "  # the prompt
PROMPT_TOKENS = 2
_TOKEN = re.compile(r"\s*\S+|\s+")


def tokens_of(text: str) -> list[str]:
    return _TOKEN.findall(text)


@dataclass(frozen=True)
class StoryTeller:
    """Answers requests as bytes. `trims`: its chat template cuts whitespace off a message's end."""

    story: str
    name: str = "a"
    trims: bool = True

    def told(self, fields: dict[str, Any]) -> str:
        """The part of the story that the request holds already."""
        if "prompt" in fields:
            assert fields["prompt"].startswith(TITLE)
            return str(fields["prompt"].removeprefix(TITLE))
        last = fields["messages"][-1]
        if last["role"] != "assistant":
            return ""
        assert fields["continue_final_message"] is True and fields["add_generation_prompt"] is False
        return str(last["content"].rstrip() if self.trims else last["content"])

    def answer(self, fields: dict[str, Any]) -> list[bytes]:
        """The events of the streamed answer."""
        told = self.told(fields)
        assert self.story.startswith(told), told
        limit = fields.get("max_tokens") or fields.get("max_completion_tokens")
        assert limit is None or limit > 0
        rest = tokens_of(self.story[len(told) :])
        said = rest[:limit]
        reason = "stop" if len(said) == len(rest) else "length"
        chat = "messages" in fields
        events = [self._event(chat, {"role": "assistant", "content": ""})] if chat else []
        events += [self._event(chat, {"content": token}) for token in said]
        events.append(self._event(chat, {}, reason))
        if (fields.get("stream_options") or {}).get("include_usage"):
            prompt = PROMPT_TOKENS + len(tokens_of(told))
            usage = {"prompt_tokens": prompt, "completion_tokens": len(said), "total_tokens": prompt + len(said)}
            events.append(event({"id": self.name, "created": 1, "model": MODEL, "choices": [], "usage": usage}))
        return [*events, DONE]

    def _event(self, chat: bool, delta: dict[str, str], reason: str | None = None) -> bytes:
        said = {"delta": delta} if chat else {"text": delta.get("content", "")}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        return event({"id": self.name, "created": 1, "model": MODEL, "choices": [choice]})


def story_script(teller: StoryTeller, dies_after: Callable[[], int | None], piece_bytes: int = 7) -> Script:
    """A FakeWorker's script: the stream in small pieces, cut after so many bytes (None: not at all)."""

    async def script(request: Received, reply: Reply) -> None:
        body = b"".join(teller.answer(request.json))
        end = dies_after()
        cut, body = end is not None, body[:end]
        await reply.stream_head()
        for start in range(0, len(body), piece_bytes):
            await reply.chunk(body[start : start + piece_bytes])
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        if cut:
            reply.cut()
        else:
            await reply.last_chunk()

    return script


async def tokenize(request: Received, reply: Reply) -> None:
    """A FakeWorker's /tokenize."""
    tokens = tokens_of(request.json["prompt"])
    await reply.json({"tokens": list(range(len(tokens))), "count": len(tokens)})


def text_of(body: bytes) -> str:
    """The text of a whole stream, which must be well-formed: one id, one finish, and one end."""
    *events, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    objects = [json.loads(item.removeprefix(b"data: ")) for item in events]
    assert len({item["id"] for item in objects}) == 1
    choices = [item["choices"][0] for item in objects if item["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] in (["stop"], ["length"])
    assert choices[-1]["finish_reason"]
    roles = [choice["delta"]["role"] for choice in choices if "role" in choice.get("delta", {})]
    assert roles in ([], ["assistant"])
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


def usage_of(body: bytes) -> dict[str, int]:
    """The usage of a stream that was asked for it."""
    event_before_done = body.split(b"\n\n")[-3]
    return dict(json.loads(event_before_done.removeprefix(b"data: "))["usage"])


def request_fields(chat: bool, **more: Any) -> dict[str, Any]:
    """A request for the story."""
    prompt = {"messages": [{"role": "user", "content": TITLE}]} if chat else {"prompt": TITLE}
    return {"model": MODEL, "stream": True, **prompt, **more}
