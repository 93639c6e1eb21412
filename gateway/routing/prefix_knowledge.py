"""What is known about prompts and caches: which worker holds which prefix, how long tokens are, what answers taught.

Policies that look at prompts ask here, and the shadow policy's bookkeeping does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from xxhash import xxh3_64_intdigest

from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.kv_events.exact_index import ExactIndex
from gateway.routing.policy import Choice, RouteRequest
from gateway.routing.prefix_index import BLOCK_BYTES, PrefixIndex, chain
from gateway.routing.prices import Prices
from gateway.routing.token_counts import Prompt, TokenCounts

_PROMISE_S = 5.0  # beyond twice the expected wait, until a prompt must be in a worker's cache if it ever will
_EVENTS_S = 0.2  # after an answer, within which the worker's word of it may be on its way still
_COUNTS_SHARE = 8  # 1 of so many bytes of the index may be token counts


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
        counts_bytes = max_bytes // _COUNTS_SHARE
        self.index = PrefixIndex(max_bytes - counts_bytes)
        self._counts = TokenCounts(counts_bytes, prices)
        self._prices = prices
        self._max_blocks = max_blocks_per_worker
        self._version = -1

    def follow(self, snapshot: Snapshot) -> bool:
        """Purge lives that ended, take over capacities. Returns whether anything may have changed; cheap if not."""
        if snapshot.version == self._version:
            return False
        self._version = snapshot.version
        self.index.retain({worker.life for worker in snapshot.workers})
        for worker in snapshot.workers:
            pool_bytes = worker.identity.max_total_tokens * self._counts.bytes_per_token(worker.model)
            blocks = round(pool_bytes * self._prices.capacity_share / BLOCK_BYTES) if pool_bytes else self._max_blocks
            if blocks is not None and self._max_blocks is not None:
                blocks = min(blocks, self._max_blocks)
            self.index.limit(worker.life, blocks)
        return True

    def read(self, request: RouteRequest, model: str) -> Prompt:
        """The blocks of a prompt to `model`, and how many tokens it has."""
        seed, text, num_bytes = seed_of(model), request.text, request.prompt_bytes
        hashes = chain(text, seed=seed) if len(text) >= BLOCK_BYTES else ()
        known = request.tokens if request.tokens is not None and request.tokens.count else None
        count = request.prompt_tokens if known is None else known.count
        bytes_per_token = max(num_bytes, 1) / count if count else self._counts.bytes_per_token(model)
        tokens = float(count) if count else num_bytes / bytes_per_token
        return Prompt(hashes, tokens, BLOCK_BYTES / bytes_per_token, known, text, num_bytes, seed)

    def cached_tokens(self, prompt: Prompt, worker: WorkerView, known_blocks: int) -> int:
        """What a worker that holds so many of its blocks will report as cached."""
        return self._counts.expect(prompt, worker, known_blocks)[0]

    def exact_tokens(self, life: int, prompt: Prompt, now_s: float) -> int | None:
        """The same by the worker's own word; None if it tells nothing, or the prompt's tokens are not known. Prompts on
        their way count: whoever shares one finds it, or waits for it at the worker."""
        index, tokens = self._exact, prompt.exact
        block_size = index.block_size(life) if index is not None and tokens is not None else None
        if index is None or tokens is None or block_size is None:
            return None
        if not block_size:
            return 0
        matched = index.matched(life, tokens.hashes(block_size), now_s)
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
        cached_tokens, prompt_tokens, start_key, end_key, turn_s = self._counts.expect(prompt, worker, known_blocks)
        if exact_tokens is not None and (turn_s is None or now_s - turn_s > _EVENTS_S or exact_tokens > cached_tokens):
            cached_tokens = exact_tokens
        if request.prompt_tokens or prompt.exact is not None:
            prompt_tokens = int(prompt.tokens)
        is_plain_text = request.single and not (request.prompt_tokens or request.media)
        return Choice(
            worker=worker,
            reason=reason,
            prompt_tokens=prompt_tokens if prompt_tokens > cached_tokens else cached_tokens + (cached_tokens > 0),
            cached_tokens=cached_tokens,
            wait_s=wait_s,
            hashes=prompt.hashes,
            known_blocks=known_blocks,
            work_tokens=work_tokens,
            text_bytes=request.prompt_bytes if is_plain_text else 0,
            touched_s=touched_s,
            chosen_s=now_s,
            tokens=prompt.exact,
            start_key=start_key,
            end_key=end_key,
            follows_turn=turn_s is not None,
        )

    def enter(self, life: int, prompt: Prompt, now_s: float, wait_s: float = 0.0) -> None:
        """This life is going to hold the prompt, in `wait_s` or so."""
        if prompt.hashes:
            self.index.insert(life, prompt.hashes, now_s)
        if self._exact is not None and prompt.exact is not None and (size := self._exact.block_size(life)):
            self._exact.promise(life, prompt.exact.hashes(size), now_s + 2 * wait_s + _PROMISE_S)

    def learn(
        self, choice: Choice, prompt_tokens: int, cached_tokens: int, completion_tokens: int, now_s: float
    ) -> None:
        """Learn how long tokens are, true counts, and what the worker has evicted."""
        prices, counts, model = self._prices, self._counts, choice.worker.model
        if (
            choice.text_bytes
            and prompt_tokens >= prices.min_learning_tokens
            and counts.learn_length(model, choice.text_bytes, prompt_tokens)
        ):
            self._version = -1
        counts.learn(choice, prompt_tokens, cached_tokens, completion_tokens, now_s)
        block_tokens = BLOCK_BYTES / counts.bytes_per_token(model)
        if choice.touched_s is None or (choice.known_blocks - 1) * block_tokens <= cached_tokens:
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
