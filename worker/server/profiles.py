"""POST /start_profile and /stop_profile: records what a replica's steps do, as a Chrome trace on its own disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from fastapi import Request, Response
from pydantic import AfterValidator, Field

from common.paths import cache_root
from worker.ipc.messages import MAX_PROFILE_STEPS, CallReply, StartProfile
from worker.server.errors import RequestFault
from worker.server.fields import Body, Unbuilt
from worker.server.http import JsonAnswer, read_body
from worker.server.service import Service

DEFAULT_PREFIX = "canopy"
MAX_PATH_CHARS = 4096


def _absolute(value: str | None) -> str | None:
    if value is not None and (not Path(value).is_absolute() or "\0" in value):
        raise ValueError("must be an absolute path; it is a directory of the machine that the replica runs on")
    return value


class StartProfileBody(Body):
    """POST /start_profile. `activities` left out: all that the replica's device has; `num_steps`: as many as fit."""

    output_dir: Annotated[str | None, Field(min_length=1, max_length=MAX_PATH_CHARS), AfterValidator(_absolute)] = None
    num_steps: Annotated[int | None, Field(ge=1, le=MAX_PROFILE_STEPS)] = None
    activities: Annotated[list[Literal["CPU", "GPU"]] | None, Field(min_length=1, max_length=2)] = None
    record_shapes: bool | None = None
    with_stack: bool | None = None
    profile_prefix: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")] = None
    start_step: Unbuilt = None
    profile_by_stage: Unbuilt = None
    profile_stages: Unbuilt = None
    merge_profiles: Unbuilt = None


async def start_profile(service: Service, request: Request) -> Response:
    """Record the next steps; 400 while others are recorded."""
    service.admit()
    body = await read_body(request, StartProfileBody, service.settings.max_body_bytes, empty=StartProfileBody())
    reply = await service.scheduler.start_profile(
        StartProfile(
            output_dir=body.output_dir or str(cache_root(os.environ) / "profiles"),
            prefix=body.profile_prefix or DEFAULT_PREFIX,
            num_steps=body.num_steps or MAX_PROFILE_STEPS,
            activities=list(body.activities or ()),
            record_shapes=bool(body.record_shapes),
            with_stack=bool(body.with_stack),
        )
    )
    return _answer(reply, "The profile is being recorded.")


async def stop_profile(service: Service, _: Request) -> Response:
    """Write what was recorded, however long it takes; 400 if nothing is."""
    service.admit()
    return _answer(await service.scheduler.stop_profile(), "The profile is written.")


def _answer(reply: CallReply, message: str) -> Response:
    if not reply.ok:
        raise RequestFault(reply.status, reply.message, param=reply.param)
    return JsonAnswer({"status": "ok", "message": message, "path": reply.message})
