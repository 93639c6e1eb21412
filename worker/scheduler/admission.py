"""How many prompt tokens a step may compute, and for whom: the budgets of one admission pass.

The rules are SGLang's PrefillAdder; how much is kept free for outputs is the reserve's business (reserve.py).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from worker.scheduler.constants import CLIP_MAX_NEW_TOKENS


class Verdict(Enum):
    """Whether the pass goes on. NO_TOKEN: the pool is full, until a request leaves it. OTHER: this step is full."""

    CONTINUE = auto()
    NO_TOKEN = auto()
    OTHER = auto()


def expected_tokens(remaining_new_tokens: npt.NDArray[np.int64], new_token_ratio: float) -> npt.NDArray[np.float64]:
    """Tokens that each running request is expected to still need."""
    return np.minimum(remaining_new_tokens, CLIP_MAX_NEW_TOKENS) * new_token_ratio


class PrefillBudget:
    """Remaining budgets of one pass.

    `available_tokens` gives the tokens of free and evictable pages now; pages for the admitted are allocated after the
    pass. Decodes that share the step already have their pages, so `mixed_decode_tokens` weigh on the compute budgets
    only; they leave at least a page to prefill, or a busy small-chunk replica would never admit anyone.
    """

    def __init__(
        self,
        *,
        page_size: int,
        available_tokens: Callable[[], int],
        reserved_tokens: float,
        max_prefill_tokens: int,
        chunk_tokens: int | None,
        mixed_decode_tokens: int,
    ) -> None:
        self._page_size = page_size
        self._available_tokens = available_tokens
        self._offset = reserved_tokens
        self._any_admitted = False
        self.rem_input = max_prefill_tokens - mixed_decode_tokens
        self.rem_chunk = None if chunk_tokens is None else max(chunk_tokens - mixed_decode_tokens, page_size)

    @property
    def rem_total(self) -> float:
        """Tokens nobody is expected to need."""
        return self._available_tokens() - self._offset

    def deficit(self, extend_tokens: int, output_tokens: float) -> float:
        """Tokens that must be freed for prompt and expected output of a candidate. Below 0 they fit."""
        return extend_tokens + output_tokens - self.rem_total

    def fits_pool(self, extend_tokens: int, output_tokens: float) -> bool:
        """Whether a candidate fits. Asked again once its prefix is locked, which makes that part of the cache
        unevictable."""
        return self.deficit(extend_tokens, output_tokens) < 0

    def give_back(self, reserved_tokens: float) -> None:
        """Running requests that were expected to need so many tokens have left."""
        self._offset -= reserved_tokens

    def verdict(self, extend_tokens: int, output_tokens: float) -> Verdict:
        """Whether a candidate with `extend_tokens` uncached prompt tokens may start."""
        if not self.fits_pool(extend_tokens, output_tokens):
            return Verdict.NO_TOKEN
        if self._any_admitted and self._ceil_page(extend_tokens) >= self.rem_input:
            return Verdict.OTHER
        return Verdict.CONTINUE

    def take(self, extend_tokens: int, output_tokens: float) -> int:
        """Charge a candidate. Returns the prompt tokens it may compute now: all, a chunk, or 0 if the step is full."""
        if self.rem_chunk is None or extend_tokens <= self.rem_chunk:
            self._charge(extend_tokens, output_tokens)
            return extend_tokens
        return self._take_part(self.rem_chunk)

    def take_next_chunk(self, extend_tokens: int, output_tokens: float) -> int:
        """Charge the request whose prompt is partly computed. As `take`; its prompt may wait, but is never refused."""
        limit = int(min(self.rem_total, extend_tokens if self.rem_chunk is None else self.rem_chunk))
        if extend_tokens <= limit:
            self._charge(extend_tokens, output_tokens)
            return extend_tokens
        return self._take_part(limit)

    def state(self) -> Verdict:
        """Whether anyone else may start."""
        if self.rem_total <= 0:
            return Verdict.NO_TOKEN
        if self.rem_input <= 0 or (self.rem_chunk is not None and self.rem_chunk <= 0):
            return Verdict.OTHER
        return Verdict.CONTINUE

    def _take_part(self, limit: int) -> int:
        tokens = max(limit, 0) // self._page_size * self._page_size
        if tokens:
            self._charge(tokens, 0)
        return tokens

    def _charge(self, extend_tokens: int, output_tokens: float) -> None:
        paged = self._ceil_page(extend_tokens)
        self._offset += paged + output_tokens
        self.rem_input -= paged
        if self.rem_chunk is not None:
            self.rem_chunk -= paged
        self._any_admitted = True

    def _ceil_page(self, tokens: int) -> int:
        return -(-tokens // self._page_size) * self._page_size
