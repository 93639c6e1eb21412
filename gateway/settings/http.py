"""The gateway's HTTP server: TLS, origins of browsers, and bounds on connections."""

from __future__ import annotations

from functools import partial
from urllib.parse import urlsplit

from pydantic import field_validator

from common.settings import option
from common.tls import TlsSettings

_option = partial(option, category="HTTP server")


class HttpSettings(TlsSettings):
    """HTTP server, beside address and way of working."""

    gateway_processes: int = _option(
        1, "processes that answer on the port, each with its own connections, index and share of the limits", ge=1
    )
    cors_allowed_origins: list[str] = _option(
        [], "origins whose pages may call the gateway from a browser, https://host each; * = all"
    )
    max_connections: int = _option(
        16384, "open connections of clients; more are closed with a 503 at once", ge=1, aliases=["limit-connections"]
    )
    head_timeout_s: float = _option(
        15, "seconds from a connection's or request's first sign of life until its head is complete", gt=0
    )
    body_timeout_s: float = _option(
        30, "seconds until a request's body is complete, and one more for each 16 KiB that came", gt=0
    )

    @field_validator("cors_allowed_origins", mode="after")
    @classmethod
    def _check_origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            parts = urlsplit(origin)
            if origin != "*" and (not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}"):
                raise ValueError(f"{origin!r} is not an origin as browsers name it; write https://host or *")
        return value
