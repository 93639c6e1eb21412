"""A real replica: two processes, a tiny random model, real HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.helpers.processes import until, wait_until
from tests.helpers.replica_process import ReplicaProcess, replica

LONG = {"max_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    flags = ["--max-total-tokens", "12000", "--max-running-requests", "2", "--chunked-prefill-size", "16"]
    flags += ["--served-model-name", "tiny", "--incarnation", "life-7", "--page-size", "1"]
    with replica(chat_model, tmp_path_factory.mktemp("server"), *flags) as running:
        yield running


@pytest.fixture(autouse=True)
def _leaves_it_clean(server: ReplicaProcess) -> Iterator[None]:
    yield
    wait_until(server.is_clean, 5, "no request and no page left behind")


def post(server: ReplicaProcess, path: str, **body: Any) -> dict[str, Any]:
    response = httpx.post(server.url + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_the_ready_file_says_where_it_is(server: ReplicaProcess) -> None:
    assert server.info == {
        "url": server.url,
        "pid": server.process.pid,
        "scheduler_pid": server.scheduler_pid,
        "incarnation": "life-7",
        "model": "tiny",
        "max_total_num_tokens": 12000,
        "max_running_requests": 2,
    }
    assert server.scheduler_pid in server.tree()
    titles = [" ".join(psutil.Process(pid).cmdline()).strip() for pid in (server.process.pid, server.scheduler_pid)]
    assert titles == ["canopy-frontend", "canopy-scheduler"]
    assert list(server.temporary.glob("canopy*")) == []  # even a SIGKILL now leaves nothing
    info = httpx.get(f"{server.url}/server_info").json()
    assert (info["incarnation"], info["max_total_num_tokens"]) == ("life-7", 12000)


def test_greedy_answers_repeat_and_streams_add_up(server: ReplicaProcess) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    ask: dict[str, Any] = {"model": "tiny", "prompt": "hello world", "max_tokens": 60, "temperature": 0}
    first = client.completions.create(**ask)
    again = client.completions.create(**ask)  # from the prefix cache
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**ask, stream=True))
    assert first.choices[0].text == again.choices[0].text == streamed
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens
    client.close()


def test_batches_and_seeds(server: ReplicaProcess) -> None:
    params = {"max_new_tokens": 12, "temperature": 1.0, "sampling_seed": 5}
    alone = post(server, "/generate", text="hello", sampling_params=params)
    response = httpx.post(f"{server.url}/generate", json={"text": ["hello"] * 3, "sampling_params": params}, timeout=60)
    assert [answer["output_ids"] for answer in response.json()] == [alone["output_ids"]] * 3


def test_a_stop_string_ends_the_sequence(server: ReplicaProcess) -> None:
    free = post(server, "/generate", text="hello", sampling_params={"max_new_tokens": 200, "temperature": 0})
    text = free["text"]
    middle = text[len(text) // 2 :][:3]
    params = {"max_new_tokens": 200, "temperature": 0, "stop": [middle]}
    stopped = post(server, "/generate", text="hello", sampling_params=params)
    assert stopped["text"] == text[: text.index(middle)]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": middle}
    assert len(stopped["output_ids"]) < len(free["output_ids"])


def test_health_metrics_and_loads(server: ReplicaProcess) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert httpx.get(f"{server.url}/health_generate", timeout=20).status_code == 200
    assert "canopy_max_total_num_tokens" in httpx.get(f"{server.url}/metrics").text
    assert httpx.post(f"{server.url}/flush_cache").status_code == 200
    assert server.load()["num_evictable_tokens"] == 0


def test_profiles_are_chrome_traces_with_the_steps_in_them(server: ReplicaProcess, tmp_path: Path) -> None:
    assert "No profile" in httpx.post(f"{server.url}/stop_profile").json()["error"]["message"]
    wish = {"output_dir": str(tmp_path / "new"), "record_shapes": True, "activities": ["CPU"]}
    refused = httpx.post(f"{server.url}/start_profile", json={**wish, "activities": ["GPU"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "activities")
    for how in ("stopped", "ends"):
        started = post(server, "/start_profile", **wish, **({"num_steps": 3} if how == "ends" else {}))
        again = httpx.post(f"{server.url}/start_profile", json=wish)
        assert again.status_code == 400 and "already" in again.json()["error"]["message"]
        post(server, "/generate", text="hello", sampling_params={"max_new_tokens": 6, "ignore_eos": True})
        stopped = httpx.post(f"{server.url}/stop_profile", timeout=60)
        assert (stopped.status_code, "ended by itself" in stopped.text) == (
            (200, False) if how == "stopped" else (400, True)
        )
        with gzip.open(started["path"]) as trace:
            names = [event.get("name", "") for event in json.load(trace)["traceEvents"]]
        launched = [name for name in names if name.startswith("launch step")]
        assert len(launched) == (6 if how == "stopped" else 3)
        assert "0 decodes" in launched[0] and launched[-1].endswith("1 decodes, 0 prefill tokens")
        assert "aten::scaled_dot_product_attention" in names
    assert len(list((tmp_path / "new").iterdir())) == 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("moment", ["queue", "prefill", "decode"])
async def test_a_client_that_leaves_frees_everything_within_a_second(
    server: ReplicaProcess, moment: str, stream: bool
) -> None:
    connections = []
    if moment == "queue":  # both places are taken
        connections = [await _send(server, stream, "a"), await _send(server, stream, "b")]
        await until(lambda: server.load()["num_running_reqs"] == 2, 10, "both run")
    prompt = "word " * 700 if moment == "prefill" else "c"
    connections.append(await _send(server, stream, prompt))
    if moment == "queue":
        await until(lambda: server.load()["num_waiting_reqs"] == 1, 10, "the third waits")
    elif moment == "prefill":
        await until(lambda: server.load()["num_used_tokens"] > 0, 10, "its prefill has begun")
    else:
        await until(lambda: server.load()["num_used_tokens"] > 20, 10, "it decodes")
    for writer in connections:
        writer.close()
    await until(server.is_clean, 1, "everything is free")


async def _send(server: ReplicaProcess, stream: bool, prompt: str) -> asyncio.StreamWriter:
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    limit = 3000 - len(prompt) // 2
    body = json.dumps({"prompt": prompt, "stream": stream, "ignore_eos": True, "max_tokens": limit}).encode()
    writer.write(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    return writer


def test_many_at_once(server: ReplicaProcess) -> None:
    def ask(number: int) -> str:
        answer = post(server, "/v1/completions", prompt=f"{number % 3} hello", max_tokens=20, temperature=0)
        return str(answer["choices"][0]["text"])

    with ThreadPoolExecutor(12) as pool:
        texts = list(pool.map(ask, range(24)))
    assert texts == texts[:3] * 8
