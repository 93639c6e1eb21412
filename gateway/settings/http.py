"""The gateway's HTTP server: TLS, origins of browsers, and bounds on connections."""

from __future__ import annotations

from functools import partial

from pydantic import model_validator

from common.settings import Settings, flag_of, option

_option = partial(option, category="HTTP server")


class HttpSettings(Settings):
    """HTTP server, beside address and way of working."""

    gateway_processes: int = _option(
        1, "processes that answer on the port, each with its own connections, index and share of the limits", ge=1
    )
    ssl_keyfile: str | None = _option(None, "TLS private key, PEM; needs --ssl-certfile", min_length=1, path=True)
    ssl_certfile: str | None = _option(None, "TLS certificate chain, PEM; needs --ssl-keyfile", min_length=1, path=True)
    ssl_ca_certs: str | None = _option(
        None, "CA certificates, PEM; clients must show a certificate that they signed", min_length=1, path=True
    )
    ssl_keyfile_password: str | None = _option(None, "password of the TLS private key", min_length=1, secret=True)
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

    @model_validator(mode="after")
    def _check_tls(self) -> HttpSettings:
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ValueError("--ssl-keyfile and --ssl-certfile go together; give both or none.")
        for name in ("ssl_ca_certs", "ssl_keyfile_password"):
            if getattr(self, name) is not None and self.ssl_keyfile is None:
                raise ValueError(
                    f"{flag_of(name)} needs --ssl-keyfile and --ssl-certfile; give them too, or leave it out."
                )
        return self

    @property
    def tls(self) -> bool:
        """Whether clients must speak TLS."""
        return self.ssl_keyfile is not None
