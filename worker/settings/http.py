"""The replica's address, its HTTP server and who may call it."""

from __future__ import annotations

from functools import partial

from pydantic import model_validator

from common.settings import option
from common.tls import TlsSettings

_option = partial(option, category="HTTP server")


class HttpSettings(TlsSettings):
    """HTTP server."""

    host: str = _option("127.0.0.1", "address to bind", min_length=1)
    port: int = _option(30000, "port to bind; 0 = any free one", ge=0, le=65535)
    fastapi_root_path: str = _option("", "path prefix that a proxy in front cuts off")
    api_key: str | None = _option(None, "clients must send it as bearer token", min_length=1, secret=True)
    admin_api_key: str | None = _option(
        None, "administrators must send it as bearer token; without it --api-key", min_length=1, secret=True
    )
    max_body_bytes: int = _option(64 * 2**20, "largest request body in bytes", ge=1024)
    skip_server_warmup: bool = _option(False, "no warm-up request; there is none, so this changes nothing")

    warmups: list[str] = _option([], "named warm-up runs", not_built="leave it out")
    nccl_port: int | None = _option(None, "port for communication between GPUs", not_built="leave it out")
    grpc_port: int | None = _option(None, "gRPC beside HTTP", not_built="HTTP is the only protocol, leave it out")
    smg_grpc_mode: bool = _option(
        False,
        "gRPC in place of HTTP",
        deprecated=["grpc-mode"],
        not_built="HTTP is the only protocol, leave it out",
    )
    enable_http2: bool = _option(False, "HTTP/2", not_built="put a proxy in front of the gateway for HTTP/2")
    http2_max_concurrent_streams: int = _option(200, "streams of an HTTP/2 connection", not_built="leave it out")
    enable_ssl_refresh: bool = _option(
        False, "read changed certificates again", not_built="restart the replica with the new certificate"
    )

    @model_validator(mode="after")
    def _check_root_path(self) -> HttpSettings:
        path = self.fastapi_root_path
        if path and (not path.startswith("/") or path.endswith("/")):
            raise ValueError(f"--fastapi-root-path {path} must begin with a slash and not end with one, as in /v2.")
        return self
