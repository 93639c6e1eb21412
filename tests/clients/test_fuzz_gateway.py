"""Ten thousand nearly right bodies for each endpoint, through a gateway to a real replica."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.gateway_harness import running_gateway
from tests.helpers.mutated_bodies import GOOD, judge, mutated
from tests.helpers.replica_process import replica
from tests.helpers.text_models import save_tiny_chat_model

pytestmark = [pytest.mark.clients, pytest.mark.timeout(3600)]

EACH, AT_ONCE = 10_000, 16


@pytest.fixture(scope="module")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield save_tiny_chat_model(tmp_path_factory.mktemp("fuzz") / "tiny-chat")


async def test_the_server_lives_and_its_pool_is_whole(tiny_chat: Path, tmp_path: Path) -> None:
    wrong: list[str] = []
    with replica(tiny_chat, tmp_path, "--tool-call-parser", "hermes") as running:
        async with running_gateway([running.url]) as gateway:

            async def feed(path: str, bodies: Iterator[bytes]) -> None:
                for body in bodies:
                    headers = {"content-type": "application/json"}
                    response = await gateway.client.post(path, content=body, headers=headers, timeout=120)
                    if fault := judge(response.status_code, response.text):
                        wrong.append(f"{path} {body[:500]!r}: {fault}")

            for path in GOOD:
                bodies = mutated(path, 2, EACH)
                await asyncio.gather(*(feed(path, bodies) for _ in range(AT_ONCE)))
        assert running.is_clean()
    assert not wrong, f"{len(wrong)} faults\n" + "\n".join(wrong[:30])
