"""Many nearly right bodies for each endpoint, through a gateway to a real replica: `make fuzz BODIES=10000`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.helpers.gateway_harness import running_gateway
from tests.helpers.mutated_bodies import GOOD, judge, mutated
from tests.helpers.processes import until
from tests.helpers.replica_process import replica
from tests.helpers.text_models import save_tiny_chat_model

EACH = int(os.environ.get("BODIES", "250"))
AT_ONCE = 16

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600 + 2 * EACH)]


@pytest.fixture(scope="module")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield save_tiny_chat_model(tmp_path_factory.mktemp("fuzz") / "tiny-chat", context_len=512)


async def test_the_server_lives_and_its_pool_is_whole(tiny_chat: Path, tmp_path: Path) -> None:
    flags = ("--served-model-name", "default", "--tool-call-parser", "hermes")
    flags += ("--max-total-tokens", "8192")
    with replica(tiny_chat, tmp_path, *flags) as running:
        async with (
            running_gateway([running.url]) as gateway,
            aiohttp.ClientSession(f"http://127.0.0.1:{gateway.port}") as client,
        ):
            for path in GOOD:
                start_s = time.monotonic()
                wrong, statuses = await send_all(client, path)
                told = ", ".join(f"{count} of {status}" for status, count in sorted(statuses.items()))
                print(f"{path}: {told}; {time.monotonic() - start_s:.0f} s")
                assert not wrong, f"{len(wrong)} faults\n" + "\n".join(wrong[:30])
                assert {200, 400} <= statuses.keys() and sum(statuses.values()) == EACH
                await until(running.is_clean, 10, f"nothing is left after {path}")


async def send_all(client: aiohttp.ClientSession, path: str) -> tuple[list[str], dict[int, int]]:
    """Send EACH bodies, some at once: what was wrong with answers, and how many had which status."""
    bodies = mutated(path, 2, EACH)
    wrong: list[str] = []
    statuses: dict[int, int] = {}

    async def feed() -> None:
        for body in bodies:
            async with client.post(path, data=body, headers={"content-type": "application/json"}) as answer:
                text = await answer.text()
            statuses[answer.status] = statuses.get(answer.status, 0) + 1
            if fault := judge(answer.status, text):
                wrong.append(f"{path} {body[:500]!r}: {fault}")

    await asyncio.gather(*(feed() for _ in range(AT_ONCE)))
    return wrong, statuses
