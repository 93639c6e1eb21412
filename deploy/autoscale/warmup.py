"""Warms a new replica before it counts: it computes the prefixes that its siblings are asked for most.

The siblings tell them as token ids (GET /v1/hot_prefixes); the new one computes each with an answer of one token. Both
tokens and time are bounded. A failure costs the warmth, never the replica: the caller takes it as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import msgspec

from deploy.fleet.description import AutoscalingDescription, ModelDescription
from deploy.fleet.load_probe import key_header
from deploy.fleet.scaling import ReplicaLoad, ReplicaView

MAX_WARM_S = 10.0
_ASK_TIMEOUT_S = 3.0
_MAX_ASKED = 4  # siblings
_POOL_SHARE = 0.5  # of the new replica's KV pool
_PARALLEL = 4
_LOG = logging.getLogger(__name__)


class _Prefix(msgspec.Struct, frozen=True):
    input_ids: list[int]
    hits: int


class _Answer(msgspec.Struct, frozen=True):
    prefixes: list[_Prefix]


@dataclass(frozen=True, slots=True)
class PrefixWarmer:
    """Implements Warmer. `transport`: for tests."""

    transport: httpx.AsyncBaseTransport | None = None

    async def warm(self, url: str, model: ModelDescription, siblings: Sequence[ReplicaView]) -> None:
        wanted = model.autoscaling or AutoscalingDescription()
        asked = sorted(siblings, key=_hits, reverse=True)[:_MAX_ASKED]
        pools = [load.max_total_tokens for s in siblings if (load := s.load) is not None and load.max_total_tokens]
        max_tokens = int(min([wanted.warm_tokens, *(_POOL_SHARE * pool for pool in pools)]))
        if not asked or not max_tokens:
            return
        client = httpx.AsyncClient(
            headers=key_header(model.engine), timeout=_ASK_TIMEOUT_S, trust_env=False, transport=self.transport
        )
        async with client, asyncio.timeout(MAX_WARM_S):
            told = await asyncio.gather(*(_ask(client, sibling.url, max_tokens) for sibling in asked))
            chosen = choose([prefix for prefixes in told for prefix in prefixes], max_tokens)
            await _compute(client, url, chosen)
        if chosen:
            _LOG.info("%s warmed with %d prefixes, %d tokens", url, len(chosen), sum(map(len, chosen)))


def choose(prefixes: Sequence[_Prefix], max_tokens: int) -> list[list[int]]:
    """The hottest prefixes of several replicas, each once, that together have at most `max_tokens` tokens.

    A prefix that begins one already chosen costs nothing and is left out; the hits of equal ones add up.
    """
    hits: dict[tuple[int, ...], int] = {}
    for prefix in prefixes:
        key = tuple(prefix.input_ids)
        hits[key] = hits.get(key, 0) + prefix.hits
    chosen: list[tuple[int, ...]] = []
    left = max_tokens
    for key in sorted(hits, key=lambda key: (-hits[key], key)):
        if not key or any(other[: len(key)] == key for other in chosen):
            continue
        new = len(key) - max((_shared(key, other) for other in chosen), default=0)
        if new <= left:
            chosen.append(key)
            left -= new
    return [list(key) for key in chosen]


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    for number, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return number
    return min(len(one), len(other))


def _hits(sibling: ReplicaView) -> int:
    return (sibling.load or ReplicaLoad()).cached_tokens_total


async def _ask(client: httpx.AsyncClient, url: str, max_tokens: int) -> list[_Prefix]:
    """The hot prefixes of one replica; none if it does not tell them."""
    try:
        answer = await client.get(f"{url}/v1/hot_prefixes", params={"max_tokens": max_tokens})
        answer.raise_for_status()
        return msgspec.json.decode(answer.content, type=_Answer).prefixes
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        _LOG.warning("%s does not tell its hot prefixes: %s", url, error)
        return []


async def _compute(client: httpx.AsyncClient, url: str, prefixes: Sequence[list[int]]) -> None:
    """Raises OSError when the replica refuses or breaks off."""
    places = asyncio.Semaphore(_PARALLEL)

    async def one(input_ids: list[int]) -> None:
        body = {"input_ids": input_ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        async with places:
            answer = await client.post(f"{url}/generate", json=body, timeout=MAX_WARM_S)
            answer.raise_for_status()

    try:
        await asyncio.gather(*map(one, prefixes))
    except httpx.HTTPError as error:
        raise OSError(f"a prefix could not be computed: {error}") from None
