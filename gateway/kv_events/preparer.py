"""Gives a request its prompt's token ids before it is routed: in a thread, and only as long as routing may wait."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from common.logs import REQUEST_ID
from gateway.fleet.registry import Registry
from gateway.kv_events.exact_index import ExactIndex
from gateway.kv_events.follower import EventFollower
from gateway.kv_events.prompt_tokens import UNKNOWN, PromptTokens
from gateway.kv_events.prompts import Ids, Unforeseeable, read_prompt
from gateway.kv_events.tokenizers import PromptEncoder, Tokenizers
from gateway.routing.policy import RouteRequest
from gateway.routing.router import RouteFault, candidates_for

_LOG = logging.getLogger("gateway.tokenizer")
_MAX_BODY_BYTES = 4 * 2**20  # of a request whose prompt is looked at
_TIMEOUT_S = 0.5


class Preparer:
    """`results` counts prompts: tokenised, remembered, given as ids; or by why they are compared by text."""

    def __init__(self, registry: Registry, index: ExactIndex, follower: EventFollower, tokenizers: Tokenizers) -> None:
        self._registry = registry
        self._index = index
        self._follower = follower
        self._tokenizers = tokenizers
        self._tasks: set[asyncio.Task[None]] = set()
        self.results: Counter[str] = Counter()

    def prepare(
        self, body: bytes, route: RouteRequest, done: Callable[[RouteRequest], None], request_id: bytes
    ) -> None:
        """Call `done` with the request and its tokens (UNKNOWN if there is no telling), at once or later."""
        task = asyncio.get_running_loop().create_task(self._prepare(body, route, done, request_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def with_tokens(self, body: bytes, route: RouteRequest) -> RouteRequest:
        """The same, to be awaited."""
        try:
            tokens = await self._tokens(body, route)
        except Unforeseeable as fault:
            self.results[str(fault)] += 1
            tokens = UNKNOWN
        except Exception:  # whatever a tokenizer does, the request goes on
            _LOG.exception("the tokens of a prompt cannot be worked out")
            self.results["failed"] += 1
            tokens = UNKNOWN
        return msgspec.structs.replace(route, tokens=tokens)

    async def _prepare(
        self, body: bytes, route: RouteRequest, done: Callable[[RouteRequest], None], request_id: bytes
    ) -> None:
        REQUEST_ID.set(request_id.decode("latin-1"))
        done(await self.with_tokens(body, route))

    async def _tokens(self, body: bytes, route: RouteRequest) -> PromptTokens:
        if not self._index.lives:
            raise Unforeseeable("no_stream")
        if len(body) > _MAX_BODY_BYTES or not route.text:
            raise Unforeseeable("too_long" if route.text else "malformed")
        encoder, sizes = self._encoder(route.model), self._index.block_sizes()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                tokens, result = await self._tokenizers.run(lambda: _encode(encoder, body, sizes))
        except TimeoutError:
            raise Unforeseeable("timeout") from None
        self.results[result] += 1
        return tokens

    def _encoder(self, model: str | None) -> PromptEncoder | None:
        """Of the model that a request is for."""
        try:
            workers = candidates_for(self._registry.snapshot, model)
        except RouteFault:
            raise Unforeseeable("no_worker") from None
        encoders = (self._tokenizers.get(self._follower.source_of(worker)) for worker in workers)
        return next((encoder for encoder in encoders if encoder is not None), None)


def _encode(encoder: PromptEncoder | None, body: bytes, block_sizes: Iterable[int]) -> tuple[PromptTokens, str]:
    """In a thread: (tokens with their hashes, the metric's label). Raises Unforeseeable."""
    prompt, extra_key = read_prompt(body)
    if isinstance(prompt, Ids):
        packed, result = prompt.packed, "ids"
    elif encoder is None:
        raise Unforeseeable("no_tokenizer")
    else:
        packed, remembered = encoder.encode(prompt)
        result = "remembered" if remembered else "tokenised"
    tokens = PromptTokens(packed, extra_key)
    for size in block_sizes:
        tokens.hashes(size)
    return tokens, result
