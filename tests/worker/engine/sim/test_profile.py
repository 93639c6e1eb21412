"""Profiles: the packaged one, a user's own, and what is wrong with bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.errors import UserError
from worker.engine.sim.profile import load_profile


def test_the_packaged_profile() -> None:
    profile = load_profile("h200-llama3-8b")
    assert profile.device == "NVIDIA H200" and profile.source
    assert profile.memory.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    assert profile.answer_tokens is not None


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(msgspec.json.encode(load_profile("h200-llama3-8b")))
    assert load_profile(str(path)) == load_profile("h200-llama3-8b")


@pytest.mark.parametrize("name", ["h100", "no/such.json", "."])
def test_what_is_not_there(name: str) -> None:
    with pytest.raises(UserError, match=r"^--sim-profile: [^\n]*(built in are h200-llama3-8b|cannot read)[^\n]*\.$"):
        load_profile(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_size": 0}, r"`int` >= 1 - at `\$.page_size`"),
        ({"page_size": "16"}, r"`int`, got `str`"),
        ({"spped": 1}, "unknown field `spped`"),
        ({"costs": {}}, "missing required field"),
        ({"answer_tokens": [10, 5]}, r"\[least, most\]"),
        ({"memory": {"free_bytes": 10**15}}, "exceeds memory.total_bytes"),
        ({"costs": {"every_step_s": -1.0}}, r"`float` >= 0.0 - at `\$.costs.every_step_s`"),
        ({"costs": {"single_s": 0.0}}, r"`float` > 0.0"),
        ({"costs": {"token_slopes_s": [1e-6]}}, "length"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    content = json.loads(msgspec.json.encode(load_profile("h200-llama3-8b")))
    for key, value in change.items():
        content[key] = content[key] | value if isinstance(value, dict) and value else value
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"^--sim-profile: .*bad\.json is no profile: [^\n]*{message}[^\n]*\.$"):
        load_profile(str(path))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]"])
def test_files_that_are_not_json_objects(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is no profile: "):
        load_profile(str(path))
