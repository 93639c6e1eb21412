"""A real replica on the simulated accelerator, with the demo model's tokenizer and without its weights."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.helpers.demo_model import demo_model_dir
from tests.helpers.processes import wait_until
from tests.helpers.replica_process import ReplicaProcess, replica
from worker.launch.child import EXIT_USER_FAULT

pytestmark = pytest.mark.model

CHAT: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "Tell me about trees."}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model without weights."""
    folder = tmp_path_factory.mktemp("model")
    for path in demo_model_dir().iterdir():
        if path.suffix in (".json", ".jinja") and not path.name.startswith("model.safetensors"):
            shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="module")
def server(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    flags = ["--device", "sim", "--sim-speed", "100", "--served-model-name", "sim"]
    with replica(files, tmp_path_factory.mktemp("server"), *flags) as running:
        yield running
        wait_until(running.is_clean, 5, "no request and no page left behind")


@pytest.fixture(scope="module")
def client(server: ReplicaProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_answers_are_words_and_the_same_streamed_or_not(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT, max_tokens=50)
    text = whole.choices[0].message.content
    assert text is not None and whole.usage is not None
    assert whole.usage.completion_tokens <= 50
    assert len(text.split()) > 20 and all(word.isalpha() and word.islower() for word in text.split())
    chunks = client.chat.completions.create(**CHAT, max_tokens=50, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == text
    assert sum(map(bool, pieces)) > 1  # what comes while the frontend is busy is one event


def test_an_answer_ends_by_itself(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and 32 <= answer.usage.completion_tokens <= 1024


def test_its_size_and_speed_are_the_profiles(server: ReplicaProcess) -> None:
    info = httpx.get(f"{server.url}/server_info", timeout=10).json()
    assert info["max_total_num_tokens"] > 500_000
    assert "max_total_num_tokens=" in server.log and "available_gpu_mem=" in server.log
    params = {"max_new_tokens": 1000, "ignore_eos": True}
    ask = {"text": ["one", "two", "three", "four"], "sampling_params": params}
    begin = time.monotonic()
    answers = httpx.post(f"{server.url}/generate", json=ask, timeout=60).json()
    took_s = time.monotonic() - begin
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == [1000] * 4
    assert 1000 * 3.5e-3 / 100 < took_s < 1000 * 3.5e-3  # a step of an H200 takes 4 ms, a hundredth of it here


def test_many_at_once(server: ReplicaProcess) -> None:
    http = httpx.Client(base_url=server.url, timeout=60)

    def ask(number: int) -> int:
        params = {"max_new_tokens": 40, "ignore_eos": True}
        body = {"text": f"Tree number {number} " * 20, "sampling_params": params}
        return int(http.post("/generate", json=body).json()["meta_info"]["completion_tokens"])

    with http, ThreadPoolExecutor(32) as pool:
        assert list(pool.map(ask, range(64))) == [40] * 64


def test_a_bad_profile_is_one_sentence_and_exit_code_2(files: Path, tmp_path: Path) -> None:
    flags = ("--device", "sim", "--sim-profile", "abacus")
    with replica(files, tmp_path, *flags, wait=False) as running:
        assert running.exit_code() == EXIT_USER_FAULT
        assert "--sim-profile: there is no profile abacus; built in are h200-llama3-8b" in running.log
        assert "Traceback" not in running.log
