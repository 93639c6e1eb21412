"""The default policy: each worker is priced in seconds for this request, the cheapest gets it.

    price = queue wait + prefill of what the worker lacks + running requests + burden on others

The burden is the larger of two: that prefill makes those wait who come next, the more the busier the worker (and less
at one that has had less to do than the mean of a busy fleet, such as a new one); and that its text takes the place of
other text in a full cache, which others will prefill again.

There is no switch between affinity and balance: a worker that holds the prefix is cheap until its queue costs more
than prefilling elsewhere. Equal prices go to the least busy.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import exp

import msgspec

from common.clock import Clock
from gateway.fleet.registry import Snapshot
from gateway.fleet.worker import WorkerView
from gateway.routing.policy import Choice, Offer, RouteRequest
from gateway.routing.prefix_knowledge import PrefixKnowledge
from gateway.routing.prices import Prices
from gateway.routing.simple import queue_length, twin
from gateway.routing.token_counts import Prompt

_FLEET_MOVED = 0.02  # change of the fleet's speed after which every worker's is worked out anew
MAX_PRICED = 32  # candidates; of more, those with the longest prefix and a random sample of the others


class Price(msgspec.Struct, frozen=True, gc=False):
    """What one worker costs one request, in seconds. `known_blocks`: of its prompt, held there.

    `exact_tokens`: held by the worker's own word, or on their way there; None if there is no word; goes before. `busy`:
    share of its time that it has had prefill for lately.
    """

    worker: WorkerView
    known_blocks: int
    queue_s: float
    prefill_s: float
    burden_s: float
    running_s: float
    over_capacity_s: float
    total_s: float
    busy: float
    exact_tokens: int | None = None

    def parts(self) -> dict[str, float]:
        """By name, for people."""
        return {
            "queue_s": self.queue_s,
            "prefill_s": self.prefill_s,
            "burden_s": self.burden_s,
            "running_s": self.running_s,
            "over_capacity_s": self.over_capacity_s,
        }


class SpeedEstimate:
    """Tokens prefilled over the time that took, of the last `memory_s` seconds of prefill or so.

    A ratio of sums, not a mean of ratios: short prefills, whose times say little, then weigh little.
    """

    __slots__ = ("_memory_s", "_seconds", "_tokens")

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._tokens = 0.0
        self._seconds = 0.0

    def note(self, tokens: float, seconds: float) -> None:
        """A prefill was seen."""
        keep = self._memory_s / (self._memory_s + seconds)
        self._tokens = keep * (self._tokens + tokens)
        self._seconds = keep * (self._seconds + seconds)

    def tokens_per_s(self, prior: float, prior_s: float) -> float:
        """The speed, where `prior` counts like `prior_s` seconds of prefill at that speed."""
        return (self._tokens + prior * prior_s) / (self._seconds + prior_s)


class CacheAware:
    """Keeps a prefix index, and learns each worker's prefill speed and how long tokens are.

    `min_match`: share of a prompt below which a match counts for nothing. A worker with over `hot_requests` more than
    the mean of the candidates, and over `hot_factor` times the mean, is not chosen for its prefix.
    """

    def __init__(
        self,
        knowledge: PrefixKnowledge,
        clock: Clock,
        rng: random.Random,
        prices: Prices,
        *,
        min_match: float = 0.0,
        hot_requests: int = 64,
        hot_factor: float = 1.5,
    ) -> None:
        self._knowledge = knowledge
        self.index = knowledge.index
        self._look_up = knowledge.index.look_up
        self._clock = clock
        self._rng = rng
        self._prices = prices
        self._min_match = min_match
        self._hot_requests = hot_requests
        self._hot_factor = hot_factor
        self._reuse_s = prices.reuse_s
        self._fleet = SpeedEstimate(prices.speed_memory_s)
        self._own: dict[int, SpeedEstimate] = {}  # by life, once seen
        self._fleet_speed = prices.prefill_tokens_per_s
        self._speeds: dict[int, float] = {}  # life -> tokens/s
        self._work: dict[int, tuple[float, float]] = {}  # life -> prefill tokens given lately, as of when

    def choose(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> Choice:
        if self._knowledge.follow(snapshot):
            self._forget_speeds(snapshot)
        knowledge, now_s = self._knowledge, self._clock.now_s()
        prompt = knowledge.read(request, request.model or candidates[0].model)
        price = self._best(self._price_all(prompt, candidates, now_s, self._rng))
        known, life = price.known_blocks, price.worker.life
        touched_s = self._note_reuse(life, prompt.hashes[known - 1], now_s) if known else None
        wait_s = price.queue_s + price.prefill_s
        knowledge.enter(life, prompt, now_s, wait_s)
        self._work[life] = self._recent_tokens(life, now_s) + price.prefill_s * self._speed(life), now_s
        return knowledge.choice(
            request,
            prompt,
            price.worker,
            known,
            _reason(price, prompt),
            touched_s,
            now_s,
            wait_s=wait_s,
            work_tokens=wait_s * self._speed(life),
            exact_tokens=price.exact_tokens,
        )

    def explain(self, request: RouteRequest, snapshot: Snapshot, candidates: Sequence[WorkerView]) -> list[Offer]:
        if self._knowledge.follow(snapshot):
            self._forget_speeds(snapshot)
        prompt = self._knowledge.read(request, request.model or candidates[0].model)
        now_s = self._clock.now_s()
        prices = self._price_all(prompt, candidates, now_s, twin(self._rng))
        best = self._best(prices)
        prices.sort(key=lambda price: (price is not best, price.total_s, *queue_length(price.worker)))
        return [self._offer(price, prompt) for price in prices]

    def _offer(self, price: Price, prompt: Prompt) -> Offer:
        worker, cached_tokens = price.worker, price.exact_tokens
        if cached_tokens is None:
            cached_tokens = self._knowledge.cached_tokens(prompt, worker, price.known_blocks)
        return Offer(worker, _reason(price, prompt), cached_tokens, price.total_s, price.parts())

    def started(self, choice: Choice, elapsed_s: float) -> None:
        """Learn how fast the worker prefills."""
        prices, life = self._prices, choice.worker.life
        if elapsed_s > 0 and choice.work_tokens >= prices.min_learning_tokens:
            self._fleet.note(choice.work_tokens, elapsed_s)
            self._own.setdefault(life, SpeedEstimate(prices.speed_memory_s)).note(choice.work_tokens, elapsed_s)
            self._update_speeds(life)

    def served(self, choice: Choice, prompt_tokens: int, cached_tokens: int, completion_tokens: int = 0) -> None:
        self._knowledge.learn(choice, prompt_tokens, cached_tokens, completion_tokens, self._clock.now_s())

    def failed(self, choice: Choice) -> None:
        self._knowledge.forget(choice)

    def _update_speeds(self, life: int) -> None:
        """All move with the fleet: a worker that has shown less than others must not seem slower for that."""
        prices = self._prices
        fleet_speed = self._fleet.tokens_per_s(prices.prefill_tokens_per_s, prices.first_prior_s)
        lives = [life]
        if abs(fleet_speed / self._fleet_speed - 1) > _FLEET_MOVED:
            self._fleet_speed = fleet_speed
            lives = list(self._own)
        for one in lives:
            self._speeds[one] = self._own[one].tokens_per_s(self._fleet_speed, prices.speed_prior_s)

    def _price_all(
        self, prompt: Prompt, candidates: Sequence[WorkerView], now_s: float, rng: random.Random
    ) -> list[Price]:
        """Time to this request's first token at each worker, plus what it costs others.

        The hottest loop of the gateway, so what it needs is at hand and it calls next to nothing.
        """
        if len(candidates) > MAX_PRICED:
            candidates = self._shortlist(prompt, candidates, now_s, rng)
        prices, speeds, fleet_speed, look_up = self._prices, self._speeds, self._fleet_speed, self._look_up
        hashes, block_tokens, blocks = prompt.hashes, prompt.block_tokens, len(prompt.hashes)
        least_tokens, hot = self._min_match * blocks * block_tokens, self._hot(candidates)
        busy_shares = self._busy(candidates, now_s)
        mean_busy = sum(busy_shares) / len(busy_shares)
        unevenness = min(mean_busy / prices.balance_from, 1.0)
        found = []
        for worker, busy in zip(candidates, busy_shares, strict=True):
            load, life, limit = worker.load, worker.life, worker.identity.max_running_requests
            known, room_blocks = look_up(life, hashes)
            known_tokens = known * block_tokens
            exact_tokens = self._knowledge.exact_tokens(life, prompt, now_s) if prompt.exact is not None else None
            if exact_tokens is not None:
                known_tokens = exact_tokens
            running = load.inflight + load.others_requests
            if known_tokens and (running > hot or known_tokens < least_tokens):
                known_tokens = known = 0
            speed = speeds.get(life, fleet_speed)
            if load.expiring:
                load.expire(now_s)
            queue_tokens: float = load.pending_tokens
            if load.others_tokens and load.report is not None:
                # What others have waiting there is worked off while the report ages.
                queue_tokens += max(load.others_tokens - speed * (now_s - load.report.received_s), 0.0)
            queue_s = queue_tokens / speed
            prefill_tokens = prompt.tokens - known_tokens
            prefill_s = (prefill_tokens if prefill_tokens > 1.0 else 1.0) / speed
            share = 1.0 - (1.0 - busy / mean_busy) * unevenness if busy < mean_busy else 1.0
            burden_s = (prices.repeat * share + prices.busy * busy / (1.0 - busy)) * prefill_s
            excess_blocks = blocks - known - room_blocks
            if excess_blocks > 0:
                displacement_s = self._displaced_tokens(life, excess_blocks * block_tokens, now_s) / speed
                if displacement_s > burden_s:
                    burden_s = displacement_s  # both stand for what others will wait
            running_s = running * prices.running_tokens / speed
            over_s = (running + 1 - limit) * prices.over_capacity_s if 0 < limit <= running else 0.0
            total_s = queue_s + prefill_s + burden_s + running_s + over_s
            found.append(
                Price(worker, known, queue_s, prefill_s, burden_s, running_s, over_s, total_s, busy, exact_tokens)
            )
        return found

    def _hot(self, candidates: Sequence[WorkerView]) -> float:
        """Requests beyond which a worker is not chosen for its prefix."""
        total = 0
        for worker in candidates:
            total += worker.load.inflight
        mean = total / len(candidates)
        return max(mean + self._hot_requests, mean * self._hot_factor)

    def _shortlist(
        self, prompt: Prompt, candidates: Sequence[WorkerView], now_s: float, rng: random.Random
    ) -> list[WorkerView]:
        """Workers with the longest prefix, and as many others drawn at random: the least busy of so many drawn ones is
        nearly the least busy of all, and nobody's price is worked out for nothing."""
        index, hashes = self._knowledge.index, prompt.hashes
        holders = index.holders(candidates, hashes[0]) if hashes else []
        low, high = 1, len(hashes)
        while len(holders) > MAX_PRICED // 2 and low < high:
            middle = (low + high + 1) // 2
            deeper = index.holders(holders, hashes[middle - 1])
            if deeper:
                holders, low = deeper, middle
            else:
                high = middle - 1
        if len(holders) > MAX_PRICED // 2:
            holders = rng.sample(holders, MAX_PRICED // 2)
        holders += self._knowledge.exact_holders(candidates, prompt, now_s)[: MAX_PRICED // 4]
        drawn = {worker.life: worker for worker in rng.sample(candidates, MAX_PRICED // 2)}
        return list((drawn | {worker.life: worker for worker in holders}).values())

    def _best(self, offers: list[Price]) -> Price:
        """The cheapest; of those about as cheap, the one with the least to do."""
        prices = self._prices
        cheapest_s = min([offer.total_s for offer in offers])
        limit_s = cheapest_s + cheapest_s * prices.equal_share + prices.equal_s
        best, least = offers[0], None
        for offer in offers:
            if offer.total_s <= limit_s and (least is None or _business(offer) < least):
                best, least = offer, _business(offer)
        return best

    def _note_reuse(self, life: int, block: int, now_s: float) -> float | None:
        """When the last known block was touched before; learns how soon text is used again."""
        touched_s = self._knowledge.index.touched_s(life, block)
        if touched_s is not None:
            self._reuse_s += self._prices.learning_rate * (now_s - touched_s - self._reuse_s)
        return touched_s

    def _speed(self, life: int) -> float:
        """Tokens/s. A worker that has not shown its own is taken for an average one, not for a slow one."""
        return self._speeds.get(life, self._fleet_speed)

    def _displaced_tokens(self, life: int, tokens: float, now_s: float) -> float:
        """Tokens that others will prefill again because this request takes the place of so many."""
        oldest_s = self._knowledge.index.oldest_s(life)
        age_s = now_s - oldest_s if oldest_s is not None else 0.0
        likelihood = self._reuse_s / (self._reuse_s + age_s)
        return self._prices.displacement * likelihood * tokens

    def _busy(self, candidates: Sequence[WorkerView], now_s: float) -> list[float]:
        """Share of its time that each worker has spent on prefill lately, by what it was given."""
        prices, speeds, work = self._prices, self._speeds, self._work
        recent_s, most_busy, fleet_speed = prices.recent_s, prices.most_busy, self._fleet_speed
        shares = []
        for worker in candidates:
            given = work.get(worker.life)
            if given is None:
                shares.append(0.0)
                continue
            tokens, when_s = given
            share = tokens * exp((when_s - now_s) / recent_s) / (speeds.get(worker.life, fleet_speed) * recent_s)
            shares.append(share if share < most_busy else most_busy)
        return shares

    def _recent_tokens(self, life: int, now_s: float) -> float:
        """Prefill given to a worker, the older the less it counts."""
        tokens, when_s = self._work.get(life, (0.0, now_s))
        return tokens * exp((when_s - now_s) / self._prices.recent_s)

    def _forget_speeds(self, snapshot: Snapshot) -> None:
        lives = {worker.life for worker in snapshot.workers}
        self._own = {life: own for life, own in self._own.items() if life in lives}
        self._speeds = {life: speed for life, speed in self._speeds.items() if life in lives}
        self._work = {life: work for life, work in self._work.items() if life in lives}


def _reason(price: Price, prompt: Prompt) -> str:
    """prefix: it holds some of it; spread: there is text, and the chosen worker lacks it; load: there is no text."""
    return "prefix" if price.known_blocks or price.exact_tokens else ("spread" if prompt.hashes else "load")


def _business(price: Price) -> tuple[int, int, float]:
    load = price.worker.load
    return load.inflight + load.others_requests, load.sent_total, price.busy
