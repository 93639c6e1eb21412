"""The log lines, letter for letter, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.log_lines import (
    DecodeLine,
    LogLine,
    PreemptLine,
    PrefillLine,
    RetractLine,
    StartupLine,
    StepFailedLine,
    parse,
)

LINES: list[tuple[LogLine, str]] = [
    (
        DecodeLine(233, 370959, 0.82, True, 4594.01, 317),
        "Decode batch. #running-req: 233, #token: 370959, token usage: 0.82, cuda graph: True, "
        "gen throughput (token/s): 4594.01, #queue-req: 317",
    ),
    (
        PrefillLine(3, 120, 64, 0.51, 7, 2),
        "Prefill batch. #new-seq: 3, #new-token: 120, #cached-token: 64, token usage: 0.51, "
        "#running-req: 7, #queue-req: 2",
    ),
    (
        RetractLine(1, 0.9998, 1.0),
        "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.9998 -> 1.0000",
    ),
    (
        StartupLine(665690, 8192, 16384, 4096, 65536, "gpu", 13.5),
        "max_total_num_tokens=665690, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=4096, context_len=65536, available_gpu_mem=13.50 GB",
    ),
    (
        StartupLine(4096, None, 16384, 64, 2048, "cpu", 7.25),
        "max_total_num_tokens=4096, chunked_prefill_size=-1, max_prefill_tokens=16384, "
        "max_running_requests=64, context_len=2048, available_cpu_mem=7.25 GB",
    ),
    (PreemptLine(2), "More urgent requests wait. Preempt requests. #preempted_reqs: 2"),
    (
        StepFailedLine(2, 8192, 3, "The GPU has no memory left for this pass."),
        "A step failed. #decode: 2, #new-token: 8192, #aborted-req: 3. The GPU has no memory left for this pass.",
    ),
]


@pytest.mark.parametrize(("line", "text"), LINES, ids=[type(line).__name__ for line, _ in LINES])
def test_text_and_back(line: LogLine, text: str) -> None:
    assert str(line) == text
    assert parse(text) == line
    assert parse(f"[2025-08-11 17:17:03] WARNING {text}") == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[2026-01-01 00:00:00 TP0] Decode batch, #running-req: 1, #token: 20, token usage: 0.01, "
            "cuda graph: False, gen throughput (token/s): 93.40, #queue-req: 0, ",
            DecodeLine(1, 20, 0.01, False, 93.4, 0),
        ),
        (
            "[2026-01-01 00:00:00] Prefill batch, #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, "
            "#running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 12.00",
            PrefillLine(1, 7, 0, 0.0, 0, 0),
        ),
        (
            "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 812, "
            "#new_token_ratio: 0.4321 -> 0.6543",
            RetractLine(2, 0.4321, 0.6543),
        ),
    ],
)
def test_newer_spellings(text: str, line: LogLine) -> None:
    assert parse(text) == line


@pytest.mark.parametrize("text", ["", "Ready: http://127.0.0.1:1 serves m.", "Decode batch. #running-req: 1"])
def test_other_lines_are_none(text: str) -> None:
    assert parse(text) is None


counts = st.integers(0, 10**9)


@given(counts, counts, st.integers(0, 100), st.booleans(), st.integers(0, 10**8), counts)
def test_every_decode_line_comes_back(
    running: int, tokens: int, percent: int, graph: bool, centi: int, queued: int
) -> None:
    line = DecodeLine(running, tokens, percent / 100, graph, centi / 100, queued)
    assert parse(str(line)) == line
