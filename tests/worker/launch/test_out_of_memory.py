"""A pass that finds no memory: its requests get 503, everyone else goes on, and so does the replica."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.background_stream import BackgroundStream
from tests.helpers.processes import wait_until
from tests.helpers.replica_process import ReplicaProcess, replica

MESSAGE = "The step that computed this request failed: The {} has no memory left for this pass."
PREFILL_LAUNCH, PREFILL_RESULT, DECODE_LAUNCH, DECODE_RESULT = 1001, 1002, 1003, 1004


@pytest.fixture(scope="module")
def server(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    flags = ["--max-total-tokens", "6000", "--no-enable-mixed-chunk"]
    module = "tests.helpers.replica_short_of_memory"
    with replica(chat_model, tmp_path_factory.mktemp("server"), *flags, module=module) as running:
        yield running
        assert "Traceback" not in running.log


@pytest.fixture(autouse=True)
def _lives_on(server: ReplicaProcess) -> Iterator[None]:
    ask = {"prompt": "hello world", "temperature": 0, "max_tokens": 20}
    before = httpx.post(f"{server.url}/v1/completions", json=ask, timeout=30).json()["choices"]
    httpx.post(f"{server.url}/flush_cache")
    yield
    wait_until(server.is_clean, 5, "no request and no page left behind")
    assert httpx.post(f"{server.url}/v1/completions", json=ask, timeout=30).json()["choices"] == before
    assert httpx.get(f"{server.url}/health").status_code == 200


def ask(server: ReplicaProcess, seed: int, **fields: Any) -> httpx.Response:
    body = {"prompt": "the answer", "max_tokens": 50, "ignore_eos": True, "seed": seed}
    return httpx.post(f"{server.url}/v1/completions", json=body | fields, timeout=30)


def check_refused(response: httpx.Response, where: str) -> None:
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert response.json()["error"]["message"] == MESSAGE.format(where)


@pytest.mark.parametrize(("seed", "where"), [(PREFILL_LAUNCH, "machine"), (PREFILL_RESULT, "GPU")])
def test_a_prefill_without_memory_ends_alone(server: ReplicaProcess, seed: int, where: str) -> None:
    running = BackgroundStream(server, 400, prompt="a b c", seed=3)
    check_refused(ask(server, seed), where)
    *_, last, done = running.events()
    assert json.loads(last)["choices"][0]["finish_reason"] == "length" and done == "[DONE]"
    assert "ERROR A step failed. #decode: 0, #new-token:" in server.log
    assert "Lower --chunked-prefill-size or" in server.log


@pytest.mark.parametrize(("seed", "where"), [(DECODE_LAUNCH, "machine"), (DECODE_RESULT, "GPU")])
def test_a_decode_without_memory_ends_those_in_its_batch(server: ReplicaProcess, seed: int, where: str) -> None:
    running = BackgroundStream(server, 3000, prompt="a b c", seed=3)
    check_refused(ask(server, seed), where)
    *_, last = running.events()
    assert json.loads(last)["error"]["message"] == MESSAGE.format(where)
    assert "[DONE]" not in running.text
    assert "ERROR A step failed. #decode: 2, #new-token: 0, #aborted-req: 2." in server.log
    assert "Lower --max-running-requests or" in server.log
