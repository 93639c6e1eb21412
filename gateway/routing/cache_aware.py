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
Offer = tuple[float, float, int, WorkerView]  # price_s, work_tokens, blocks held, worker


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
        index, prices, now_s = self._index, self._prices, self._clock.now_s()
        hashes = chain(request.text)
        tokens, block_tokens = self._measure(request)
        offers: list[Offer] = []
        for candidate in candidates:
            held = index.matched(candidate.life, hashes)
            uncached = max(tokens - held * block_tokens, 1.0)
            speed = self._speed(candidate.life)
            work_tokens = uncached + self._waiting_tokens(candidate, speed, now_s)
            price_s = work_tokens / speed + self._running_s(candidate, speed)
            price_s += self._displacement_s(candidate, len(hashes) - held, now_s)
            offers.append((price_s, work_tokens, held, candidate))
        _, work_tokens, known, worker = self._best(offers)
        touched_s = index.touched_s(worker.life, hashes[known - 1]) if known else None
        if touched_s is not None:
            self._reuse_s += prices.learning_rate * (now_s - touched_s - self._reuse_s)
        index.insert(worker.life, hashes, now_s)
        return Choice(
            worker,
            "prefix" if known else ("spread" if hashes else "load"),
            prompt_tokens=round(tokens),
            cached_tokens=min(round(known * block_tokens), max(round(tokens) - 1, 0)),
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
        limit_s = min(offer[0] for offer in offers) * (1 + prices.equal_share) + prices.equal_s
        return min((offer for offer in offers if offer[0] <= limit_s), key=lambda offer: queue_length(offer[3]))

    @property
    def _block_tokens(self) -> float:
        return BLOCK_BYTES / self._bytes_per_token

    def _speed(self, life: int) -> float:
        """Tokens/s. A worker that has not shown its own is taken for an average one, not for a slow one."""
        return self._speeds.get(life, self._fleet_speed)

    def _waiting_tokens(self, worker: WorkerView, speed: float, now_s: float) -> float:
        """Prefill that stands before this request. What others have there is worked off while the report ages."""
        load, report = worker.load, worker.load.report
        load.expire(now_s)
        if report is None or not load.others_tokens:
            return float(load.pending_tokens)
        return load.pending_tokens + max(load.others_tokens - speed * (now_s - report.received_s), 0.0)

    def _running_s(self, worker: WorkerView, speed: float) -> float:
        """Requests there share the steps, and beyond the worker's limit they queue."""
        prices, running = self._prices, worker.load.requests
        excess = running + 1 - (worker.identity.max_running_requests or running + 1)
        return running * prices.running_tokens / speed + max(excess, 0) * prices.over_capacity_s

    def _displacement_s(self, worker: WorkerView, new_blocks: int, now_s: float) -> float:
        """What others will prefill again because this request took their place."""
        room = self._index.room(worker.life)
        if room is None or new_blocks <= room:
            return 0.0
        prices, oldest_s = self._prices, self._index.oldest_s(worker.life)
        age_s = now_s - oldest_s if oldest_s is not None else 0.0
        likelihood = self._reuse_s / (self._reuse_s + age_s)
        displaced_tokens = (new_blocks - room) * self._block_tokens
        return prices.displacement * likelihood * displaced_tokens / self._speed(worker.life)

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
