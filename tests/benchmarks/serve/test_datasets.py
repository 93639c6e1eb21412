"""Prompts out of files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.serve.datasets import Reader, from_file
from benchmarks.serve.workloads import Session
from common.errors import UserError
from common.model_tokenizer import ModelTokenizer

CHAT = [{"role": "user", "content": "hello you"}]


class Words:
    """Counts words, as a tokenizer counts tokens."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(range(len(text.split())))


WORDS = cast(ModelTokenizer, Words())


def read(path: Path, reader: Reader, count: int = 9, *, openai: bool = False) -> list[Session]:
    return from_file(path, reader.openai if openai else reader.custom, count)


def written(path: Path, *entries: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, entries)))
    return path


def test_custom_lines_have_prompts_and_lengths(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.jsonl",
        {"prompt": "hello", "output_tokens": 5},
        {"question": "why", "max_tokens": 6},
        {"question": "how", "answer": "so and so"},
        {"turns": ["one", "two"]},
        {"conversations": [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c d e"}, {"value": "more"}]},
    )
    found = read(path, Reader(False, WORDS), 5)
    assert [[(turn.prompt, turn.output_tokens) for turn in one.turns] for one in found] == [
        [("hello", 5)],
        [("why", 6)],
        [("how", 3)],
        [("one", None), ("two", None)],
        [("a b", 3)],
    ]
    assert {turn.output_tokens for one in read(path, Reader(False, None, 7)) for turn in one.turns} == {7}
    assert read(path, Reader(True, None))[0].turns[0].prompt == [{"role": "user", "content": "hello"}]


def test_a_short_file_is_read_again_and_a_long_one_in_part(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", *({"prompt": str(i), "output_tokens": 1} for i in range(3)))
    assert [one.turns[0].prompt for one in read(path, Reader(False, None), 5)] == ["0", "1", "2", "0", "1"]
    assert [one.turns[0].prompt for one in read(path, Reader(False, None), 2)] == ["0", "1"]


def test_an_array_over_several_lines_is_taken_and_long_prompts_are_left_out(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d e"}]
    long = [{"role": "user", "content": "a " * 50}, {"role": "assistant", "content": "d"}]
    path = tmp_path / "sharegpt.json.gz"
    entries = [{"conversations": long}, {"conversations": turns[:1]}, {"conversations": turns}]
    path.write_bytes(gzip.compress(json.dumps(entries, indent=1).encode()))
    found = read(path, Reader(False, WORDS, context_tokens=10), 1)
    assert (found[0].turns[0].prompt, found[0].turns[0].output_tokens) == ("a b c", 2)


def test_openai_bodies_keep_their_fields(tmp_path: Path) -> None:
    body = {"model": "x", "messages": CHAT, "max_tokens": 4, "stream": False, "tools": [], "temperature": 0.5}
    path = written(tmp_path / "a.jsonl", body, {"custom_id": "1", "url": "/v1/chat/completions", "body": body})
    for one in read(path, Reader(True, None), 2, openai=True):
        (turn,) = one.turns
        assert (turn.prompt, turn.output_tokens, dict(turn.fields)) == (CHAT, 4, {"tools": [], "temperature": 0.5})
    text = written(tmp_path / "b.jsonl", {"prompt": "once"})
    assert read(text, Reader(False, None), 1, openai=True)[0].turns[0].output_tokens is None


@pytest.mark.parametrize(
    ("text", "openai", "sentence"),
    [
        ("", False, "holds no prompt"),
        ("nonsense", False, "line 1 of .* is not JSON"),
        ('{"prompt": "a"}\n{"text": 1}', False, "line 2 of .* is not of this dataset .it lacks question.\\."),
        ('{"prompt": 3}', False, "line 1 of .*TypeError"),
        ("3", False, "line 1 of .*TypeError"),
        ('[{"conversations": [{"role": "user"}, {}]}]', False, "entry 1 of .*it lacks content"),
        ('{"prompt": "a"}', True, "it lacks messages"),
        ('{"messages": "a"}', True, "messages has another type"),
    ],
)
def test_another_file_is_one_sentence(text: str, openai: bool, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=f"--dataset-path: .*{sentence}"):
        read(path, Reader(True, None), openai=openai)
