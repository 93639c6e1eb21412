"""Prefill budgets: worked numbers for each rule."""

from __future__ import annotations

import numpy as np
import pytest

from worker.scheduler.admission import PrefillBudget, Verdict, expected_tokens


def budget(
    *,
    available: int = 1000,
    reserved: float = 0.0,
    page_size: int = 1,
    max_prefill: int = 500,
    chunk: int | None = 100,
    mixed: int = 0,
) -> PrefillBudget:
    return PrefillBudget(
        page_size=page_size,
        available_tokens=lambda: available,
        reserved_tokens=reserved,
        max_prefill_tokens=max_prefill,
        chunk_tokens=chunk,
        mixed_decode_tokens=mixed,
    )


def test_running_requests_reserve_a_share_of_at_most_4096_each() -> None:
    assert expected_tokens(np.array([100, 5000, 0]), 0.5).tolist() == [50, 2048, 0]


def test_a_candidate_is_charged_prompt_and_output() -> None:
    assert budget(available=150).verdict(50, 99) is Verdict.CONTINUE
    assert budget(available=150).verdict(50, 100) is Verdict.NO_TOKEN  # must stay below what is left
    assert budget(available=150, reserved=0.5).verdict(50, 99) is Verdict.CONTINUE
    assert budget(available=150, reserved=1).verdict(50, 99) is Verdict.NO_TOKEN


def test_charges_of_a_whole_prompt() -> None:
    b = budget(page_size=16, mixed=4)
    assert (b.rem_input, b.rem_chunk) == (496, 96)
    assert b.take(20, 30) == 20  # 20 tokens take 32 in pages
    assert (b.rem_input, b.rem_chunk) == (464, 64)
    assert b.rem_total == 1000 - 32 - 30
    assert b.state() is Verdict.CONTINUE


def test_charges_of_a_chunk_reserve_no_output() -> None:
    b = budget(page_size=16, chunk=96)
    b.take(20, 30)
    assert b.take(200, 50) == 64
    assert b.rem_total == 1000 - 32 - 30 - 64
    assert b.rem_chunk == 0
    assert b.state() is Verdict.OTHER


def test_a_chunk_is_whole_pages_or_nothing() -> None:
    b = budget(page_size=16, mixed=30)  # 70 tokens left
    assert b.take(200, 1) == 64
    assert b.take(200, 1) == 0
    assert b.rem_chunk == 6


def test_decodes_leave_prefill_at_least_a_page() -> None:
    assert budget(page_size=16, chunk=32, mixed=300).rem_chunk == 16


def test_max_prefill_tokens_lets_one_oversize_prompt_through_first() -> None:
    b = budget(max_prefill=40, chunk=None)
    assert b.verdict(60, 1) is Verdict.CONTINUE
    assert b.take(60, 1) == 60
    assert b.state() is Verdict.OTHER


def test_max_prefill_tokens_stops_the_next_prompt() -> None:
    b = budget(max_prefill=40, chunk=None)
    b.take(10, 1)
    assert b.verdict(29, 1) is Verdict.CONTINUE
    assert b.verdict(30, 1) is Verdict.OTHER


def test_a_full_pool_ends_the_pass() -> None:
    b = budget(available=60, chunk=None)
    b.take(50, 9)
    assert b.state() is Verdict.CONTINUE
    b.take(1, 0)
    assert b.state() is Verdict.NO_TOKEN


def test_locking_the_prefix_can_turn_a_candidate_away() -> None:
    available = 100
    b = PrefillBudget(
        page_size=1,
        available_tokens=lambda: available,
        reserved_tokens=0,
        max_prefill_tokens=500,
        chunk_tokens=None,
        mixed_decode_tokens=0,
    )
    assert b.fits_pool(40, 50)
    available = 70  # 30 evictable tokens are its own prefix, locked now
    assert not b.fits_pool(40, 50)


@pytest.mark.parametrize(
    ("available", "expected"),
    [(1000, 100), (70, 64), (16, 16), (15, 0), (-5, 0)],
)
def test_the_next_chunk_takes_what_chunk_and_pool_leave(available: int, expected: int) -> None:
    b = budget(available=available, page_size=16, chunk=112)
    assert b.take_next_chunk(100, 50) == expected


def test_the_last_chunk_reserves_output() -> None:
    b = budget()
    assert b.take_next_chunk(60, 200) == 60
    assert b.rem_total == 1000 - 60 - 200
