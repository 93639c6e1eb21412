"""Not more workers of a node start at a time than it has slots, and a turn comes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from deploy.fleet.start_slots import StartSlots


async def test_no_more_than_the_slots_are_taken_and_all_get_their_turn(tmp_path: Path) -> None:
    now = most = 0

    async def start() -> None:
        nonlocal now, most
        async with StartSlots(tmp_path, 2).taken():  # each worker has its own
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1

    await asyncio.gather(*(start() for _ in range(7)))
    assert (now, most) == (0, 2)


async def test_a_dead_process_gives_its_turn_back(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, sys; from pathlib import Path; from deploy.fleet.start_slots import StartSlots\n"
        "async def hold():\n"
        "    async with StartSlots(Path(sys.argv[1]), 1).taken():\n"
        "        print('taken', flush=True); os.read(0, 1)\n"
        "asyncio.run(hold())"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        waiting = asyncio.create_task(_take(tmp_path))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        holder.kill()
    await asyncio.wait_for(waiting, 10)


async def _take(folder: Path) -> None:
    async with StartSlots(folder, 1).taken():
        pass
