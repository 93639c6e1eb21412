"""What became of one request."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """One request, filled in while its answer is read. Times in seconds.

    `itls_s` are the gaps between stream events after the first that carries a token. Without streaming the first token
    counts as arriving with the last. Token counts are the server's own. `output_ids` and `text` are the answer, as far
    as the API gives them. `delay_s`: how late it was sent, against the schedule.
    """

    success: bool = False
    error: str = ""
    begin_s: float = 0.0
    delay_s: float = 0.0
    ttft_s: float = 0.0
    latency_s: float = 0.0
    itls_s: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    retractions: int = 0
    output_ids: list[int] = field(default_factory=list)
    text: str = ""

    @property
    def tpot_s(self) -> float | None:
        """Time per output token without the first; None of an answer of one token, or that came as a whole."""
        if self.output_tokens < 2 or self.ttft_s == self.latency_s:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)
