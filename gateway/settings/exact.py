"""How prompts are compared with caches: by text and memory, or by token ids and what workers say."""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import field_validator

from common.settings import Settings, option
from gateway.kv_events.endpoints import given_endpoints

_option = partial(option, category="Routing")


class ExactSettings(Settings):
    """Exact mode."""

    routing_mode: Literal["approximate", "exact"] = _option(
        "approximate",
        "approximate = remember which text went where; exact = follow workers' KV cache events and compare token ids, "
        "where workers publish them (--kv-events-config) and this machine has the tokenizer",
    )
    exact_tokenizer_path: str | None = _option(
        None,
        "exact mode: directory with tokenizer and chat template; without it the one that the workers use",
        min_length=1,
        path=True,
    )
    kv_events_endpoints: list[str] = _option(
        [],
        "exact mode: where the events of workers come from that do not tell it in /server_info: "
        "WORKER_URL=EVENTS[,REPLAY[,LOAD]] each, with ZMQ endpoints like tcp://host:5557",
    )
    exact_index_bytes: int = _option(
        256 * 2**20, "exact mode: bytes of memory for what workers hold, all together", ge=2**20
    )
    exact_token_cache_bytes: int = _option(64 * 2**20, "exact mode: bytes of memory for remembered token ids", ge=2**20)

    @field_validator("kv_events_endpoints", mode="after")
    @classmethod
    def _check_endpoints(cls, value: list[str]) -> list[str]:
        given_endpoints(value)
        return value
