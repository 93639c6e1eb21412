"""Recorded traces: both formats, what they say, how they are played, what is refused."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.traces import Trace, TraceRequest, played, read_trace
from common.errors import UserError

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def azure(path: Path, arrivals_s: list[float]) -> Path:
    """A file as Azure writes them, all requests alike."""
    rows = (f"2023-11-16 18:{int(at_s // 60):02d}:{at_s % 60:010.7f},1500,20\n" for at_s in arrivals_s)
    path.write_text(HEAD + "".join(rows))
    return path


def test_a_mooncake_trace_has_blocks_and_sessions(tmp_path: Path) -> None:
    entries = [
        {"timestamp": 3500, "input_length": 600, "output_length": 0, "hash_ids": [0, 2], "session_id": 7},
        {"timestamp": 2000, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]},
    ]
    text = "\n\n".join(map(json.dumps, entries))
    for name, data in (
        ("a.jsonl", text.encode()),
        ("a.gz", gzip.compress(text.encode())),
        ("a.xz", lzma.compress(text.encode())),
    ):
        (tmp_path / name).write_bytes(data)
        found = read_trace(tmp_path / name)
        assert found.requests == (
            TraceRequest(0.0, 1000, 5, (0, 1)),
            TraceRequest(1.5, 600, 1, (0, 2), "7"),
        )
        assert (found.name, found.begin_s, found.duration_s, found.block_tokens) == ("a", 2.0, 1.5, 512)
    assert read_trace(tmp_path / "a.jsonl", limit=1).requests[0].prompt_tokens == 600


def test_an_azure_trace_has_lengths_and_times(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEAD + "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 20:15:50.9951690+02:00,396,109\r\n")
    found = read_trace(path)
    assert found.requests[0] == TraceRequest(0.0, 374, 44)
    assert found.requests[1].arrival_s == pytest.approx(4.314579)
    assert found.begin_s == pytest.approx(1700158546.68059)
    assert found.block_tokens is None


@given(st.sampled_from([16, 64, 512]), st.lists(st.integers(1, 5000), min_size=1))
def test_the_size_of_blocks_follows_from_prompts_of_two_or_more(size: int, prompts: list[int]) -> None:
    requests = tuple(TraceRequest(0.0, tokens, 1, tuple(range(-(-tokens // size)))) for tokens in prompts)
    found = Trace("a", 0.0, requests).block_tokens
    assert found is not None
    assert found == size if max(prompts) > size else found <= size


def test_a_minute_is_played_as_often_as_asked(tmp_path: Path) -> None:
    trace = read_trace(azure(tmp_path / "a.csv", [0.0, 30.0, 70.0, 121.0]))
    assert [request.arrival_s for request in played([trace])] == [0.0, 30.0, 70.0]
    assert [r.arrival_s for r in played([trace], stretch=2)] == [0.0, 30.0, 60.0, 90.0, 130.0, 190.0]
    assert [r.arrival_s for r in played([trace], rate=2)] == [0.0, 0.0, 30.0, 30.0, 70.0, 100.0]
    later = read_trace(azure(tmp_path / "b.csv", [10.0, 119.0, 180.0]))
    assert [r.arrival_s for r in played([trace, later])] == [0.0, 10.0, 30.0, 70.0, 119.0, 121.0]
    with pytest.raises(UserError, match="shorter than a minute"):
        played([read_trace(azure(tmp_path / "c.csv", [0.0, 30.0]))])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no request"),
        (HEAD, "holds no request"),
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:00:00,1\n", "line 2 of .* is neither"),
        ("a,b\n1,2\n", "line 2 of .* is neither"),
        ('{"timestamp": 1}', "line 1 of .* is no request .*it lacks input_length"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": "x"}', "line 1 of .*ValueError"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 3}\n[]', "line 2 of .*AttributeError"),
        ("{", "line 1 of .* is no request"),
    ],
)
def test_what_is_no_trace_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    with pytest.raises(UserError, match=f"--load: .*{sentence}"):
        read_trace(path, flag="--load")
    with pytest.raises(UserError, match="cannot read .*none"):
        read_trace(tmp_path / "none")
    (tmp_path / "bad.gz").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot read .*bad.gz"):
        read_trace(tmp_path / "bad.gz")
