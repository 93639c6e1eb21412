"""What a batch says on standard error while it runs: a bar on a terminal, else a line now and then."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from common.clock import Clock
from deploy.batch.steering import ReplicaLoad

_LINE_EVERY_S = 10.0
_RATE_OVER_S = 30.0


@dataclass(slots=True)
class Tally:
    """What the answers of this run said."""

    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that came from the prefix cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Display:
    """Rates are those of the last half minute, in the summary those of the whole run."""

    def __init__(self, clock: Clock, *, total: int, settled: int, shown: bool, console: Console | None = None) -> None:
        self._clock = clock
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._shown = shown
        self._began_s = self._line_s = clock.now_s()
        self._total, self._before = total, settled
        self._seen = deque([(self._began_s, 0, 0)])  # time, requests settled, tokens
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if shown and self._console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task("", total=total, completed=settled)
            self._bar.start()

    def update(self, tally: Tally, loads: Sequence[ReplicaLoad], in_flight: int) -> None:
        """Call it a few times a second."""
        done = self._before + tally.answered + tally.failed
        now_s = self._clock.now_s()
        self._seen.append((now_s, tally.answered + tally.failed, tally.completion_tokens))
        while self._seen[1][0] <= now_s - _RATE_OVER_S:
            self._seen.popleft()
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=self._state(tally, loads, in_flight))
        elif self._shown and now_s - self._line_s >= _LINE_EVERY_S:
            self._line_s = now_s
            self.line(f"{done} of {self._total}{self._left(done)}; {self._state(tally, loads, in_flight)}")

    def line(self, text: str) -> None:
        """One event."""
        if self._shown:
            self._console.print(text, markup=False)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()

    def summary(self, tally: Tally) -> str:
        """The run in one line."""
        took_s = max(self._clock.now_s() - self._began_s, 1e-9)
        return (
            f"{tally.answered} answered and {tally.failed} failed in {took_s:.1f} s; "
            f"{tally.completion_tokens / took_s:,.0f} tokens/s out, {tally.prompt_tokens / took_s:,.0f} in, "
            f"{tally.hit_rate:.0%} of those from the cache."
        )

    def _rates(self) -> tuple[float, float]:
        """Requests and tokens a second."""
        (then_s, requests, tokens), (now_s, requests_now, tokens_now) = self._seen[0], self._seen[-1]
        took_s = max(now_s - then_s, 1e-9)
        return (requests_now - requests) / took_s, (tokens_now - tokens) / took_s

    def _left(self, done: int) -> str:
        rate, _ = self._rates()
        return f", {timedelta(seconds=round((self._total - done) / rate))} left" if rate else ""

    def _state(self, tally: Tally, loads: Sequence[ReplicaLoad], in_flight: int) -> str:
        rate, tokens = self._rates()
        text = f"{rate:.1f}/s, {tokens:,.0f} tok/s, hit {tally.hit_rate:.0%}, {in_flight} in flight"
        if loads:
            waiting = sum(load.waiting or 0 for load in loads)
            usage = sum(load.token_usage for load in loads) / len(loads)
            text += f"; {len(loads)} replicas: {sum(load.running for load in loads)} running, "
            text += f"{waiting} waiting, usage {usage:.0%}"
        return text + (f", {tally.failed} failed" if tally.failed else "")
