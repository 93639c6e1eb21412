"""Everything beside generation: health, registry of workers, models, loads, fan-outs, tools, metrics."""

from __future__ import annotations

import asyncio
import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.fake_worker import MODEL, FakeWorker, Received, Reply, event
from tests.helpers.gateway_harness import CHAT, chat_body, ready_workers, running_gateway
from tests.helpers.processes import until


async def echo(request: Received, reply: Reply) -> None:
    await reply.json({"method": request.method, "target": request.target, "body": request.body.decode()})


async def test_readiness_follows_the_workers_and_liveness_does_not() -> None:
    async with FakeWorker() as worker, running_gateway([worker]) as gateway:
        for path in ("/readiness", "/health"):
            answer = await gateway.client.get(path)
            assert (answer.status_code, answer.json()) == (200, {"status": "ready", "ready_workers": 1})
        await worker.kill()
        await until(lambda: not ready_workers(gateway.gateway), 5, "the death is noticed")
        answer = await gateway.client.get("/readiness")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (await gateway.client.get("/liveness")).status_code == 200


async def test_workers_are_listed_with_state_and_load() -> None:
    load = {"num_running_reqs": 3, "num_waiting_reqs": 1, "token_usage": 0.25}
    async with FakeWorker(load=load, max_total_num_tokens=500) as worker, running_gateway([worker]) as gateway:
        await until(lambda: gateway.gateway.registry.snapshot.workers[0].load.report, 5, "a load report")
        await gateway.chat()
        (listed,) = (await gateway.client.get("/workers")).json()["workers"]
        assert listed["url"] == worker.url
        assert (listed["state"], listed["model"], listed["incarnation"]) == ("ready", "fake-model", "life-1")
        assert (listed["in_flight"], listed["requests_sent"], listed["max_total_tokens"]) == (0, 1, 500)
        assert listed["load"]["running_requests"] == 3
        (rank,) = (await gateway.client.get("/v1/loads")).json()["loads"]
        assert (rank["num_running_reqs"], rank["num_waiting_reqs"], rank["token_usage"]) == (3, 1, 0.25)


async def test_workers_join_drain_and_leave() -> None:
    async def two_steps(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(event(1))
        await go_on.wait()
        await reply.chunk(event(2))
        await reply.last_chunk()

    go_on = asyncio.Event()
    async with FakeWorker(two_steps) as a, FakeWorker() as b, running_gateway([a]) as gateway:
        joined = await gateway.client.post("/workers", json={"url": b.url})
        assert (joined.status_code, joined.json()["state"]) == (202, "starting")
        await until(lambda: ready_workers(gateway.gateway) == 2, 5, "it is ready")
        assert (await gateway.client.post("/workers", json={"url": b.url + "/"})).status_code == 409

        stream = asyncio.create_task(gateway.chat(stream=True))
        await until(lambda: a.active, 5, "a stream runs on a")
        drained = await gateway.client.delete("/workers", params={"url": a.url})
        assert (drained.status_code, drained.json()["state"]) == (202, "draining")
        assert [(await gateway.chat()).status_code for _ in range(3)] == [200] * 3
        assert (len(a.requests), len(b.requests)) == (1, 3)
        go_on.set()
        assert (await stream).content == event(1) + event(2)
        await until(lambda: len(gateway.gateway.registry.snapshot.workers) == 1, 5, "the drained worker is gone")

        gone = await gateway.client.delete("/workers", params={"url": b.url, "force": True})
        assert gone.json()["state"] == "gone"
        assert (await gateway.chat()).status_code == 503


@pytest.mark.parametrize(
    ("method", "params", "body", "status", "param"),
    [
        ("POST", {}, {"url": "ftp://x"}, 400, "url"),
        ("POST", {}, {"url": "http://h/path"}, 400, "url"),
        ("POST", {}, {"url": "http://h", "x": 1}, 400, "x"),
        ("POST", {}, {}, 400, "url"),
        ("POST", {}, [1], 400, None),
        ("DELETE", {}, None, 400, "url"),
        ("DELETE", {"url": "nonsense"}, None, 404, "url"),
        ("DELETE", {"url": "ftp://x"}, None, 400, "url"),
        ("POST", {}, {"url": "http://h", "labels": {"a": 1}}, 400, "labels[...]"),
        ("DELETE", {"url": "http://nobody:1"}, None, 404, "url"),
    ],
)
async def test_bad_registrations(
    method: str, params: dict[str, str], body: object, status: int, param: str | None
) -> None:
    async with running_gateway([]) as gateway:
        answer = await gateway.client.request(method, "/workers", params=params, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["type"] != "") == (status, param, True)
        assert not gateway.gateway.registry.snapshot.workers


async def test_models_are_the_union() -> None:
    async with (
        FakeWorker(model="a") as a,
        FakeWorker(model="b/c") as b,
        FakeWorker(model="a") as c,
        running_gateway([a, b, c]) as gateway,
    ):
        listed = (await gateway.client.get("/v1/models")).json()
        assert [card["id"] for card in listed["data"]] == ["a", "b/c"]
        assert {"id", "object", "created", "owned_by"} <= set(listed["data"][0])
        assert (await gateway.client.get("/v1/models/b/c")).json()["id"] == "b/c"
        missing = await gateway.client.get("/v1/models/x")
        assert (missing.status_code, missing.json()["error"]["param"]) == (404, "model")


async def test_a_model_s_task_is_what_its_workers_say() -> None:
    async def card(request: Received, reply: Reply) -> None:
        await reply.json(
            {"object": "list", "data": [{"id": "e", "object": "model", "task": "embed", "max_model_len": 512}]}
        )

    embedder, other = FakeWorker(model="e", other={"/v1/models": card}), FakeWorker(model="x")
    async with embedder, other, running_gateway([embedder, other], model_alias=["ada=e"]) as gateway:
        listed = (await gateway.client.get("/v1/models")).json()["data"]
        assert {model["id"]: model.get("task") for model in listed} == {"ada": "embed", "e": "embed", "x": None}
        ada, x = [(await gateway.client.get(f"/v1/models/{name}")).json() for name in ("ada", "x")]
        assert (ada["task"], ada["max_model_len"]) == ("embed", 512)
        assert not {"task", "max_model_len"} & x.keys()


async def test_flush_reaches_everyone_and_empties_the_index() -> None:
    async def flushed(request: Received, reply: Reply) -> None:
        await reply.json("flushed")

    async def busy(request: Received, reply: Reply) -> None:
        await reply.json("requests run", 400)

    async def busy_in_openais_words(request: Received, reply: Reply) -> None:
        await reply.json({"error": {"message": "Requests run.", "code": 400}}, 400)

    async with (
        FakeWorker(other={"/flush_cache": flushed}) as a,
        FakeWorker(other={"/flush_cache": flushed}) as b,
        running_gateway([a, b], policy="cache_aware") as gateway,
    ):
        for _ in range(2):
            warm = await gateway.chat("x" * 3000)
        assert "cached=0" not in warm.headers["x-canopy-route"]
        answer = await gateway.client.post("/flush_cache", headers={"authorization": "Bearer k"})
        assert answer.status_code == 200
        assert [result["status"] for result in answer.json()["results"]] == [200, 200]
        assert a.requests[-1].header("authorization") == "Bearer k"
        cold = await gateway.chat("x" * 3000)
        assert "cached=0" in cold.headers["x-canopy-route"]
        b.other["/flush_cache"] = busy
        refused = await gateway.client.post("/flush_cache")
        assert refused.status_code == 400
        assert "requests run" in refused.json()["error"]["message"]
        b.other["/flush_cache"] = busy_in_openais_words
        refused = await gateway.client.post("/flush_cache")
        assert refused.json()["error"]["message"] == f"Worker 127.0.0.1:{b.port}: Requests run."
        assert sorted(result["status"] for result in refused.json()["results"]) == [200, 400]


@pytest.mark.parametrize("path", ["/pause_generation", "/continue_generation"])
async def test_pauses_reach_everyone(path: str) -> None:
    async with (
        FakeWorker(other={path: echo}) as a,
        FakeWorker(other={path: echo}) as b,
        running_gateway([a, b]) as gateway,
    ):
        answer = await gateway.client.post(path, json={"mode": "retract"})
        assert (answer.status_code, len(answer.json()["results"])) == (200, 2)
        assert [worker.requests[-1].json for worker in (a, b)] == [{"mode": "retract"}] * 2
        assert (await gateway.client.post(path)).status_code == 200  # the mode may be left out


async def test_aborts_of_what_is_not_known_here_reach_everyone() -> None:
    """It may be another gateway's request."""
    async with (
        FakeWorker(other={"/abort_request": echo}) as a,
        FakeWorker(other={"/abort_request": echo}) as b,
        running_gateway([a, b]) as gateway,
    ):
        for body in ({"rid": "r1"}, {"abort_all": True}, {"rid": "r1", "abort_all": True}):
            answer = await gateway.client.post("/abort_request", json=body)
            assert (answer.status_code, answer.json()["known"]) == (200, 0)
            assert [worker.requests[-1].json for worker in (a, b)] == [body] * 2
        await b.kill()
        half = await gateway.client.post("/abort_request", json={"rid": "r1"})
        assert half.status_code in (200, 502)  # by whether its death is known already
    async with running_gateway([]) as gateway:
        assert (await gateway.client.post("/abort_request", json={"rid": "r1"})).status_code == 503


@pytest.mark.parametrize("body", ["{", "[]", "{}", '{"rid": 7}', '{"abort_all": false}'])
async def test_bad_aborts(body: str) -> None:
    async with FakeWorker(other={"/abort_request": echo}) as worker, running_gateway([worker]) as gateway:
        answer = await gateway.client.post("/abort_request", content=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert not worker.requests


@pytest.mark.parametrize("given", ["mine", ["yours", "mine"]])
async def test_an_abort_goes_to_the_worker_that_has_the_request(given: object) -> None:
    go_on = asyncio.Event()

    async def waits(request: Received, reply: Reply) -> None:
        await go_on.wait()
        await reply.json({})

    scripts = {"/abort_request": echo}
    async with (
        FakeWorker(waits, other=scripts) as a,
        FakeWorker(waits, other=scripts) as b,
        running_gateway([a, b], policy="least_load") as gateway,
    ):
        others = asyncio.create_task(gateway.client.post("/generate", json={"text": 'not "mine"', "rid": "theirs"}))
        await until(lambda: a.active == 1, 5, "the other one runs")
        asked = asyncio.create_task(gateway.client.post("/generate", json={"text": "x", "rid": given}))
        await until(lambda: b.active == 1, 5, "it runs")
        answer = (await gateway.client.post("/abort_request", json={"rid": "mine"})).json()
        assert (answer["known"], answer["ended_here"]) == (1, 0)
        assert [result["url"] for result in answer["results"]] == [b.url]
        assert [len(worker.requests) for worker in (a, b)] == [1, 2]
        go_on.set()
        assert [(await task).status_code for task in (others, asked)] == [200, 200]


async def test_an_abort_ends_what_waits_in_the_gateway() -> None:
    """No worker has it, so none is asked."""
    go_on = asyncio.Event()

    async def waits(request: Received, reply: Reply) -> None:
        await go_on.wait()
        await reply.json({})

    async with (
        FakeWorker(waits, other={"/abort_request": echo}) as worker,
        running_gateway([worker], max_concurrent_requests=1) as gateway,
    ):
        first = asyncio.create_task(gateway.client.post("/generate", json={"text": "x", "rid": "first"}))
        await until(lambda: worker.active == 1, 5, "the first one runs")
        waiting = [
            asyncio.create_task(gateway.client.post("/generate", json={"text": "x", "rid": f"r{number}"}))
            for number in range(2)
        ]
        await until(lambda: gateway.gateway.forwarder.inflight == 3, 5, "they wait")
        answer = await gateway.client.post("/abort_request", json={"rid": "r0"})
        assert (answer.status_code, answer.json()) == (200, {"results": [], "known": 1, "ended_here": 1})
        refused = await waiting[0]
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "request_aborted")
        assert len(worker.requests) == 1
        answer = await gateway.client.post("/abort_request", json={"abort_all": True})
        assert (answer.json()["known"], answer.json()["ended_here"], len(answer.json()["results"])) == (2, 1, 1)
        go_on.set()
        assert [(await task).status_code for task in (first, waiting[1])] == [200, 400]
        assert gateway.inflight == 0


async def test_tools_are_passed_to_one_worker() -> None:
    posted = ("/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize")
    scripts = dict.fromkeys((*posted, "/model_info"), echo)
    async with FakeWorker(other=scripts) as worker, running_gateway([worker]) as gateway:
        body = json.dumps({"prompt": "hi"})
        for path in posted:
            answer = await gateway.client.post(path, content=body)
            assert answer.json() == {"method": "POST", "target": path, "body": body}
        answer = await gateway.client.get("/model_info?x=1")
        assert answer.json()["target"] == "/model_info?x=1"
        assert (await gateway.client.get("/model_info?model=other")).status_code == 404
        assert (await gateway.client.post("/tokenize", content=b"{")).status_code == 400


@pytest.mark.parametrize("path", ["/", "/v1/nothing"])
async def test_unknown_routes_are_404(path: str) -> None:
    async with running_gateway([]) as gateway:
        for method in ("GET", "POST"):
            answer = await gateway.client.request(method, path)
            assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


async def test_balancers_may_ask_for_the_status_alone(fast_path: bool) -> None:
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        for path in ("/health", "/readiness", "/liveness"):
            answer = await gateway.client.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
    async with running_gateway([], fast_path=fast_path) as gateway:
        assert (await gateway.client.head("/health")).status_code == 503


async def test_the_surface_describes_itself() -> None:
    """FastAPI warns of what it cannot tell apart, and warnings are errors here."""
    async with running_gateway([]) as gateway:
        described = (await gateway.client.get("/openapi.json")).json()
        assert {"/workers", "/flush_cache", "/route/explain", "/readiness"} <= described["paths"].keys()


async def test_metrics_tell_what_happened(fast_path: bool) -> None:
    async def with_usage(request: Received, reply: Reply) -> None:
        usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}}
        if request.json["stream"]:
            await reply.stream_head()
            await reply.chunk(event({"choices": []}))
            await asyncio.sleep(0.02)  # so that it is another piece
            await reply.chunk(event({"usage": usage}))
            await reply.last_chunk()
        else:
            await reply.json({"usage": usage})

    async with FakeWorker(with_usage) as worker, running_gateway([worker], fast_path=fast_path) as gateway:
        for stream in (True, True, False):
            await gateway.chat(stream=stream)
        await gateway.client.post(CHAT, content=chat_body(model="nobody"))
        await gateway.client.post(CHAT, content=b"{")
        text = (await gateway.client.get("/metrics")).text
        samples = {
            (sample.name.removeprefix("canopy_gateway_"), *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert samples["requests_total", CHAT, "200", MODEL] == 3
        assert samples["requests_total", "", CHAT, "404"] == 1
        assert samples["requests_total", "", CHAT, "400"] == 1
        assert samples["time_to_first_token_seconds_count", CHAT, MODEL] == 2
        assert samples["inter_token_latency_seconds_count", MODEL] == 2 * 1
        assert samples["request_duration_seconds_count", CHAT, MODEL] == 3
        assert samples["choice_duration_seconds_count",] == 3
        assert samples["requests_in_flight",] == 0
        assert samples["choices_total", "round_robin"] == 3
        assert samples["prompt_tokens_total", MODEL] == 300
        assert samples["cached_tokens_total", MODEL] == 192
        assert samples["actual_cached_tokens_total",] == 192
        assert samples["workers", "ready"] == 1
