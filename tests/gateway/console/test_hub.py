"""The clock: one event for everybody, the whole picture for who is new or slow, nothing while nobody looks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from gateway.console.hub import MAX_SUBSCRIBERS, Full, Hub
from gateway.console.messages import Slice, Totals
from gateway.fleet.registry import Registry
from gateway.resilience.breaker import BreakerRules


class Processes:
    """What there is to ask; counts how often it is."""

    def __init__(self) -> None:
        self.asked: list[dict[int, int]] = []
        self.fault: Exception | None = None

    async def ask(self, since: Mapping[int, int]) -> dict[int, Slice]:
        self.asked.append(dict(since))
        if self.fault is not None:
            raise self.fault
        return {0: Slice(len(self.asked), [], [], {}, 0, Totals(requests=len(self.asked)))}


@contextlib.asynccontextmanager
async def running_hub(processes: Processes, stops: list[bool] | None = None) -> AsyncIterator[tuple[Hub, Registry]]:
    registry = Registry(BreakerRules(), lambda state: None)
    hub = Hub(registry, processes.ask, {"policy": "p"}, lambda: bool(stops), interval_s=0.01)
    task = asyncio.create_task(hub.run())
    try:
        yield hub, registry
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def next_event(stream: AsyncIterator[bytes]) -> tuple[str, Any]:
    async with asyncio.timeout(5):
        name, data = (await anext(stream)).decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def close(*streams: AsyncIterator[bytes]) -> None:
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]


async def test_first_all_then_changes() -> None:
    processes = Processes()
    async with running_hub(processes) as (hub, registry):
        registry.add("http://a:1", source="static")
        stream = hub.subscribe()
        name, whole = await next_event(stream)
        assert name == "snapshot" and whole["policy"] == "p" and whole["processes"] == 1
        assert [row["url"] for row in whole["workers"]] == ["http://a:1"] and len(whole["history"]) == 1
        name, delta = await next_event(stream)
        assert (name, delta["workers"], delta["gone"]) == ("delta", [], [])
        registry.add("http://b:1", source="static")
        registry.remove("http://a:1")
        while not delta["gone"]:
            _, delta = await next_event(stream)
        assert delta["gone"] == ["http://a:1"] and delta["workers"][0]["url"] == "http://b:1"
        await close(stream)


async def test_who_was_slow_gets_all_anew() -> None:
    processes = Processes()
    async with running_hub(processes) as (hub, _):
        stream = hub.subscribe()
        await next_event(stream)
        number = len(processes.asked)
        async with asyncio.timeout(5):
            while len(processes.asked) < number + 3:
                await asyncio.sleep(0.005)
        name, whole = await next_event(stream)
        assert name == "snapshot" and len(whole["history"]) >= 4
        await close(stream)


async def test_nobody_is_asked_while_nobody_looks() -> None:
    processes = Processes()
    async with running_hub(processes) as (hub, _):
        await asyncio.sleep(0.05)
        assert processes.asked == []
        stream = hub.subscribe()
        await next_event(stream)
        await close(stream)
        assert hub.subscribers == 0
        await asyncio.sleep(0.03)
        number = len(processes.asked)
        await asyncio.sleep(0.05)
        assert len(processes.asked) == number
        again = hub.subscribe()
        assert len((await next_event(again))[1]["history"]) <= 2  # what was seen before is forgotten
        await close(again)


async def test_bounded() -> None:
    async with running_hub(Processes()) as (hub, _):
        streams = [hub.subscribe() for _ in range(MAX_SUBSCRIBERS)]
        for stream in streams:
            await next_event(stream)
        with pytest.raises(Full):
            hub.subscribe()
        await close(streams.pop())
        other = hub.subscribe()
        await next_event(other)
        await close(other, *streams)
        assert hub.subscribers == 0


async def test_all_share_one_question_a_second() -> None:
    processes = Processes()
    async with running_hub(processes) as (hub, _):
        streams = [hub.subscribe() for _ in range(5)]
        for _ in range(3):
            await asyncio.gather(*map(next_event, streams))
        assert len(processes.asked) <= 5
        assert processes.asked[1] == {0: 1}  # what the first answer said
        await close(*streams)


async def test_it_ends_with_the_gateway_and_survives_faults(caplog: pytest.LogCaptureFixture) -> None:
    processes, stops = Processes(), list[bool]()
    async with running_hub(processes, stops) as (hub, _):
        stream = hub.subscribe()
        await next_event(stream)
        processes.fault = RuntimeError("boom")
        async with asyncio.timeout(5):
            while "could not be brought up to date" not in caplog.text:
                await asyncio.sleep(0.005)
        processes.fault = None
        assert (await next_event(stream))[0] in ("delta", "snapshot")
        stops.append(True)
        name = ""
        while name != "bye":
            name, _ = await next_event(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
