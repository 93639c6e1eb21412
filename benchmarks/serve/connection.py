"""The server that a run goes to: whether it is there, which model it has, and what is asked of it beside the load."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.serve.backends import BACKENDS, Ask, Wishes
from benchmarks.serve.client import Client
from benchmarks.serve.prompts import head
from benchmarks.serve.workloads import Session
from common.clock import MonotonicClock
from common.errors import UserError

_WARM_TOKENS = 8
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Target:
    """A base URL and the connections to it."""

    session: aiohttp.ClientSession
    base_url: str

    async def client(self, options: argparse.Namespace) -> Client:
        """Who sends the load. Raises UserError if the server does not name its model and nobody else does."""
        model = options.served_model_name or options.model or await _first_model(self)
        api = BACKENDS[options.backend]
        wishes = Wishes(
            model=model,
            stream=api.generates and not options.disable_stream,
            ignore_eos=api.generates and not options.disable_ignore_eos,
            temperature=options.temperature,
            top_p=options.top_p,
            extra=options.extra_request_body,
        )
        return Client(self.session, self.base_url, api, wishes, MonotonicClock())


@asynccontextmanager
async def connected(options: argparse.Namespace) -> AsyncIterator[Target]:
    """Connections without a bound, closed at the end. The key is OPENAI_API_KEY's."""
    base_url = (options.base_url or f"http://{options.host}:{options.port}").rstrip("/")
    if not base_url.startswith(("http://", "https://")):
        raise UserError(f"--base-url: {base_url!r} does not begin with http:// or https://.")
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=options.timeout_s, connect=60)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout, headers=headers, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        yield Target(session, base_url)


async def wait_ready(target: Target, timeout_s: float) -> None:
    """Until /health answers without a server fault; servers without it count as ready. Raises UserError in the end."""
    give_up_s = asyncio.get_running_loop().time() + timeout_s
    told = False
    while True:
        fault = await _fault(target)
        if fault is None:
            return
        if asyncio.get_running_loop().time() >= give_up_s:
            raise UserError(f"{target.base_url} is not ready ({fault}); is the server up, and is that its address?")
        if not told:
            print(f"Waiting up to {timeout_s:g} s for {target.base_url} ({fault}).", file=sys.stderr)
            told = True
        await asyncio.sleep(_RETRY_S)


async def warm_up(client: Client, sessions: Sequence[Session]) -> None:
    """One short request for each session. Raises UserError if one fails."""
    for session in sessions:
        turn = session.turns[0]
        tokens = min(_WARM_TOKENS, turn.output_tokens or _WARM_TOKENS)
        outcome = await client.send(Ask(head(turn.prompt, _WARM_TOKENS), tokens, turn.fields))
        if not outcome.success:
            raise UserError(f"The warm-up request failed: {outcome.error}")


async def flush_cache(target: Target) -> None:
    """Empties prefix caches. Raises UserError if the server does not."""
    async with target.session.post(f"{target.base_url}/flush_cache") as response:
        if response.status != 200:
            raise UserError(f"--flush-cache: the server answered {response.status}.")


async def server_info(target: Target) -> dict[str, Any] | None:
    """What the server tells about itself, None where it does not."""
    try:
        async with target.session.get(f"{target.base_url}/server_info") as response:
            found = await response.json() if response.status == 200 else None
    except (aiohttp.ClientError, OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


async def _fault(target: Target) -> str | None:
    try:
        async with target.session.get(f"{target.base_url}/health") as response:
            return f"/health answers {response.status}" if response.status >= 500 else None
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return str(error) or type(error).__name__


async def _first_model(target: Target) -> str:
    url = f"{target.base_url}/v1/models"
    try:
        async with target.session.get(url) as response:
            response.raise_for_status()
            return str((await response.json())["data"][0]["id"])
    except (aiohttp.ClientError, OSError, KeyError, IndexError, TypeError, ValueError) as error:
        raise UserError(f"{url} names no model ({error}): give --model.") from None
