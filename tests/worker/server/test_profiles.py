"""POST /start_profile and /stop_profile: what is asked of the scheduler, and what is refused before it is."""

from __future__ import annotations

import os
from typing import Any

import pytest

from common.paths import cache_root
from tests.helpers.openai_errors import check_error
from tests.helpers.replica_app import serving
from worker.ipc.messages import StartProfile, StopProfile
from worker.server.tokenizer import Tokenizer


async def test_a_profile_is_started_and_stopped(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        wish = {"activities": ["CPU"], "num_steps": 5, "record_shapes": True, "profile_prefix": "mine"}
        for body in ({}, {"output_dir": "/profiles", "with_stack": True, "profile_by_stage": False, **wish}):
            answer = await app.post("/start_profile", **body)
            assert (answer.status_code, answer.json()["path"]) == (200, "/profiles/one.trace.json.gz")
        assert (await app.client.post("/start_profile")).status_code == 200
        stopped = await app.client.post("/stop_profile")
        assert (stopped.status_code, stopped.json()["path"]) == (200, "/profiles/one.trace.json.gz")
        plain, wished, _ = app.scheduler.of_kind(StartProfile)
        assert plain.output_dir == str(cache_root(os.environ) / "profiles")
        assert (plain.prefix, plain.num_steps, plain.activities) == ("canopy", 1000, [])
        assert (wished.output_dir, wished.prefix, wished.num_steps) == ("/profiles", "mine", 5)
        assert (wished.activities, wished.record_shapes, wished.with_stack) == (["CPU"], True, True)
        assert len(app.scheduler.of_kind(StopProfile)) == 1


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"output_dir": "here"}, "output_dir"),
        ({"output_dir": ""}, "output_dir"),
        ({"output_dir": "/a\0b"}, "output_dir"),
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": 1001}, "num_steps"),
        ({"activities": []}, "activities"),
        ({"activities": ["CPU", "MEM"]}, "activities[1]"),
        ({"profile_prefix": "../x"}, "profile_prefix"),
        ({"profile_prefix": ".hidden"}, "profile_prefix"),
        ({"start_step": 3}, "start_step"),
        ({"profile_by_stage": True}, "profile_by_stage"),
        ({"merge_profiles": True}, "merge_profiles"),
    ],
)
async def test_bad_wishes_name_their_field(tokenizer: Tokenizer, body: dict[str, Any], param: str) -> None:
    async with serving(tokenizer) as app:
        check_error(await app.post("/start_profile", **body), 400, param)
        assert not app.scheduler.of_kind(StartProfile)
