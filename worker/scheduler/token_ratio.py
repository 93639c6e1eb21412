"""new_token_ratio: the share of its remaining output that a running request is expected to really need."""

from __future__ import annotations

from worker.scheduler.constants import (
    INIT_NEW_TOKEN_RATIO,
    MIN_NEW_TOKEN_RATIO_FACTOR,
    NEW_TOKEN_RATIO_DECAY_STEPS,
    RETRACT_DECODE_STEPS,
)


class NewTokenRatio:
    """Starts high, decays with every decode step that found room, jumps to what is really needed at a retraction."""

    def __init__(self, schedule_conservativeness: float) -> None:
        self.initial = min(INIT_NEW_TOKEN_RATIO * schedule_conservativeness, 1.0)
        self.floor = min(self.initial * MIN_NEW_TOKEN_RATIO_FACTOR, 1.0)
        self._decay = (self.initial - self.floor) / NEW_TOKEN_RATIO_DECAY_STEPS
        self.value = self.initial

    def decay(self) -> None:
        """A decode step found room for all its requests."""
        self.value = max(self.value - self._decay, self.floor)

    def reset(self) -> None:
        """The replica is idle."""
        self.value = self.initial

    def raise_after_retraction(self, generated_tokens: int, max_new_tokens: int, num_requests: int) -> None:
        """Sums over the requests that stay: tokens generated so far, tokens allowed, and their number."""
        needed = generated_tokens + RETRACT_DECODE_STEPS * num_requests
        self.value = min(1.0, needed / (max_new_tokens + 1))
