"""How many requests the gateway lets through at once, and how long others wait for their turn."""

from __future__ import annotations

from functools import partial

from pydantic import field_validator

from common.settings import Settings, option

_option = partial(option, category="Admission")


class AdmissionSettings(Settings):
    """Bounds on requests, all clients together."""

    max_concurrent_requests: int = _option(
        -1, "requests that are with workers at once, of this gateway; more wait in the queue; -1 = any number", ge=-1
    )
    rate_limit_tokens_per_second: float | None = _option(
        None,
        "requests a second that may begin, one token each, with bursts of a second's worth; more wait in the queue",
        gt=0,
    )
    queue_size: int = _option(100, "requests that may wait for their turn; more get 503 at once", ge=0)
    queue_bytes: int = _option(
        256 * 2**20, "bytes of request bodies that may wait for their turn; more get 503 at once", ge=0
    )
    queue_timeout_s: float = _option(
        60, "seconds a request may wait for its turn; then it gets 503", aliases=["queue-timeout-secs"], gt=0
    )

    @field_validator("max_concurrent_requests")
    @classmethod
    def _not_zero(cls, value: int) -> int:
        if value == 0:
            raise ValueError("0 would let no request through; give -1 for any number")
        return value
