"""new_token_ratio by SGLang's rule: the share of its remaining output that a running request is expected to need."""

from __future__ import annotations

import numpy as np

from worker.scheduler.admission import expected_tokens
from worker.scheduler.constants import (
    CLIP_MAX_NEW_TOKENS,
    INIT_NEW_TOKEN_RATIO,
    MIN_NEW_TOKEN_RATIO_FACTOR,
    NEW_TOKEN_RATIO_DECAY_STEPS,
    RETRACT_DECODE_STEPS,
)
from worker.scheduler.request import Request
from worker.scheduler.rows import RequestTable


class NewTokenRatio:
    """Implements OutputReserve. Starts high, decays with every decode step that found room, jumps to what is really
    needed at a retraction. A candidate is charged its whole possible output, up to CLIP_MAX_NEW_TOKENS."""

    learns = False

    def __init__(self, schedule_conservativeness: float, table: RequestTable) -> None:
        self._table = table
        self.conservativeness = schedule_conservativeness
        self.initial = min(INIT_NEW_TOKEN_RATIO * schedule_conservativeness, 1.0)
        self.floor = min(self.initial * MIN_NEW_TOKEN_RATIO_FACTOR, 1.0)
        self._decay = (self.initial - self.floor) / NEW_TOKEN_RATIO_DECAY_STEPS
        self.value = self.initial

    def begin(self) -> float:
        table = self._table
        rows = np.flatnonzero(table.decoding)
        return float(expected_tokens(table.max_new[rows] - table.num_launched[rows], self.value).sum())

    def charge(self, request: Request, extend_tokens: int) -> float:
        return min(request.remaining_new_tokens, CLIP_MAX_NEW_TOKENS)

    def admit(self) -> None:
        pass

    def decay(self) -> None:
        self.value = max(self.value - self._decay, self.floor)

    def reset(self) -> None:
        self.value = self.initial

    def raise_after_retraction(self, generated_tokens: int, max_new_tokens: int, num_requests: int) -> None:
        needed = generated_tokens + RETRACT_DECODE_STEPS * num_requests
        self.value = min(1.0, needed / (max_new_tokens + 1))

    def on_end(self, request: Request, num_outputs: int) -> None:
        pass
