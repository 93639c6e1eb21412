"""How prompts are compared with caches: by text and memory, or by token ids and what workers say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from pydantic import field_validator

from common.settings import Settings, option
from gateway.fleet.registry import check_url
from gateway.kv_events.endpoints import Endpoints, given_endpoints

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
        "where the events (exact mode) and the load of workers come from that do not tell it in /server_info: "
        "WORKER_URL=EVENTS[,REPLAY[,LOAD]] each, with ZMQ endpoints like tcp://host:5557",
    )
    exact_index_bytes: int = _option(
        256 * 2**20, "exact mode: bytes of memory for what workers hold, all together", ge=2**20
    )
    exact_token_cache_bytes: int = _option(64 * 2**20, "exact mode: bytes of memory for remembered token ids", ge=2**20)

    @field_validator("kv_events_endpoints", mode="after")
    @classmethod
    def _check_endpoints(cls, value: list[str]) -> list[str]:
        _by_worker(value)
        return value

    @property
    def stream_endpoints(self) -> dict[str, Endpoints]:
        """By the worker's URL in its normal form."""
        return _by_worker(self.kv_events_endpoints)


def _by_worker(value: Sequence[str]) -> dict[str, Endpoints]:
    return {check_url(url): endpoints for url, endpoints in given_endpoints(value).items()}
