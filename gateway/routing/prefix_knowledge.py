"""What is known about prompts and caches: which worker holds which prefix, how long tokens are, what answers taught.

Policies that look at prompts ask here, and the shadow policy's bookkeeping does.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.kv_events.exact_index import ExactIndex
from gateway.kv_events.prompt_tokens import PromptTokens
from gateway.routing.policy import Choice, RouteRequest
from gateway.routing.prefix_index import BLOCK_BYTES, PrefixIndex, chain
from gateway.routing.prices import Prices

_RELIMIT_SHARE = 0.1  # change in the length of tokens after which capacities in blocks are worked out anew
_NEAR_BLOCKS = 1.5  # of the estimate, or of what is known already: what is further off tells of other things
_ANCHOR_BYTES = 256  # of memory for one anchor
_STEP_S = 0.01  # of a worker: who comes so much later finds what was begun before
_PROMISE_S = 5.0  # beyond twice the expected wait, until a prompt must be in a worker's cache if it ever will
_ANCHOR_SHARE = 16  # 1 of so many bytes of the index may be anchors


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A request's prompt as the index sees it. `tokens`: estimated unless the client sent ids, or `exact` has them."""

    hashes: tuple[int, ...]
    tokens: float
    block_tokens: float
    exact: PromptTokens | None = None


class Anchors:
    """True token counts at ends of blocks, as answers told them: exact where the estimate by length is not.

    At the block where a prompt's match ended: the cached tokens. At a new prompt's last block: what a follow-up will
    find there, prompt and answer together.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max(max_entries, 1)
        self._tokens: OrderedDict[int, int] = OrderedDict()

    def get(self, block: int) -> int | None:
        """Tokens that a worker holding this block, and not the next, has of the prompt."""
        return self._tokens.get(block)

    def put(self, block: int, tokens: int) -> None:
        """Remember; the oldest goes if there are too many."""
        self._tokens[block] = tokens
        self._tokens.move_to_end(block)
        if len(self._tokens) > self._max_entries:
            self._tokens.popitem(last=False)


class PrefixKnowledge:
    """One index over all workers. `max_blocks_per_worker`: of text remembered for one of them. `exact`: in exact mode,
    what workers say themselves; it goes before what is remembered."""

    def __init__(
        self,
        max_bytes: int,
        prices: Prices,
        max_blocks_per_worker: int | None = None,
        exact: ExactIndex | None = None,
    ) -> None:
        self._exact = exact
        anchor_bytes = max_bytes // _ANCHOR_SHARE
        self.index = PrefixIndex(max_bytes - anchor_bytes)
        self._anchors = Anchors(anchor_bytes // _ANCHOR_BYTES)
        self._prices = prices
        self._max_blocks = max_blocks_per_worker
        self._bytes_per_token = self._limits_at = prices.bytes_per_token
        self._version = -1

    @property
    def block_tokens(self) -> float:
        """Tokens of a block, on average."""
        return BLOCK_BYTES / self._bytes_per_token

    def follow(self, snapshot: Snapshot) -> bool:
        """Purge lives that ended, take over capacities. Returns whether anything may have changed; cheap if not."""
        if snapshot.version == self._version:
            return False
        self._version = snapshot.version
        self._limits_at = self._bytes_per_token
        self.index.retain({worker.life for worker in snapshot.workers})
        for worker in snapshot.workers:
            tokens = worker.identity.max_total_tokens
            blocks = round(tokens * self._prices.capacity_share / self.block_tokens) if tokens else self._max_blocks
            if blocks is not None and self._max_blocks is not None:
                blocks = min(blocks, self._max_blocks)
            self.index.limit(worker.life, blocks)
        return True

    def read(self, request: RouteRequest, model: str) -> Prompt:
        """The blocks of a prompt to `model`, and how many tokens it has."""
        hashes = chain(request.text, seed=seed_of(model)) if len(request.text) >= BLOCK_BYTES else ()
        known = request.tokens
        if known is not None and known.count:
            block_tokens = BLOCK_BYTES * known.count / max(request.prompt_bytes, 1)
            return Prompt(hashes, float(known.count), block_tokens, known)
        if request.prompt_tokens:
            block_tokens = BLOCK_BYTES * request.prompt_tokens / max(request.prompt_bytes, 1)
            return Prompt(hashes, float(request.prompt_tokens), block_tokens)
        return Prompt(hashes, request.prompt_bytes / self._bytes_per_token, self.block_tokens)

    def cached_tokens(self, prompt: Prompt, known_blocks: int) -> int:
        """What a worker that holds so many of its blocks will report as cached."""
        if not known_blocks:
            return 0
        anchored = self._anchors.get(prompt.hashes[known_blocks - 1])
        if anchored is not None:
            return anchored
        return min(round(known_blocks * prompt.block_tokens), max(round(prompt.tokens) - 1, 0))

    def exact_tokens(self, life: int, prompt: Prompt, now_s: float, by_s: float = math.inf) -> int | None:
        """The same by the worker's own word; None if it tells nothing, or the prompt's tokens are not known. Prompts on
        their way count as far as they should be cached at `by_s`."""
        index, tokens = self._exact, prompt.exact
        block_size = index.block_size(life) if index is not None and tokens is not None else None
        if index is None or tokens is None or block_size is None:
            return None
        if not block_size:
            return 0
        matched = index.matched(life, tokens.hashes(block_size), now_s, by_s)
        return min(matched * block_size, tokens.count - 1)

    def exact_holders(self, workers: Sequence[WorkerView], prompt: Prompt, now_s: float) -> list[WorkerView]:
        """Those that have some of the prompt by their own word, who have most of it first."""
        if self._exact is None or prompt.exact is None:
            return []
        held = [(self.exact_tokens(worker.life, prompt, now_s) or 0, worker) for worker in workers]
        return [worker for tokens, worker in sorted(held, key=lambda pair: -pair[0]) if tokens]

    def choice(
        self,
        request: RouteRequest,
        prompt: Prompt,
        worker: WorkerView,
        known_blocks: int,
        reason: str,
        touched_s: float | None,
        now_s: float,
        wait_s: float = 0.0,
        work_tokens: float = 0.0,
        exact_tokens: int | None = None,
    ) -> Choice:
        """A choice with what is expected of it, in the form that `learn` and `forget` take back."""
        cached_tokens = self.cached_tokens(prompt, known_blocks) if exact_tokens is None else exact_tokens
        is_plain_text = request.single and not (request.prompt_tokens or request.media)
        return Choice(
            worker=worker,
            reason=reason,
            prompt_tokens=max(round(prompt.tokens), cached_tokens + 1 if known_blocks else 0),
            cached_tokens=cached_tokens,
            wait_s=wait_s,
            hashes=prompt.hashes,
            known_blocks=known_blocks,
            work_tokens=work_tokens,
            text_bytes=request.prompt_bytes if is_plain_text else 0,
            touched_s=touched_s,
            chosen_s=now_s,
            tokens=prompt.exact,
        )

    def enter(self, life: int, prompt: Prompt, now_s: float, queue_s: float = 0.0, wait_s: float = 0.0) -> None:
        """This life is going to hold the prompt: it begins with it in `queue_s`, and has it in `wait_s` or so."""
        if prompt.hashes:
            self.index.insert(life, prompt.hashes, now_s)
        if self._exact is not None and prompt.exact is not None and (size := self._exact.block_size(life)):
            ready_s = now_s + min(queue_s + _STEP_S, wait_s)
            self._exact.promise(life, prompt.exact.hashes(size), ready_s, now_s + 2 * wait_s + _PROMISE_S)

    def learn(self, choice: Choice, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> None:
        """Learn how long tokens are, true counts at ends of blocks, and what the worker has evicted."""
        prices, known = self._prices, choice.known_blocks
        if (
            self._exact is not None
            and choice.tokens is not None
            and (size := self._exact.block_size(choice.worker.life))
        ):
            self._exact.fulfil(choice.worker.life, choice.tokens.hashes(size))
        if choice.text_bytes and prompt_tokens >= prices.min_learning_tokens:
            seen = choice.text_bytes / prompt_tokens
            self._bytes_per_token += prices.learning_rate * (seen - self._bytes_per_token)
            if abs(self._bytes_per_token / self._limits_at - 1) > _RELIMIT_SHARE:
                self._version = -1
        known_tokens = known * self.block_tokens
        expected = choice.cached_tokens, known_tokens
        if known and min(abs(cached_tokens - tokens) for tokens in expected) <= _NEAR_BLOCKS * self.block_tokens:
            self._anchors.put(choice.hashes[known - 1], cached_tokens)
        if known < len(choice.hashes):
            # The last token of an answer is never computed on, so it is not cached.
            self._anchors.put(choice.hashes[-1], prompt_tokens + max(completion_tokens - 1, 0))
        if choice.touched_s is None or known_tokens - cached_tokens <= self.block_tokens:
            return
        if choice.chosen_s - choice.touched_s >= prices.evidence_age_s:
            self.index.expire(choice.worker.life, choice.touched_s)

    def forget(self, choice: Choice) -> None:
        """The worker has not computed what it was chosen for."""
        life, tokens = choice.worker.life, choice.tokens
        self.index.forget(life, choice.hashes[choice.known_blocks :])
        if self._exact is not None and tokens is not None and (size := self._exact.block_size(life)):
            self._exact.withdraw(life, tokens.hashes(size))


@lru_cache(maxsize=1024)
def seed_of(model: str) -> int:
    """Start of a chain: equal prompts to different models have nothing in common."""
    return xxh3_64_intdigest(model.encode())
