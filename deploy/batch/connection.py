"""The gateway as a batch sees it: send one request, ask for the replicas' loads. HTTP by aiohttp, whose parser is C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from common.errors import UserError
from deploy.batch.lines import Request
from deploy.batch.steering import ReplicaLoad

_ASK_TIMEOUT_S = 10.0


class Unreachable(Exception):
    """No connection: nobody has seen the request."""


class Broken(Exception):
    """The connection broke, or nothing came for too long, after the request was sent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: bytes
    request_id: str
    retry_after_s: float | None


class _Load(msgspec.Struct):
    running_requests: int = 0
    waiting_requests: int = 0
    token_usage: float = 0.0


class _Worker(msgspec.Struct):
    state: str
    load: _Load | None = None


class _Workers(msgspec.Struct):
    workers: list[_Worker]


class Connection:
    """Speaks to one gateway with one key. Use as an async context."""

    def __init__(self, base_url: str, api_key: str | None, *, answer_timeout_s: float) -> None:
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {api_key}"} if api_key else {})
        self._base_url = base_url.rstrip("/")
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=answer_timeout_s, sock_connect=_ASK_TIMEOUT_S),
            auto_decompress=False,
        )

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def send(self, request: Request) -> Answer:
        """Raises Unreachable or Broken."""
        try:
            async with self._session.post(self._base_url + request.url, data=request.body) as response:
                body = await response.read()
                head = response.headers
                return Answer(
                    response.status, body, head.get("x-request-id", ""), _seconds(head.get("retry-after", ""))
                )
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(str(error)) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Broken(str(error) or type(error).__name__) from None

    async def loads(self) -> list[ReplicaLoad]:
        """Of the ready replicas. Raises Unreachable, or UserError if this is no gateway or the key is wrong."""
        timeout = aiohttp.ClientTimeout(total=_ASK_TIMEOUT_S)
        try:
            async with self._session.get(f"{self._base_url}/workers", timeout=timeout) as response:
                body, status = await response.read(), response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(str(error) or type(error).__name__) from None
        if status in (401, 403):
            raise UserError(
                f"{self._base_url} does not tell its replicas' loads without a key (HTTP {status}); give --api-key the "
                "gateway's admin key, or --max-concurrency with --no-steer."
            )
        if status >= 500:
            raise Unreachable(f"HTTP {status}")
        return _loads(status, body, self._base_url)


def _loads(status: int, body: bytes, base_url: str) -> list[ReplicaLoad]:
    try:
        found = msgspec.json.decode(body, type=_Workers) if status == 200 else None
    except (msgspec.DecodeError, msgspec.ValidationError):
        found = None
    if found is None:
        raise UserError(
            f"{base_url}/workers is not a Canopy gateway's (HTTP {status}); give --base-url that of a gateway, or "
            "--max-concurrency with --no-steer."
        )
    return [_replica_load(worker.load) for worker in found.workers if worker.state == "ready"]


def _replica_load(load: _Load | None) -> ReplicaLoad:
    if load is None:
        return ReplicaLoad()
    return ReplicaLoad(load.running_requests, load.waiting_requests, load.token_usage)


def _seconds(retry_after: str) -> float | None:
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        return None


def usage_of(body: bytes) -> tuple[int, int, int]:
    """(prompt, cached, completion) tokens of an answer; zeros where it does not say."""
    try:
        found = msgspec.json.decode(body, type=_Counted)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return 0, 0, 0
    if found.meta_info is not None:
        meta = found.meta_info
        return meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens
    usage = found.usage or _Usage()
    details: Any = usage.prompt_tokens_details or _Details()
    return usage.prompt_tokens, details.cached_tokens, usage.completion_tokens


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Meta(msgspec.Struct):
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class _Counted(msgspec.Struct):
    usage: _Usage | None = None
    meta_info: _Meta | None = None
