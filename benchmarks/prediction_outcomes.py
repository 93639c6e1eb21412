"""Predicted against actual cached tokens of answers: what is counted, and the table of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

HEADER = (
    f"{'mode':12} {'turn':>5} {'answers':>8} {'hit rate':>9} {'right':>8} {'mean error':>11} {'signed':>8} "
    f"{'wrong':>6} {'of them together':>17}"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer, in tokens. `turn` counts from 1, `start` names the text that the conversation shares with others;
    `sent_s` and `head_s`: when it was sent and when the answer's head came."""

    prompt: int
    predicted: int
    actual: int
    turn: int = 1
    worker: str = ""
    start: int = 0
    sent_s: float = 0.0
    head_s: float = 0.0

    @property
    def error(self) -> int:
        """Above 0: less was cached than predicted."""
        return self.predicted - self.actual

    def is_beside(self, other: Outcome) -> bool:
        """Whether they were on their way to the first token at the same time, at one replica, and begin alike."""
        same = other.worker == self.worker and other.start == self.start
        return same and other is not self and other.sent_s < self.head_s and self.sent_s < other.head_s


@dataclass(frozen=True, slots=True)
class Summary:
    """How predictions compare with the truth; shares 0..1, errors as shares of the prompt.

    `wrong_together`: of the wrong ones, those that the same replica got together with another that begins alike.
    """

    answers: int
    within_block: float
    mean_error: float
    signed_error: float  # above 0: less was cached than predicted
    hit_rate: float
    wrong: int
    wrong_together: int

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], block_tokens: int, among: Sequence[Outcome] = ()) -> Summary:
        """`block_tokens`: what counts as right. `among`: all outcomes, where these are a part."""
        wrong = [one for one in outcomes if abs(one.error) > block_tokens]
        others = among or outcomes
        return cls(
            answers=len(outcomes),
            within_block=1 - len(wrong) / len(outcomes),
            mean_error=statistics.fmean(abs(one.error) / one.prompt for one in outcomes),
            signed_error=statistics.fmean(one.error / one.prompt for one in outcomes),
            hit_rate=sum(one.actual for one in outcomes) / sum(one.prompt for one in outcomes),
            wrong=len(wrong),
            wrong_together=sum(any(one.is_beside(other) for other in others) for one in wrong),
        )


def table(mode: str, outcomes: Sequence[Outcome], block_tokens: int) -> Iterator[str]:
    """Lines under HEADER: all turns together, then one by one."""
    yield _line(mode, "all", Summary.of(outcomes, block_tokens))
    for turn in sorted({one.turn for one in outcomes}):
        part = [one for one in outcomes if one.turn == turn]
        yield _line(mode, str(turn), Summary.of(part, block_tokens, outcomes))


def _line(mode: str, turn: str, found: Summary) -> str:
    return (
        f"{mode:12} {turn:>5} {found.answers:8} {found.hit_rate:9.1%} {found.within_block:8.2%} "
        f"{found.mean_error:11.2%} {found.signed_error:+8.2%} {found.wrong:6} {found.wrong_together:17}"
    )
