"""Ending a scheduler process, also one that ends by itself at that very moment."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from worker.launch.child import SchedulerProcess, how_it_ended


def test_ending_a_process_that_is_just_ending() -> None:
    async def race() -> None:
        for tries in range(60):
            process = await asyncio.create_subprocess_exec("sleep", "0.01")
            await asyncio.sleep(0.0085 + tries * 0.0001)
            child = SchedulerProcess(process)
            await child.end(0)
            assert await child.ended() in (0, -9)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(race())


def test_a_process_that_does_not_end_is_killed() -> None:
    async def end() -> int:
        child = SchedulerProcess(await asyncio.create_subprocess_exec("sleep", "60"))
        await child.end(0.05)
        return await child.ended()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(end())
    assert how_it_ended(code) == "The scheduler process was killed by SIGKILL."


@pytest.mark.parametrize("code", [0, 1, 3])
def test_exit_codes_are_told(code: int) -> None:
    assert f"exit code {code}" in how_it_ended(code)
