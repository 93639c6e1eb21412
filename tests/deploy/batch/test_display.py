"""What a batch says while it runs, where there is no terminal."""

from __future__ import annotations

import io

from rich.console import Console

from deploy.batch.display import Display, Tally
from deploy.batch.steering import ReplicaLoad
from tests.helpers.clock import FakeClock


def test_a_bar_is_full_at_the_end() -> None:
    clock, out = FakeClock(), io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    display = Display(clock, total=30, settled=10, shown=True, console=console)
    display.update(Tally(answered=19, failed=1), (), 0)
    display.close()
    assert "30/30" in out.getvalue() and "1 failed" in out.getvalue()


def test_lines_tell_the_present_rate_and_what_is_left() -> None:
    clock, out = FakeClock(), io.StringIO()
    console = Console(file=out, soft_wrap=True, highlight=False)
    display = Display(clock, total=1000, settled=100, shown=True, console=console)
    tally, loads = Tally(prompt_tokens=10, cached_tokens=5), [ReplicaLoad(8, 100, 0.9), ReplicaLoad(6, 90, 0.7)]
    for _ in range(10):
        clock.advance(1.0)
        tally.answered += 5
        tally.completion_tokens += 500
        display.update(tally, loads, 204)
    for _ in range(40):  # the gateway is away
        clock.advance(1.0)
        display.update(tally, (), 204)
    tally.failed = 1
    clock.advance(1.0)
    display.update(tally, loads, 3)
    display.line(display.summary(tally))
    first, *_, away, summary = out.getvalue().splitlines()
    assert first == (
        "150 of 1000, 0:02:50 left; 5.0/s, 500 tok/s, hit 50%, 204 in flight; "
        "2 replicas: 14 running, 190 waiting, usage 80%"
    )
    assert away == "150 of 1000; 0.0/s, 0 tok/s, hit 50%, 204 in flight"
    assert summary.startswith("50 answered and 1 failed in 51.0 s; 98 tokens/s out")
