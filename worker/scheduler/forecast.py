"""--schedule-conservativeness auto: reserves what running requests will need when they need most, learned from outputs.

Each running request ends at some time, and gives its tokens back. With S(t) the chance that it still runs after t more
steps, all of them together need, beside what they hold now,

    need(t) = sum over requests of S(t) * (held + t) - held        tokens on average, with variance
    spread(t)^2 = sum over requests of S(t) * (1 - S(t)) * (held + t)^2

and the reserve is the greatest need(t) + margin * (spread(t) + a share of the growth) over all t, where the share
falls with the number of outputs seen; but never more than all that the requests may still produce. The margin closes
the loop: a retraction raises it (margin.py).
"""

from __future__ import annotations

import logging
import math

import numpy as np

from common.clock import Clock
from worker.cache.pool import KvPool
from worker.engine.batch import Bools
from worker.log_lines import ConservativenessLine
from worker.scheduler.constants import CLIP_MAX_NEW_TOKENS, INIT_NEW_TOKEN_RATIO
from worker.scheduler.margin import Margin
from worker.scheduler.output_lengths import Floats, OutputLengths, class_of
from worker.scheduler.request import Request
from worker.scheduler.rows import Int64s, RequestTable

_DOUBT = 0.15  # how wrong the average growth may be, as a share of it, before any end was seen; falls as 1 / sqrt(ends)
_LONGEST_LENGTH = 16_384  # outputs; longer ones are taken to go on
_LOG_INTERVAL_S = 60.0
_GRID_GROWTH = 1.25

logger = logging.getLogger(__name__)


def _grid() -> Int64s:
    """Steps ahead at which need is computed: 1 to CLIP_MAX_NEW_TOKENS, close together at first."""
    steps = [1]
    while steps[-1] < CLIP_MAX_NEW_TOKENS:
        steps.append(min(max(steps[-1] + 1, int(steps[-1] * _GRID_GROWTH)), CLIP_MAX_NEW_TOKENS))
    return np.array(steps, np.int64)


class ForecastReserve:
    """Implements OutputReserve."""

    learns = True

    def __init__(self, pool: KvPool, table: RequestTable, clock: Clock, longest_tokens: int) -> None:
        self._pool = pool
        self._table = table
        self._clock = clock
        self._lengths = OutputLengths(min(longest_tokens, _LONGEST_LENGTH))
        self._steps = _grid()
        self._before = np.concatenate(([0], self._steps[:-1]))  # of each step of the grid, the one before
        self.margin = Margin(clock.now_s())
        self._mean = self._variance = self._growth = np.zeros(len(self._steps))
        self._reserved = self._most = 0.0
        self._charged = (self._mean, self._variance, self._growth, 0.0, 0.0)
        self._last_log_s = clock.now_s()

    @property
    def value(self) -> float:
        """Of the last admission pass."""
        return self._reserved / self._most if self._most else INIT_NEW_TOKEN_RATIO

    @property
    def conservativeness(self) -> float:
        """The value of --schedule-conservativeness whose initial ratio would reserve as much."""
        return self.value / INIT_NEW_TOKEN_RATIO

    def begin(self) -> float:
        now_s = self._clock.now_s()
        self.margin.under_load(now_s)
        self._measure()
        if now_s - self._last_log_s >= _LOG_INTERVAL_S:
            self._last_log_s = now_s
            logger.info("%s", ConservativenessLine(self.conservativeness, self.value, self.margin.value))
        return self._reserved

    def charge(self, request: Request, extend_tokens: int) -> float:
        remaining = request.remaining_new_tokens
        runs = (self._before < remaining).astype(np.float64)
        if not request.sampling.ignore_eos:
            runs *= self._lengths.survival_of_one(request.max_new_tokens, request.num_kept_outputs, self._steps)
        produced = np.minimum(self._steps, remaining)
        tokens = produced + extend_tokens
        weighed = runs * tokens
        mean = self._mean + (weighed - extend_tokens)
        variance = self._variance + (1.0 - runs) * weighed * tokens
        growth = self._growth + runs * produced
        most = self._most + min(remaining, CLIP_MAX_NEW_TOKENS)
        reserved = min(self._greatest(mean, variance, growth), most)
        self._charged = (mean, variance, growth, reserved, most)
        return reserved - self._reserved

    def admit(self) -> None:
        self._mean, self._variance, self._growth, self._reserved, self._most = self._charged

    def decay(self) -> None:
        pass

    def reset(self) -> None:
        """What was learned of outputs is still true after a pause."""

    def raise_after_retraction(self, generated_tokens: int, max_new_tokens: int, num_requests: int) -> None:
        self.margin.on_retraction(self._clock.now_s())
        self._measure()

    def on_end(self, request: Request, num_outputs: int) -> None:
        if not request.sampling.ignore_eos and request.max_new_tokens:
            self._lengths.on_end(request.max_new_tokens, num_outputs)

    def _measure(self) -> None:
        """The reserve of all that runs now."""
        table, page = self._table, self._table.page_size
        rows = np.flatnonzero(table.decoding)
        allowed, outputs = table.max_new[rows], table.num_launched[rows]
        ends = ~table.ignore_eos[rows]
        classes = class_of(allowed)
        self._lengths.refresh(classes[ends], outputs[ends])
        remaining = allowed - outputs
        in_pages = table.num_pages[rows] * page
        held = in_pages - (1.0 - self._unshared()) * table.shared_pages[rows] * page
        # A page is opened when the last one is full: on average half a page before its tokens are there.
        filled = held - (in_pages - table.seq_len[rows]) + (page - 1) / 2
        self._mean, self._variance, self._growth = self._forecast(classes, outputs, remaining, ends, filled, held)
        self._most = float(np.minimum(remaining, CLIP_MAX_NEW_TOKENS).sum())
        self._reserved = min(self._greatest(self._mean, self._variance, self._growth), self._most)

    def _unshared(self) -> float:
        """Tokens of the pool that come free for each token of a cached prefix that a request leaves, on average."""
        table, page = self._table, self._table.page_size
        cached = int(table.shared_pages[table.in_use].sum()) * page
        return min((self._pool.used_tokens - table.own_pages * page) / cached, 1.0) if cached else 1.0

    def _forecast(
        self, classes: Int64s, outputs: Int64s, remaining: Int64s, ends: Bools, filled: Floats, held: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Of R requests mean need, its variance and the tokens produced, each [K] by steps ahead. `filled` [R] is what
        they hold with whole pages evened out, `ends` whether EOS ends them."""
        mean, variance, growth = np.full(len(self._steps), -held.sum()), *np.zeros((2, len(self._steps)))
        # Nobody runs for longer. Who reaches its limit inside a step of the grid holds its most there.
        count = int(np.searchsorted(self._before, remaining.max(initial=0)))
        steps, before = self._steps[:count], self._before[:count]
        runs = self._lengths.survival(classes, outputs, steps)
        runs[~ends] = 1.0
        runs *= remaining[:, None] > before
        produced = np.minimum(steps.astype(np.float64), remaining.astype(np.float64)[:, None])
        tokens = filled[:, None] + produced
        mean[:count] += np.einsum("rk,rk->k", runs, tokens)
        growth[:count] = np.einsum("rk,rk->k", runs, produced)
        variance[:count] = np.einsum("rk,rk,rk->k", runs - runs * runs, tokens, tokens)
        return mean, variance, growth

    def _greatest(self, mean: Floats, variance: Floats, growth: Floats) -> float:
        doubt = _DOUBT / math.sqrt(1.0 + self._lengths.num_ends)
        spread = np.sqrt(variance) + doubt * growth
        return max(float((mean + self.margin.value * spread).max()), 0.0)
