"""--resume-streams with real replicas: one hangs or dies in the middle of its answer, and the client cannot tell."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.helpers.demo_model import demo_model_dir
from tests.helpers.gateway_harness import CHAT, RunningGateway, running_gateway
from tests.helpers.processes import assert_all_end
from tests.helpers.replica_process import ReplicaProcess, replica

pytestmark = [pytest.mark.model, pytest.mark.slow]

COMPLETIONS = "/v1/completions"
TOKENS = 32
STRUCK_AFTER = 12  # events
QUESTION = "Explain in a few sentences why the sky is blue."


@dataclass(frozen=True)
class Pair:
    """Two replicas of the demo model; the first one suffers."""

    victim: ReplicaProcess
    survivor: ReplicaProcess


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Started side by side."""
    model, flags = demo_model_dir(), ("--served-model-name", "demo")
    victim = ReplicaProcess(model, tmp_path_factory.mktemp("victim"), *flags, wait=False)
    tree: list[int] = []
    try:
        with replica(model, tmp_path_factory.mktemp("survivor"), *flags, wait=False) as survivor:
            for process in (victim, survivor):
                process.wait_ready()
            tree = victim.tree()
            yield Pair(victim, survivor)
    finally:
        victim.process.kill()
        victim.process.wait()
        assert_all_end(tree, 5)
        shutil.rmtree(victim.temporary)


def request(path: str) -> dict[str, Any]:
    asked = (
        {"messages": [{"role": "user", "content": QUESTION}]} if path == CHAT else {"prompt": "The sky is blue because"}
    )
    greedy = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    return {"model": "demo", "stream": True, "stream_options": {"include_usage": True}, **asked, **greedy}


async def read(gateway: RunningGateway, path: str, on_event: Callable[[int], None]) -> tuple[str, dict[str, int]]:
    """Text and usage of a stream. `on_event` hears the number of each event."""
    text = ""
    usage: dict[str, int] = {}
    ids = set()
    async with gateway.client.stream("POST", path, json=request(path)) as answer:
        assert answer.status_code == 200
        lines = [line async for line in watched(answer.aiter_lines(), on_event)]
    assert lines.pop() == "data: [DONE]"
    for number, line in enumerate(lines):
        fields = json.loads(line.removeprefix("data: "))
        assert "error" not in fields, (number, fields)
        ids.add(fields["id"])
        text += "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in fields["choices"])
        usage = fields.get("usage") or usage
    assert len(ids) == 1
    return text, usage


async def watched(lines: AsyncIterator[str], on_event: Callable[[int], None]) -> AsyncIterator[str]:
    """The lines that are not empty, each announced by its number."""
    number = 0
    async for line in lines:
        if line:
            number += 1
            on_event(number)
            yield line


@pytest.mark.parametrize(("path", "blow"), [(COMPLETIONS, signal.SIGSTOP), (CHAT, signal.SIGKILL)])
async def test_the_answer_is_the_one_that_was_not_interrupted(pair: Pair, path: str, blow: signal.Signals) -> None:
    def strike(number: int) -> None:
        if number == STRUCK_AFTER:
            pair.victim.signal(blow)

    async with running_gateway([pair.survivor.url]) as gateway:
        whole, whole_usage = await read(gateway, path, lambda _: None)
    async with running_gateway(
        [pair.victim.url, pair.survivor.url], resume_streams=True, idle_timeout_s=2, health_interval_s=30
    ) as gateway:
        text, usage = await read(gateway, path, strike)  # round robin: the first one's turn
        assert gateway.metric("retries_total", cause="resume") == 1
        assert gateway.inflight == 0
    if blow is signal.SIGSTOP:
        pair.victim.signal(signal.SIGCONT)
    assert text == whole
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[name] == whole_usage[name], name
    assert pair.survivor.is_clean()
