"""New weights under load, through the gateway: each answer is by the old ones or by the new ones, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.gateway_harness import RunningGateway, running_gateway
from tests.helpers.processes import until
from tests.helpers.replica_process import ReplicaProcess
from tests.helpers.text_models import save_tiny_chat_model

pytestmark = pytest.mark.long

PATH = "/update_weights_from_disk"
ADMIN = {"authorization": "Bearer admin-key"}
PROMPTS = [f"{word} world, how many are {n} and {n}?" for n, word in enumerate(("hello", "good", "small", "bad") * 2)]
OLD, NEW = "default", "step-2"
AT_ONCE = 6


@pytest.fixture(scope="module")
def second_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The replicas' model with other weights."""
    return save_tiny_chat_model(tmp_path_factory.mktemp("second") / "tiny-chat", seed=8)


@pytest.fixture
async def gateway(replicas: list[ReplicaProcess]) -> AsyncIterator[RunningGateway]:
    """Afterwards the replicas have their own weights again."""
    urls = [process.url for process in replicas]
    async with running_gateway(urls, policy="cache_aware", admin_api_key="admin-key") as running:
        own = (await running.client.get(f"{urls[0]}/model_info")).json()["model_path"]
        yield running
        body = {"model_path": own, "weight_version": OLD, "abort_all_requests": True}
        assert (await running.client.post(PATH, json=body, headers=ADMIN)).status_code == 200


@dataclass
class Load:
    """Clients that ask again and again. An answer is (prompt, version, tokens), or the error it ended with."""

    gateway: RunningGateway
    answers: list[tuple[int, str, list[int]]] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)
    stopped: bool = False

    async def ask(self, number: int) -> tuple[int, str, list[int]] | None:
        sampling = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}
        body = {"text": PROMPTS[number], "sampling_params": sampling}
        response = await self.gateway.client.post("/generate", json=body)
        told: dict[str, Any] = response.json()
        if response.status_code != 200:
            self.faults.append((response.status_code, told["error"]["message"]))
            return None
        return number, told["meta_info"]["weight_version"], told["output_ids"]

    async def client(self, first: int) -> None:
        number = first
        while not self.stopped:
            if (answer := await self.ask(number % len(PROMPTS))) is not None:
                self.answers.append(answer)
            number += 3


async def all_answers(gateway: RunningGateway) -> list[list[int]]:
    """Of all prompts, by the weights in use."""
    answers = await asyncio.gather(*(Load(gateway).ask(number) for number in range(len(PROMPTS))))
    return [answer[2] for answer in answers if answer is not None]


@pytest.mark.parametrize("abort", [False, True])
async def test_no_answer_is_by_both(gateway: RunningGateway, second_model: Path, abort: bool) -> None:
    by = {OLD: await all_answers(gateway)}
    load = Load(gateway)
    clients = [asyncio.create_task(load.client(first)) for first in range(AT_ONCE)]
    await until(lambda: len(load.answers) > AT_ONCE, 30, "answers come")
    body = {"model_path": str(second_model), "weight_version": NEW, "abort_all_requests": abort}
    for key in ({}, {"authorization": "Bearer other"}):
        assert (await gateway.client.post(PATH, json=body, headers=key)).status_code in (401, 403)
    updated = await gateway.client.post(PATH, json=body, headers=ADMIN, timeout=120)
    assert (updated.status_code, updated.json()["success"]) == (200, True), updated.text
    late = len(load.answers) + AT_ONCE  # those that were on their way have arrived
    await until(lambda: len(load.answers) > late + AT_ONCE, 30, "answers of the new weights")
    load.stopped = True
    await asyncio.gather(*clients)
    by[NEW] = await all_answers(gateway)
    assert not any(old == new for old, new in zip(by[OLD], by[NEW], strict=True))
    for number, version, tokens in load.answers:
        assert tokens == by[version][number]
    assert {version for _, version, _ in load.answers} == {OLD, NEW}
    assert {version for _, version, _ in load.answers[late:]} == {NEW}
    assert all(status == 400 and "weights were replaced" in message for status, message in load.faults)
    assert bool(load.faults) == abort


async def test_a_checkpoint_of_another_model_changes_nothing(
    gateway: RunningGateway, tmp_path: Path, replicas: list[ReplicaProcess]
) -> None:
    before = await all_answers(gateway)
    other = save_tiny_chat_model(tmp_path / "other", context_len=2048)
    for path, sentence in ((other, "it differs in context_len"), (tmp_path / "nowhere", "neither a directory nor")):
        refused = await gateway.client.post(PATH, json={"model_path": str(path)}, headers=ADMIN)
        told = refused.json()
        assert (refused.status_code, told["success"], len(told["results"])) == (400, False, len(replicas))
        assert sentence in told["error"]["message"]
    assert await all_answers(gateway) == before
