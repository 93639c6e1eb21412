"""What one process notes, and when it stops looking on."""

from __future__ import annotations

from gateway.console.messages import Decision, FirstToken, Outcome
from gateway.console.recorder import LEASE_S, MAX_EVENTS, Recorder
from tests.helpers.clock import FakeClock
from tests.helpers.fake_worker import FakeWorker, Received, Reply
from tests.helpers.gateway_harness import RunningGateway, running_gateway


def recorder_of(gateway: RunningGateway, process: int = 0) -> Recorder:
    return Recorder(gateway.gateway.forwarder, gateway.gateway.registry, process, lambda: 1000.0)


async def test_choices_and_how_they_ended() -> None:
    async with FakeWorker() as worker, running_gateway([worker]) as gateway:
        recorder = recorder_of(gateway, 2)
        await gateway.chat("unseen")
        first = recorder.slice(0)
        assert first.events == [] and first.totals.requests == 1
        await gateway.chat("seen", stream=True, **{"x-request-id": "mine"})
        await gateway.chat("again")
        seen = recorder.slice(first.upto)
        choice, first_token, end, other, _ = seen.events
        assert isinstance(choice, Decision) and isinstance(end, Outcome) and isinstance(other, Decision)
        assert first_token == FirstToken(choice.key, end.ttft_ms or 0.0)
        assert choice.key.startswith("2.") and end.key == choice.key != other.key
        assert (choice.request, choice.worker, choice.reason) == ("mine", f"127.0.0.1:{worker.port}", "round_robin")
        assert (choice.stream, other.stream, choice.attempt, choice.at) == (True, False, 1, 1000.0)
        assert end.status == 200 and end.ttft_ms is not None and 0 < end.ttft_ms <= 1000 * seen.ttfts_s[0] + 0.1
        assert seen.totals.requests - first.totals.requests == 2
        assert seen.totals.choices == {"round_robin": 3}
        assert recorder.slice(seen.upto).events == []


async def test_a_retry_is_an_attempt_of_its_own() -> None:
    async def refuse(request: Received, reply: Reply) -> None:
        await reply.json({}, 503)

    async with FakeWorker(script=refuse) as bad, FakeWorker() as good, running_gateway([bad, good]) as gateway:
        recorder = recorder_of(gateway)
        recorder.slice(0)
        for _ in range(2):
            assert (await gateway.chat()).status_code == 200
        events = recorder.slice(0).events
        retried = next(one for one in events if isinstance(one, Outcome) and one.status == 0)
        names = {one.key: one.worker for one in events if isinstance(one, Decision)}
        assert names[retried.key] == f"127.0.0.1:{bad.port}"
        assert [one.attempt for one in events if isinstance(one, Decision)].count(2) == 1


async def test_it_leaves_the_data_path_when_nobody_asks() -> None:
    clock = FakeClock()
    async with FakeWorker() as worker, running_gateway([worker], clock=clock) as gateway:
        recorder = recorder_of(gateway)
        assert not recorder.looks_on
        recorder.slice(0)
        clock.advance(LEASE_S - 1)
        await gateway.chat()
        assert recorder.looks_on and len(recorder.slice(0).events) == 2
        clock.advance(LEASE_S + 1)
        await gateway.chat()
        assert not recorder.looks_on and gateway.gateway.forwarder.observers == ()
        assert len(recorder.slice(0).events) == 2 and recorder.looks_on


async def test_in_flight_queued_and_bounds() -> None:
    async with FakeWorker() as worker, running_gateway([worker]) as gateway:
        recorder = recorder_of(gateway)
        recorder.slice(0)
        for _ in range(MAX_EVENTS // 2 + 10):
            await gateway.chat()
        assert len(recorder.slice(0).events) == MAX_EVENTS
        load = gateway.gateway.registry.snapshot.workers[0].load
        tickets = [load.begin(1, None) for _ in range(3)]
        assert recorder.slice(0).in_flight == {worker.url: 3} and recorder.slice(0).queued == 0
        for ticket in tickets:
            ticket.end()
        assert recorder.slice(0).in_flight == {}
