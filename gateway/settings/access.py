"""Who may call the gateway, and with which key the gateway calls its workers."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from common.settings import Settings, option

_option = partial(option, category="Access")


class AccessSettings(Settings):
    """Keys and limits of those who have one."""

    api_key: list[Annotated[str, Field(min_length=1)]] = _option(
        [], "clients must send it, or one of several, as bearer token", secret=True
    )
    api_key_file: str | None = _option(
        None,
        "YAML list of further keys, each with its own limits: key, name, priority, max_concurrent_requests, "
        "requests_per_second",
        min_length=1,
        path=True,
    )
    admin_api_key: str | None = _option(
        None, "administrators must send it as bearer token; without it --api-key", min_length=1, secret=True
    )
    worker_api_key: str | None = _option(
        None,
        "bearer token for workers that were registered without one of their own",
        min_length=1,
        secret=True,
    )
    key_max_concurrent_requests: int = _option(
        -1, "requests that one API key may have in the gateway at once; -1 = any number", ge=-1
    )
    key_requests_per_second: float = _option(
        0, "requests a second that one API key may begin, with bursts of two seconds' worth; 0 = any number", ge=0
    )

    @field_validator("api_key", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_keys(self) -> AccessSettings:
        if self.admin_api_key is not None and self.admin_api_key in self.api_key:
            raise ValueError("--admin-api-key must differ from --api-key; leave it out if one key is to open all.")
        return self
