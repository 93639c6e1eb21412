"""Bounds of a replica, and what is refused at the door."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from common.errors import UserError
from tests.helpers.builders import SchedulerBench, make_settings
from tests.helpers.fake_runner import runner_info
from worker.engine.batch import RunnerInfo
from worker.scheduler.limits import differences, resolve_limits


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


def test_nothing_follows_a_text_that_becomes_a_vector() -> None:
    info = replace(runner_info(num_pages=300, context_len=256), embedding_size=8)
    limits = resolve_limits(make_settings(), info)
    assert (limits.max_req_len, limits.max_req_input_len) == (256, 256)
    assert limits.refusal(256) is None and limits.refusal(257) is not None
    assert limits.max_new_tokens(0, 256) == 0
    assert resolve_limits(make_settings(), replace(info, num_pages=100)).max_req_input_len == 99


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


def differing(info: RunnerInfo, **settings: Any) -> list[str]:
    chosen = make_settings(**settings)
    return list(differences(chosen, resolve_limits(chosen, info)))


def test_what_cannot_be_had_as_asked_is_told_with_what_is_used() -> None:
    info = runner_info(num_pages=100, page_size=4, max_rows=8)
    assert differing(info, max_total_tokens=404, max_running_requests=9) == [
        "--max-total-tokens 404 is more than memory holds; 400 is used.",
        "--max-running-requests 9 is above its bound; 8 is used.",
    ]
    assert differing(info, max_total_tokens=403, max_running_requests=8) == []
    assert differing(info) == []


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "lof"])
def test_policies_that_match_prefixes_need_the_cache(policy: str) -> None:
    told = (
        [] if policy == "lof" else [f"--schedule-policy {policy} needs the prefix cache, which is off; fcfs is used."]
    )
    assert differing(runner_info(), disable_radix_cache=True, schedule_policy=policy) == told
    assert differing(runner_info(), schedule_policy=policy) == []


def test_the_scheduler_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    SchedulerBench(disable_radix_cache=True, schedule_policy="lpm")
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage() == "--schedule-policy lpm needs the prefix cache, which is off; fcfs is used."
