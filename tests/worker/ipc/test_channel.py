"""The two ends of the channel, over real sockets."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from common.errors import UserError
from worker.ipc.channel import FrontendChannel, SchedulerChannel
from worker.ipc.messages import (
    AbortRequest,
    FinishReason,
    GenerateRequest,
    GetLoad,
    SchedulerFailed,
    SchedulerMessage,
    StepOutput,
    TokenDelta,
)
from worker.sampling_params import SamplingParams

REQUEST = GenerateRequest(
    rid="r", input_ids=[1, 2], sampling=SamplingParams(stop=("x",), seed=2**63 - 1), priority=-3, extra_key="k"
)
DELTA = TokenDelta(
    rid="r",
    token_ids=[5],
    prompt_tokens=2,
    cached_tokens=1,
    completion_tokens=1,
    finish=FinishReason(kind="stop", matched=5),
)


@pytest.fixture
async def ends() -> Iterator[tuple[FrontendChannel, SchedulerChannel]]:
    frontend = FrontendChannel()
    scheduler = SchedulerChannel(frontend.directory)
    yield frontend, scheduler
    scheduler.close()
    frontend.close()


async def first(frontend: FrontendChannel) -> SchedulerMessage:
    async def get() -> SchedulerMessage:
        return await anext(frontend.messages())

    return await asyncio.wait_for(get(), 5)


async def test_messages_arrive_whole_and_in_order(ends: tuple[FrontendChannel, SchedulerChannel]) -> None:
    frontend, scheduler = ends
    messages = [REQUEST, AbortRequest(rid="r"), *(GetLoad(call_id=i) for i in range(1000))]
    for message in messages:
        frontend.send(message)
    arrived = []
    while len(arrived) < len(messages):
        assert scheduler.wait(5)
        arrived += scheduler.drain()
    assert arrived == [REQUEST.packed(), *messages[1:]]
    assert scheduler.drain() == [] and not scheduler.wait(0.01)

    output = StepOutput(deltas=[DELTA])
    scheduler.send(output)
    assert await first(frontend) == output


async def test_bytes_that_are_no_message_are_dropped_and_said(
    ends: tuple[FrontendChannel, SchedulerChannel], caplog: pytest.LogCaptureFixture
) -> None:
    frontend, scheduler = ends
    with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
        for name in ("to-scheduler", "to-frontend"):
            with context.socket(zmq.PUSH) as stranger:
                stranger.connect(f"ipc://{frontend.directory / name}")
                for bad in (b"", b"\xc1", b"cos\nsystem\n(S'true'\ntR.", b"\x81\xa4type\xa5never"):
                    stranger.send(bad)
                stranger.close(linger=1000)
    frontend.send(GetLoad(call_id=1))
    scheduler.send(SchedulerFailed(message="m", user_fault=False))
    assert await first(frontend) == SchedulerFailed(message="m", user_fault=False)
    arrived = []
    while not arrived:
        assert scheduler.wait(5)
        arrived = scheduler.drain()
    assert arrived == [GetLoad(call_id=1)]
    assert "is none of ours" in caplog.text


async def test_the_directory_is_private_and_goes_away() -> None:
    frontend = FrontendChannel()
    assert stat.S_IMODE(frontend.directory.stat().st_mode) == 0o700
    frontend.close()
    assert not frontend.directory.exists()
    frontend.close()


async def test_connected_ends_need_no_directory(ends: tuple[FrontendChannel, SchedulerChannel]) -> None:
    frontend, scheduler = ends
    frontend.send(GetLoad(call_id=1))
    scheduler.send(StepOutput(deltas=[]))
    assert scheduler.wait(5)
    await first(frontend)
    frontend.unlink()
    assert not frontend.directory.exists()
    assert scheduler.drain() == [GetLoad(call_id=1)]
    frontend.send(GetLoad(call_id=2))
    assert scheduler.wait(5) and scheduler.drain() == [GetLoad(call_id=2)]
    scheduler.send(StepOutput(deltas=[DELTA]))
    assert await first(frontend) == StepOutput(deltas=[DELTA])


async def test_a_scheduler_that_closes_still_delivers_its_last_words() -> None:
    frontend = FrontendChannel()
    scheduler = SchedulerChannel(frontend.directory)
    scheduler.send(SchedulerFailed(message="last", user_fault=True))
    await asyncio.to_thread(scheduler.close)
    assert await first(frontend) == SchedulerFailed(message="last", user_fault=True)
    frontend.close()


async def test_a_temporary_directory_with_too_long_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(UserError, match="TMPDIR"):
        FrontendChannel()
    assert list(deep.iterdir()) == []
