"""Bounds of a replica, and what is refused at the door."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.errors import UserError
from tests.helpers.builders import make_settings
from tests.helpers.fake_runner import runner_info
from worker.scheduler.limits import resolve_limits


def test_the_context_bounds_a_request_when_the_pool_is_larger() -> None:
    limits = resolve_limits(make_settings(), runner_info(num_pages=100, page_size=4, context_len=256))
    assert (limits.max_total_num_tokens, limits.max_req_len, limits.max_req_input_len) == (400, 255, 250)
    assert limits.refusal(250) is None
    assert limits.refusal(251) == (
        "The prompt has 251 tokens, but at most 250 can be served: the context length is 256."
    )


def test_the_pool_bounds_a_request_when_it_is_smaller() -> None:
    limits = resolve_limits(make_settings(), runner_info(num_pages=25, page_size=4, context_len=256))
    assert (limits.max_req_len, limits.max_req_input_len) == (99, 94)
    assert limits.refusal(95) == "The prompt has 95 tokens, but at most 94 can be served: the KV pool holds 100."


def test_outputs_are_clamped_to_the_room_left() -> None:
    limits = resolve_limits(make_settings(), runner_info(num_pages=100, context_len=256))
    assert limits.max_new_tokens(None, 10) == 99 - 10 - 1
    assert limits.max_new_tokens(1000, 10) == 88
    assert limits.max_new_tokens(7, 10) == 7


def test_running_requests_are_bounded_by_rows_and_setting() -> None:
    info = runner_info(max_rows=8)
    assert resolve_limits(make_settings(), info).max_running_requests == 8
    assert resolve_limits(make_settings(max_running_requests=3), info).max_running_requests == 3
    assert resolve_limits(make_settings(max_running_requests=30), info).max_running_requests == 8


def test_chunk_size_defaults_by_device_and_fits_the_page() -> None:
    info = runner_info(page_size=1)
    assert resolve_limits(make_settings(), info).chunked_prefill_size == 128
    assert resolve_limits(make_settings(), replace(info, device="cuda")).chunked_prefill_size == 8192
    assert resolve_limits(make_settings(), replace(info, page_size=48)).chunked_prefill_size == 96
    assert resolve_limits(make_settings(chunked_prefill_size=64), info).chunked_prefill_size == 64
    assert resolve_limits(make_settings(chunked_prefill_size=-1), info).chunked_prefill_size is None


def test_a_chunk_that_is_not_whole_pages_is_refused() -> None:
    with pytest.raises(UserError, match="--chunked-prefill-size 8 must be a multiple of the page size 16"):
        resolve_limits(make_settings(chunked_prefill_size=8), runner_info(page_size=16))


def test_a_pool_that_serves_nobody_is_refused() -> None:
    with pytest.raises(UserError, match="A KV pool of 6 tokens with a context of 256 serves no request"):
        resolve_limits(make_settings(), runner_info(num_pages=6))
