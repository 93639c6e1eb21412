"""Which web pages may call the gateway from a browser (--cors-allowed-origins)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from starlette.middleware.cors import CORSMiddleware

from gateway.api.proxied import Asgi

_EXPOSED = ("x-request-id", "x-canopy-route", "retry-after")


def for_browsers(app: Asgi, origins: Sequence[str]) -> Asgi:
    """`app`, answering the browsers' questions about pages of these origins. No cookies: keys travel in a header."""
    return CORSMiddleware(
        cast(Any, app), allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=_EXPOSED
    )
