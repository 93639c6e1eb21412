"""Whether a worker's scheduler works, from what its load report says and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from deploy.fleet.load_probe import LoadProbe, NoProgress
from tests.helpers.clock import FakeClock


def probe_of(answer: Callable[[], httpx.Response], clock: FakeClock | None = None) -> LoadProbe:
    transport = httpx.MockTransport(lambda request: answer())
    return LoadProbe("http://worker", clock or FakeClock(), {}, transport=transport)


def report(steps: int, running: int) -> dict[str, Any]:
    return {"loads": [{"num_running_reqs": running, "totals": {"steps_total": steps}}]}


async def test_steps_while_requests_run_are_progress_and_idling_is_too() -> None:
    clock = FakeClock()
    reports = iter([report(1, 2), report(5, 2), report(5, 0), report(5, 0), report(5, 1), report(5, 1)])
    probe = probe_of(lambda: httpx.Response(200, json=next(reports)), clock)
    for _ in range(4):
        clock.advance(2)
        await probe.ask()
        assert probe.progressed_at_s == clock.now_s()
    clock.advance(2)
    with pytest.raises(NoProgress, match="made no step with 1 requests running"):
        await probe.ask()
    assert probe.progressed_at_s == clock.now_s() - 2


async def test_no_answer_is_no_progress() -> None:
    def fail() -> httpx.Response:
        raise httpx.ReadTimeout("slow")

    with pytest.raises(NoProgress, match="its worker does not answer"):
        await probe_of(fail).ask()
    with pytest.raises(NoProgress, match="its scheduler does not answer .HTTP 503."):
        await probe_of(lambda: httpx.Response(503)).ask()


@pytest.mark.parametrize("answer", [httpx.Response(200), httpx.Response(200, json=[]), httpx.Response(200, json={})])
async def test_a_worker_that_tells_its_load_in_another_way_lives(answer: httpx.Response) -> None:
    assert await probe_of(lambda: answer).ask() is None
