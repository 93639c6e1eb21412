"""GET /tuning."""

from __future__ import annotations

from fastapi import APIRouter, Response

from gateway.api.answers import fault
from gateway.tuning.mode import Tell


def tuning_routes(tell: Tell | None) -> APIRouter:
    """`tell` is None if the tuner is off."""
    router = APIRouter()

    @router.get("/tuning")
    async def tuning() -> Response:
        """What the tuning guide says to each worker: rule, what was seen, what it means, flags to change."""
        if tell is None:
            return fault(404, "This gateway does not look at tuning: --tuning-interval-s is 0.")
        body = await tell()
        if not body:
            return fault(503, "The gateway process that watches the workers is being started.", retry_after_s=1)
        return Response(body, media_type="application/json")

    return router
