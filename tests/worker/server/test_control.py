"""The endpoints beside generation."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.processes import until
from tests.helpers.replica_app import App, serving
from worker.ipc.messages import AbortRequest, GenerateRequest, GetHotPrefixes, PauseGeneration
from worker.server import control
from worker.server.lifecycle import ReplicaState
from worker.server.tokenizer import Tokenizer


async def test_health_follows_the_life(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        assert (await app.client.get("/health")).status_code == 200
        app.service.lifecycle.move_to(ReplicaState.DRAINING)
        response = await app.client.get("/health")
        assert (response.status_code, response.json()["error"]["message"]) == (503, "The server is shutting down.")
        assert (await app.post("/generate", text="a")).status_code == 503
        assert (await app.client.get("/v1/loads")).status_code == 200  # still answers who asks how it is


async def test_health_generate_really_generates(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tokenizer) as app:
        assert (await app.client.get("/health_generate")).status_code == 200
        (request,) = app.scheduler.of_kind(GenerateRequest)
        assert isinstance(request, GenerateRequest)
        assert request.rid.startswith("HEALTH_CHECK") and request.sampling.max_new_tokens == 1
        app.scheduler.paused = True
        monkeypatch.setattr(control, "HEALTH_DEADLINE_S", 0.05)
        assert (await app.client.get("/health_generate")).status_code == 503
        assert app.scheduler.live == {} and len(app.scheduler.of_kind(AbortRequest)) == 1


async def test_models(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, served_model_name="org/name") as app:
        listed = (await app.client.get("/v1/models")).json()
        one = (await app.client.get("/v1/models/org/name")).json()
    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["root"], one["max_model_len"]) == ("org/name", "model", "models/tiny", 512)


@pytest.mark.parametrize("prefix", ["/", "/get_"])
async def test_model_and_server_info(tokenizer: Tokenizer, prefix: str) -> None:
    async with serving(tokenizer) as app:
        model = (await app.client.get(f"{prefix}model_info")).json()
        server = (await app.client.get(f"{prefix}server_info")).json()
    assert (model["model_path"], model["is_generation"]) == ("models/tiny", True)
    assert server["max_total_num_tokens"] == 300
    assert server["incarnation"] == "life-1"
    assert server["served_model_name"] == "tiny"
    assert server["schedule_policy"] == "fcfs"
    assert server["internal_states"][0]["num_running_reqs"] == 0


async def test_loads(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        report = (await app.client.get("/v1/loads")).json()
        expected = app.scheduler.load(0)
    (entry,) = report["loads"]
    assert report["incarnation"] == "life-1"
    for name in ("num_used_tokens", "num_waiting_tokens", "max_total_num_tokens", "token_usage", "gen_throughput"):
        assert entry[name] == getattr(expected, name), name
    assert entry["totals"]["retracted_requests_total"] == expected.retracted_requests_total
    assert (entry["dp_rank"], entry["num_running_reqs"]) == (0, 0)


async def test_loads_count_first_tokens(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        assert (await app.post("/generate", text="a")).status_code == 200
        ttft = (await app.client.get("/v1/loads")).json()["ttft"]
    assert len(ttft["counts"]) == len(ttft["bounds_s"]) + 1
    assert ttft["counts"] == sorted(ttft["counts"]) and ttft["counts"][-1] == 1


async def test_hot_prefixes(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        answer = (await app.client.get("/v1/hot_prefixes?max_tokens=7")).json()
        assert answer == {"incarnation": "life-1", "prefixes": [{"input_ids": [5, 6, 7], "hits": 2}]}
        (asked,) = app.scheduler.of_kind(GetHotPrefixes)
        assert asked.max_tokens == 7  # type: ignore[union-attr]
        for bad in ("-1", "many", "10000001", "9" * 5000):
            refused = await app.client.get("/v1/hot_prefixes", params={"max_tokens": bad})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


async def test_flush_cache(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer) as app:
        assert (await app.client.post("/flush_cache")).status_code == 200
        app.scheduler.paused = True
        ask = asyncio.create_task(app.post("/generate", text="a"))
        await until(lambda: app.scheduler.live, 5, "the scheduler has the request")
        response = await app.client.get("/flush_cache")
        assert (response.status_code, response.json()["error"]["message"]) == (400, "busy")
        app.scheduler.paused = False
        await ask


async def test_tokenize_and_back(tokenizer: Tokenizer) -> None:
    text = "漢字 <s>hi</s>"
    async with serving(tokenizer) as app:
        tokens = (await app.post("/tokenize", prompt=text)).json()
        assert tokens == {"tokens": tokenizer.encode(text), "count": len(tokens["tokens"]), "max_model_len": 512}
        shown = (await app.post("/detokenize", tokens=tokens["tokens"])).json()
        everything = (await app.post("/detokenize", tokens=tokens["tokens"], skip_special_tokens=False)).json()
        assert (shown["text"], everything["text"]) == ("漢字 hi", text)
        chat = (await app.post("/tokenize", messages=[{"role": "user", "content": "hi"}])).json()
    assert tokenizer.decode(chat["tokens"], skip_special_tokens=False) == "<s>user: hi</s><s>assistant: "


async def metric_values(app: App) -> dict[str, float]:
    """Samples by name, summed over their labels."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families((await app.client.get("/metrics")).text):
        for sample in family.samples:
            if "le" not in sample.labels:
                values[sample.name] = values.get(sample.name, 0) + sample.value
    return values


async def test_metrics_count_what_happened(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, "abcd") as app:
        before = await metric_values(app)
        prompt_tokens = len(tokenizer.encode("hello hi"))
        await app.post("/v1/completions", prompt="hello hi")
        await app.post("/v1/completions", prompt="hello hi", stop="b")
        app.scheduler.max_waiting = 0
        await app.post("/v1/completions", prompt="a")
        after = await metric_values(app)
    grown = {name: after[name] - before[name] for name in before if after[name] != before[name]}
    assert grown["canopy_num_requests_total"] == 3
    assert grown["canopy_num_aborted_requests_total"] == 1
    assert grown["canopy_prompt_tokens_total"] == 2 * prompt_tokens
    assert grown["canopy_generation_tokens_total"] == 5 + 2
    assert grown["canopy_cached_tokens_total"] == 2
    assert grown["canopy_time_to_first_token_seconds_count"] == 2
    assert grown["canopy_inter_token_latency_seconds_count"] == 4 + 1
    assert grown["canopy_e2e_request_latency_seconds_count"] == 3
    assert after["canopy_max_total_num_tokens"] == app.scheduler.load(0).max_total_num_tokens
    assert after["canopy_num_retracted_requests_total"] == app.scheduler.load(0).retracted_requests_total


async def test_metrics_while_loading(tokenizer: Tokenizer) -> None:
    async with serving(tokenizer, opened=False) as app:
        assert (await metric_values(app))["canopy_num_requests_total"] == 0


def test_the_frontend_never_imports_torch(tokenizer_dir: Path) -> None:
    code = f"""
import sys
sys.modules["torch"] = None
import worker.__main__, worker.launch.replica
from worker.config import WorkerSettings
from worker.server.service import ModelFiles
files = ModelFiles.load({str(tokenizer_dir)!r}, WorkerSettings(model_path="x"))
messages = [{{"role": "user", "content": "hi"}}]
print(files.tokenizer.render_chat(messages, continue_final_message=False, variables={{}}))
assert sys.modules["torch"] is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("<s>user: hi</s><s>assistant: \n", 0), done.stderr


async def test_a_bug_is_a_500_in_the_same_shape(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tokenizer) as app:
        monkeypatch.setattr(app.service, "check_model", lambda name: 1 / 0)
        response = await app.client.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "req-9"})
        assert (response.status_code, response.headers["x-request-id"]) == (500, "req-9")
        assert response.json()["error"]["type"] == "server_error"
        assert "ZeroDivisionError" in caplog.text and "ZeroDivisionError" not in response.text
        assert (await app.client.get("/health")).status_code == 200


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
async def test_generation_pauses_and_goes_on(tokenizer: Tokenizer, mode: str) -> None:
    async with serving(tokenizer) as app:
        app.scheduler.paused = True  # so that the first answer is under way
        running = asyncio.create_task(app.post("/generate", text="hi"))
        await until(lambda: bool(app.scheduler.requests), 10, "the first request")
        answer = (await app.post("/pause_generation", mode=mode)).json()
        assert answer == {"status": "ok", "message": f"Generation is paused (mode {mode})."}
        assert app.scheduler.of_kind(PauseGeneration) == [PauseGeneration(call_id=1, retract=mode == "retract")]
        waiting = asyncio.create_task(app.post("/generate", text="ho"))
        await until(lambda: len(app.scheduler.requests) == 2, 10, "the second request")
        if mode == "abort":
            assert (await running).status_code == 503
        await asyncio.sleep(0.05)
        assert not waiting.done() and running.done() == (mode == "abort")
        assert (await app.client.post("/continue_generation")).json()["status"] == "ok"
        assert (await waiting).status_code == 200
        assert (await running).status_code == (503 if mode == "abort" else 200)
