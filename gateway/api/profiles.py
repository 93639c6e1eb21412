"""POST /start_profile and /stop_profile: every worker records what its steps do, on its own disk."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from gateway.api.bodies import body_of
from gateway.api.fleet_wide import FanOut, summary

TIMEOUT_S = 600.0  # a long record takes minutes to write


def profile_routes(fan_out: FanOut, *, max_body_bytes: int) -> APIRouter:
    """The answer says for each worker where its file is."""
    router = APIRouter()

    @router.post("/start_profile")
    @router.post("/stop_profile")
    async def profile(request: Request) -> Response:
        body = await body_of(request, max_body_bytes)
        path: str = request.scope["route"].path
        workers, headers = fan_out.workers(), request.headers.raw
        return summary(await fan_out.post_to(workers, path, headers, body, timeout_s=TIMEOUT_S))

    return router
