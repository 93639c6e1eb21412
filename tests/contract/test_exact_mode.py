"""Exact mode on real replicas of the simulated device: what is predicted is what they report as cached."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest

from benchmarks.prediction import conversations, converse
from benchmarks.prediction_outcomes import Summary
from tests.helpers.gateway_harness import RunningGateway, running_gateway
from tests.helpers.processes import until
from tests.helpers.replica_process import ReplicaProcess, replica
from tests.helpers.text_models import save_tiny_chat_model

BLOCK = 16
WAIT_S = 60.0
PARTS = [{"type": "text", "text": "hi " * 80}, {"type": "text", "text": "!"}]


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ReplicaProcess]]:
    """One with pages of a block each, one with pages of a token each."""
    model: Path = save_tiny_chat_model(tmp_path_factory.mktemp("exact") / "tiny-chat", context_len=8192)
    flags = ["--device", "sim", "--kv-events-config", "{}", "--max-total-tokens", "60000", "--sim-speed", "10"]
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                replica(model, tmp_path_factory.mktemp("exact"), *flags, "--page-size", size, wait=False)
            )
            for size in ("16", "1")
        ]
        for process in started:
            process.wait_ready()
        yield started


@pytest.fixture
async def gateway(replicas: list[ReplicaProcess]) -> AsyncIterator[RunningGateway]:
    """In front of both, when it knows their caches and their tokenizer. It probes so rarely that only streams tell."""
    urls = [process.url for process in replicas]
    async with running_gateway(urls, policy="cache_aware", routing_mode="exact", health_interval_s=30.0) as running:
        exact = running.gateway.exact
        assert exact is not None
        await until(lambda: len(exact.index.lives) == 2, WAIT_S, "both streams")
        await exact.tokenizers.loaded()
        yield running


async def route(gateway: RunningGateway, path: str, body: dict[str, object]) -> tuple[int, int]:
    """(predicted, actual) cached tokens of one answer."""
    response = await gateway.client.post(path, json=body)
    assert response.status_code == 200, response.text
    parts = dict(part.split("=", 1) for part in response.headers["x-canopy-route"].split("; "))
    answer = response.json()
    if path == "/generate":
        return int(parts["cached"]), answer["meta_info"]["cached_tokens"]
    return int(parts["cached"]), (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)


def results(gateway: RunningGateway) -> dict[str, int]:
    """Prompts by how their tokens were found."""
    assert gateway.gateway.exact is not None
    return dict(gateway.gateway.exact.preparer.results)


async def test_predictions_are_within_a_block(gateway: RunningGateway) -> None:
    outcomes = await converse(str(gateway.client.base_url), conversations(75, 4, seed=3), concurrency=4)
    summary = Summary.of(outcomes, BLOCK)
    print(summary)
    assert summary.answers == 300 and summary.hit_rate > 0.7
    assert summary.within_block >= 0.97  # those that begin alike may overtake each other on their way to a cold cache
    assert summary.wrong - summary.wrong_together <= 0.01 * summary.answers
    assert results(gateway) == {"tokenised": 300}


async def test_a_gateway_that_starts_later_knows_what_is_cached(gateway: RunningGateway) -> None:
    first = [conversations(3, 1, seed=11)[0]]
    await converse(str(gateway.client.base_url), first, concurrency=1)
    async with running_gateway(
        [worker.url for worker in gateway.gateway.registry.snapshot.workers],
        policy="longest_prefix",
        routing_mode="exact",
    ) as later:
        exact = later.gateway.exact
        assert exact is not None
        await until(lambda: len(exact.index.lives) == 2, WAIT_S, "both streams")
        await exact.tokenizers.loaded()
        [outcome] = await converse(str(later.client.base_url), first, concurrency=1)
    assert outcome.actual > outcome.prompt - 2 * BLOCK
    assert abs(outcome.predicted - outcome.actual) <= BLOCK


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/generate", {"input_ids": [1, *range(40, 140)]}),
        ("/generate", {"text": "the hello world " * 20}),
        ("/v1/completions", {"prompt": "stop and stop again " * 20}),
        ("/v1/completions", {"prompt": [[7, *range(30, 150)]]}),
        ("/v1/chat/completions", {"messages": [{"role": "developer", "content": "answer " * 50}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PARTS}]}),
    ],
)
@pytest.mark.parametrize("salt", [None, "tenant"])
async def test_every_kind_of_prompt_is_foretold(
    gateway: RunningGateway, path: str, prompt: dict[str, object], salt: str | None
) -> None:
    length = {"sampling_params": {"max_new_tokens": 2}} if path == "/generate" else {"max_tokens": 2}
    body = {**prompt, **length, **({"cache_salt": salt} if salt else {})}
    assert await route(gateway, path, body) == (0, 0)
    predicted, actual = await route(gateway, path, body)
    if actual == 0:  # it came before the first one's events and went to the other worker; now both have it
        predicted, actual = await route(gateway, path, body)
    assert actual > 0 and abs(predicted - actual) <= BLOCK
    assert set(results(gateway)) <= {"ids", "tokenised", "remembered"}


async def test_what_cannot_be_foretold_is_counted_and_compared_by_text(gateway: RunningGateway) -> None:
    many = {"prompt": ["hello world " * 60, "the answer " * 60], "max_tokens": 2}
    response = await gateway.client.post("/v1/completions", json=many)
    assert response.status_code == 200
    refused = {"messages": [{"role": "tool", "content": "x" * 600}], "max_tokens": 2}
    assert (await gateway.client.post("/v1/chat/completions", json=refused)).status_code == 400
    assert results(gateway) == {"batch": 1, "template": 1}
    assert gateway.metric("exact_prompts_total", result="template") == 1
    assert gateway.metric("exact_workers") == 2


async def test_explain_tells_tokens(gateway: RunningGateway) -> None:
    body = {"messages": [{"role": "user", "content": "hello world " * 40}], "max_tokens": 2}
    explained = (await gateway.client.post("/route/explain", json=body)).json()
    assert explained["prompt"]["tokens"] > 40 and explained["chosen"]["predicted_cached_tokens"] == 0
    _, _ = await route(gateway, "/v1/chat/completions", body)
    explained = (await gateway.client.post("/route/explain", json=body)).json()
    assert explained["prompt"]["tokens"] - explained["chosen"]["predicted_cached_tokens"] <= 2 * BLOCK


async def test_load_is_pushed(gateway: RunningGateway) -> None:
    body = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with gateway.client.stream("POST", "/v1/chat/completions", content=orjson.dumps(body)) as response:
        assert response.status_code == 200
        started_s = time.monotonic()
        workers = gateway.gateway.registry.snapshot.workers
        await until(
            lambda: any(worker.load.report and worker.load.report.running_requests for worker in workers), 2, "a report"
        )
        print(f"told after {time.monotonic() - started_s:.3f} s")


async def test_load_is_pushed_in_approximate_mode_too(replicas: list[ReplicaProcess]) -> None:
    """Two gateways: each sees at once what the other has there, and at once that it is over."""
    urls = [process.url for process in replicas]
    body = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 4000, "ignore_eos": True, "stream": True}
    async with (
        running_gateway(urls, health_interval_s=30.0) as ours,
        running_gateway(urls, health_interval_s=30.0) as other,
    ):
        loads = [worker.load for worker in ours.gateway.registry.snapshot.workers]
        await until(lambda: all(load.report and load.report.pushed for load in loads), WAIT_S, "both streams")
        async with other.client.stream("POST", "/v1/chat/completions", content=orjson.dumps(body)):
            await until(lambda: sum(load.others_requests for load in loads) == 1, 2, "the other's request")
        await until(lambda: sum(load.others_requests for load in loads) == 0, 2, "its end")
        assert [load.inflight for load in loads] == [0, 0]
