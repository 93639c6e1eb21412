"""Which prompts can be foretold, and as what."""

from __future__ import annotations

from array import array
from typing import Any

import orjson
import pytest

from gateway.kv_events.prompts import Chat, Ids, Text, Unforeseeable, read_prompt

USER = {"role": "user", "content": "Hi"}


def ids(*values: int) -> Ids:
    return Ids(array("i", values).tobytes())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "Hi"}, Text("Hi")),
        ({"prompt": ["Hi"]}, Text("Hi")),
        ({"prompt": [1, 2]}, ids(1, 2)),
        ({"text": "Hi"}, Text("Hi")),
        ({"input_ids": [[5]]}, ids(5)),
        ({"messages": [USER]}, Chat([USER], False, {})),
        ({"messages": [USER | {"role": "developer"}]}, Chat([USER | {"role": "system"}], False, {})),
        ({"messages": [{"role": "user", "content": None}]}, Chat([{"role": "user", "content": ""}], False, {})),
        (
            {"messages": [USER | {"name": "Ann"}], "continue_final_message": True, "reasoning_effort": "low"},
            Chat([USER | {"name": "Ann"}], True, {"reasoning_effort": "low"}),
        ),
        ({"messages": [USER], "chat_template_kwargs": {"a": 1}}, Chat([USER], False, {"a": 1})),
    ],
)
def test_prompts_that_can_be_foretold(body: dict[str, Any], expected: object) -> None:
    assert read_prompt(orjson.dumps(body)) == (expected, None)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"messages": [USER], "tools": [{}]}, "unsupported"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "unsupported"),
        ({"messages": [USER | {"tool_calls": [{}]}]}, "unsupported"),
        ({"prompt": ["a", "b"]}, "batch"),
        ({"prompt": [[1], [2]]}, "batch"),
        ({"prompt": {}}, "malformed"),
        ({"prompt": [1, "a"]}, "malformed"),
        ({"prompt": [2**40]}, "malformed"),
        ({"messages": "Hi"}, "malformed"),
        ({"messages": [{"content": "Hi"}]}, "malformed"),
        ({"messages": [USER | {"content": 3}]}, "malformed"),
        ({"prompt": "x" * (2**21 + 1)}, "too_long"),
        ([], "malformed"),
    ],
)
def test_prompts_that_cannot_say_why(body: object, reason: str) -> None:
    with pytest.raises(Unforeseeable, match=f"^{reason}$"):
        read_prompt(orjson.dumps(body))


def test_salts_keep_prompts_apart() -> None:
    assert read_prompt(b'{"prompt": "a", "cache_salt": "t"}')[1] == "t"
    assert read_prompt(b'{"prompt": "a", "extra_key": "e", "cache_salt": "t"}')[1] == "e"
