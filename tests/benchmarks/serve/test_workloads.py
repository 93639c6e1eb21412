"""Prompts, lengths and arrivals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serve import workloads
from benchmarks.serve.workloads import Ask, Vocabulary
from common.errors import UserError

IDS = Vocabulary(10, 500)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@given(st.integers(1, 30), st.integers(1, 200), st.integers(1, 50), st.floats(0, 1))
def test_lengths_stay_within_their_range(count: int, inputs: int, outputs: int, ratio: float) -> None:
    asks = workloads.random_ids(rng(), count, inputs, outputs, ratio, IDS)
    assert len(asks) == count
    for ask in asks:
        assert max(1, int(inputs * ratio)) <= len(ask.input_ids) <= inputs
        assert max(1, int(outputs * ratio)) <= ask.output_tokens <= outputs
        assert all(10 <= token < 500 for token in ask.input_ids)


def test_members_of_a_group_share_their_prefix_and_nothing_more() -> None:
    asks = workloads.shared_prefixes(rng(), 3, 4, 50, 20, 9, IDS)
    prefixes = {tuple(ask.input_ids[:50]) for ask in asks}
    assert len(asks) == 12 and len(prefixes) == 3
    assert all(sum(tuple(ask.input_ids[:50]) == prefix for ask in asks) == 4 for prefix in prefixes)
    assert len({tuple(ask.input_ids[50:]) for ask in asks}) == 12
    assert {(len(ask.input_ids), ask.output_tokens) for ask in asks} == {(70, 9)}


def test_blocks_of_a_mooncake_trace_with_one_hash_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    entries = [
        {"timestamp": 2000, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 2500, "input_length": 600, "output_length": 0, "hash_ids": [0, 2]},
    ]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, entries)).encode()))
    first, second = workloads.mooncake(path, 10, IDS)
    assert (len(first.input_ids), len(second.input_ids)) == (1000, 600)
    assert first.input_ids[:512] == second.input_ids[:512]
    assert first.input_ids[512:600] != second.input_ids[512:600]
    assert (first.due_s, second.due_s) == (0.0, 0.5)
    assert (first.output_tokens, second.output_tokens) == (5, 1)


def test_an_azure_trace_gives_lengths_and_times(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    first, second = workloads.azure(rng(), path, 10, IDS)
    assert (len(first.input_ids), first.output_tokens, first.due_s) == (374, 44, 0.0)
    assert second.due_s == pytest.approx(4.314579)


@pytest.mark.parametrize("content", ["{}", "nonsense", '{"hash_ids": "x"}'])
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text(f"first\n{content}\n")
    with pytest.raises(UserError, match="is not a Mooncake trace"):
        workloads.mooncake(path, 5, IDS)
    with pytest.raises(UserError, match="is not an Azure trace"):
        workloads.azure(rng(), path, 5, IDS)


def test_arrivals_have_the_rate_asked_for() -> None:
    asks = [Ask([1], 1)] * 20_000
    assert workloads.arrivals(rng(), asks, None, 1.0) == [0.0] * 20_000
    for burstiness in (0.3, 1.0, 4.0):
        due = workloads.arrivals(rng(), asks, 50.0, burstiness)
        assert due[0] == 0.0 and due == sorted(due)
        gaps = np.diff(due)
        assert gaps.mean() == pytest.approx(1 / 50, rel=0.1)
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.1)
