"""The default policy: each worker is priced in seconds for this request, the cheapest gets it.

    price = queue wait + prefill of what the worker lacks + running requests + what is displaced from its cache

There is no switch between affinity and balance: a worker that holds the prefix is cheap until its queue costs more
than prefilling elsewhere. Equal prices go to the least busy.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.clock import Clock
from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.routing.policy import Choice, RouteRequest
from gateway.routing.prefix_index import BLOCK_BYTES, PrefixIndex, chain
from gateway.routing.prices import Prices
from gateway.routing.simple import queue_length

_RELIMIT_SHARE = 0.1  # change in the length of tokens after which capacities in blocks are worked out anew
Offer = tuple[float, float, int, WorkerView]  # price_s, work_tokens, blocks known, worker


class CacheAware:
    """Keeps a prefix index, and learns each worker's prefill speed and how long tokens are."""

    def __init__(self, index: PrefixIndex, clock: Clock, prices: Prices) -> None:
        self._index = index
        self._clock = clock
        self._prices = prices
        self._bytes_per_token = self._limits_at = prices.bytes_per_token
        self._reuse_s = prices.reuse_s
        self._fleet_speed = prices.prefill_tokens_per_s
        self._speeds: dict[int, float] = {}  # life -> prefill tokens/s, once seen
        self._version = -1

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        if snapshot.version != self._version:
            self._follow(snapshot)
        index, now_s = self._index, self._clock.now_s()
        hashes = chain(request.text)
        tokens, block_tokens = self._measure(request)
        offers = [self._offer(worker, hashes, tokens, block_tokens, now_s) for worker in candidates]
        _, work_tokens, known, worker = self._best(offers)
        touched_s = self._note_reuse(worker.life, hashes[known - 1], now_s) if known else None
        if hashes:
            index.insert(worker.life, hashes, now_s)
        prompt_tokens = round(tokens)
        return Choice(
            worker=worker,
            reason="prefix" if known else ("spread" if hashes else "load"),
            prompt_tokens=prompt_tokens,
            cached_tokens=min(round(known * block_tokens), max(prompt_tokens - 1, 0)),
            wait_s=work_tokens / self._speed(worker.life),
            work_tokens=work_tokens,
            hashes=hashes,
            known_blocks=known,
            text_bytes=0 if request.prompt_tokens or not request.single else request.prompt_bytes,
            touched_s=touched_s,
            chosen_s=now_s,
        )

    def started(self, choice: Choice, elapsed_s: float) -> None:
        """Learn how fast the worker prefills."""
        prices, life = self._prices, choice.worker.life
        speed = self._speed(life)
        if elapsed_s > 0 and choice.work_tokens >= prices.min_learning_tokens:
            seen = choice.work_tokens / elapsed_s
            self._speeds[life] = speed + prices.learning_rate * (seen - speed)
            self._fleet_speed += prices.learning_rate * (seen - self._fleet_speed)

    def served(self, choice: Choice, prompt_tokens: int, cached_tokens: int) -> None:
        """Learn how long tokens are, and what the worker has evicted."""
        prices = self._prices
        if choice.text_bytes and prompt_tokens >= prices.min_learning_tokens:
            seen = choice.text_bytes / prompt_tokens
            self._bytes_per_token += prices.learning_rate * (seen - self._bytes_per_token)
            if abs(self._bytes_per_token / self._limits_at - 1) > _RELIMIT_SHARE:
                self._version = -1
        missing_tokens = choice.cached_tokens - cached_tokens
        if choice.touched_s is None or missing_tokens <= self._block_tokens:
            return
        if choice.chosen_s - choice.touched_s >= prices.evidence_age_s:
            self._index.expire(choice.worker.life, choice.touched_s)

    def failed(self, choice: Choice) -> None:
        """It has not prefilled what we thought it would."""
        self._index.forget(choice.worker.life, choice.hashes[choice.known_blocks :])

    def _best(self, offers: list[Offer]) -> Offer:
        """The cheapest; of those about as cheap, the one with the least to do."""
        prices = self._prices
        cheapest_s = min([offer[0] for offer in offers])
        limit_s = cheapest_s + cheapest_s * prices.equal_share + prices.equal_s
        equal = [offer for offer in offers if offer[0] <= limit_s]
        return equal[0] if len(equal) == 1 else min(equal, key=_business)

    def _note_reuse(self, life: int, block: int, now_s: float) -> float | None:
        """When the last known block was touched before; learns how soon text is used again."""
        touched_s = self._index.touched_s(life, block)
        if touched_s is not None:
            self._reuse_s += self._prices.learning_rate * (now_s - touched_s - self._reuse_s)
        return touched_s

    @property
    def _block_tokens(self) -> float:
        return BLOCK_BYTES / self._bytes_per_token

    def _speed(self, life: int) -> float:
        """Tokens/s. A worker that has not shown its own is taken for an average one, not for a slow one."""
        return self._speeds.get(life, self._fleet_speed)

    def _offer(
        self, worker: WorkerView, hashes: tuple[int, ...], tokens: float, block_tokens: float, now_s: float
    ) -> Offer:
        """Time to this request's first token at one worker, plus what it costs others. Runs for each worker."""
        prices, load, life, limit = self._prices, worker.load, worker.life, worker.identity.max_running_requests
        known, room_blocks = self._index.look_up(life, hashes)
        speed = self._speeds.get(life, self._fleet_speed)
        if load.expiring:
            load.expire(now_s)
        work_tokens = tokens - known * block_tokens
        if work_tokens < 1.0:
            work_tokens = 1.0
        work_tokens += load.pending_tokens
        if load.others_tokens and load.report is not None:
            # What others have waiting there is worked off while the report ages.
            work_tokens += max(load.others_tokens - speed * (now_s - load.report.received_s), 0.0)
        running = load.inflight + load.others_requests
        price_s = (work_tokens + running * prices.running_tokens) / speed
        if limit and running >= limit:
            price_s += (running + 1 - limit) * prices.over_capacity_s
        excess_blocks = len(hashes) - known - room_blocks
        if excess_blocks > 0:
            price_s += self._displacement_s(life, excess_blocks * self._block_tokens, now_s)
        return price_s, work_tokens, known, worker

    def _displacement_s(self, life: int, tokens: float, now_s: float) -> float:
        """What others will prefill again because this request took the place of so many tokens."""
        oldest_s = self._index.oldest_s(life)
        age_s = now_s - oldest_s if oldest_s is not None else 0.0
        likelihood = self._reuse_s / (self._reuse_s + age_s)
        return self._prices.displacement * likelihood * tokens / self._speed(life)

    def _measure(self, request: RouteRequest) -> tuple[float, float]:
        """(tokens of the prompt, tokens of a block)."""
        if request.prompt_tokens:
            return float(request.prompt_tokens), BLOCK_BYTES * request.prompt_tokens / max(request.prompt_bytes, 1)
        return request.prompt_bytes / self._bytes_per_token, self._block_tokens

    def _follow(self, snapshot: Snapshot) -> None:
        """Lives that ended are purged; capacities are those the workers told last."""
        self._version = snapshot.version
        self._limits_at = self._bytes_per_token
        lives = {worker.life for worker in snapshot.workers}
        self._index.retain(lives)
        self._speeds = {life: speed for life, speed in self._speeds.items() if life in lives}
        for worker in snapshot.workers:
            tokens = worker.identity.max_total_tokens
            blocks = round(tokens * self._prices.capacity_share / self._block_tokens) if tokens else None
            self._index.limit(worker.life, blocks)


def _business(offer: Offer) -> tuple[int, int]:
    return queue_length(offer[3])
