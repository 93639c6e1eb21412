"""The registry of workers over HTTP: ids, labels, keys of workers, other names of models, allowed hosts."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

import pytest

from tests.helpers.fake_worker import FakeWorker
from tests.helpers.gateway_harness import CHAT, chat_body, ready_workers, running_gateway
from tests.helpers.processes import until


async def test_a_worker_by_its_id() -> None:
    async with FakeWorker(model="m") as worker, running_gateway([], policy="random") as gateway:
        new = {"url": worker.url, "labels": {"zone": "a"}, "api_key": "worker-secret", "model_id": "public"}
        made = await gateway.client.post("/workers", json=new)
        assert (made.status_code, made.headers["location"]) == (202, f"/workers/127.0.0.1:{worker.port}")
        again = await gateway.client.post("/workers", json=new)
        assert (again.status_code, again.json()["error"]["code"]) == (409, "WORKER_ALREADY_EXISTS")
        await until(lambda: ready_workers(gateway.gateway) == 1, 5, "it is ready")
        for address in (made.headers["location"], f"/workers/{quote(worker.url, safe='')}"):
            got = await gateway.client.get(address)
            assert (got.json()["labels"], got.json()["has_api_key"]) == ({"zone": "a"}, True)
            assert "worker-secret" not in got.text
        assert [len((await gateway.client.get(f"/workers?model={m}")).json()["workers"]) for m in ("m", "public")] == [
            0,
            1,
        ]
        assert "worker-secret" not in (await gateway.client.get("/workers")).text + repr(
            gateway.gateway.registry.snapshot
        )
        answer = await gateway.client.post(
            CHAT, content=chat_body(model="public"), headers={"authorization": "Bearer of-the-client"}
        )
        assert answer.status_code == 200
        assert worker.requests[-1].header("authorization") == "Bearer worker-secret"
        drained = await gateway.client.post(made.headers["location"] + "/drain")
        assert (drained.status_code, drained.json()["state"]) == (202, "draining")
        await until(lambda: not gateway.gateway.registry.snapshot.workers, 5, "it is gone")
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/drain")):
            gone = await gateway.client.request(method, made.headers["location"] + path)
            assert (gone.status_code, gone.json()["error"]["code"]) == (404, "worker_not_found")


async def test_hosts_that_are_not_allowed() -> None:
    async with FakeWorker() as worker, running_gateway([], allowed_worker_hosts=["10.0.0.0/8"]) as gateway:
        for path, arguments in (("/workers", {"json": {"url": worker.url}}), (f"/add_worker?url={worker.url}", {})):
            refused = await gateway.client.post(path, **arguments)  # type: ignore[arg-type]
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "worker_not_allowed")
        assert not gateway.gateway.registry.snapshot.workers


async def test_older_names() -> None:
    async with FakeWorker() as worker, running_gateway([]) as gateway:
        assert (await gateway.client.post("/add_worker", params={"url": worker.url})).status_code == 200
        assert (await gateway.client.get("/list_workers")).json() == {"urls": [worker.url]}
        assert (await gateway.client.post("/remove_worker", params={"url": worker.url})).status_code == 200
        assert (await gateway.client.get("/list_workers")).json() == {"urls": []}
        assert (await gateway.client.post("/remove_worker", params={"url": worker.url})).status_code == 404


async def test_large_bodies_are_refused() -> None:
    async with running_gateway([]) as gateway:
        refused = await gateway.client.post("/workers", json={"url": "http://h:1", "api_key": "x" * 100_000})
        assert refused.status_code == 413
        assert refused.json()["error"]["message"] == "The request body is larger than 65536 bytes."


@pytest.mark.parametrize("path", ["/workers", "/abort_request", "/update_weights_from_disk", "/start_profile"])
async def test_a_client_that_leaves_before_its_body_is_whole_is_nobody_s_fault(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_gateway([]) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: 100\r\nexpect: 100-continue\r\n\r\n"
        writer.write(head.encode())
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")  # the route waits for its body
        writer.close()
        await writer.wait_closed()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    ("settings", "sent", "received"),
    [
        ({}, "Bearer a", "Bearer a"),
        ({}, None, None),
        ({"api_key": "a"}, "Bearer a", None),
        ({"admin_api_key": "a"}, "Bearer a", None),
        ({"api_key": "a", "worker_api_key": "w"}, "Bearer a", "Bearer w"),
        ({"worker_api_key": "w"}, None, "Bearer w"),
    ],
)
async def test_what_workers_see_of_keys(
    settings: dict[str, str], sent: str | None, received: str | None, fast_path: bool
) -> None:
    headers = {"authorization": sent} if sent else {}
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path, **settings) as gateway:
        for _ in range(2):
            await gateway.client.post(CHAT, content=chat_body(), headers={**headers, "x-custom": "1"})
        assert [request.header("authorization") for request in worker.requests] == [received] * 2
        assert worker.requests[-1].header("x-custom") == "1"


async def test_several_models_and_other_names(fast_path: bool) -> None:
    async with (
        FakeWorker(model="a") as a,
        FakeWorker(model="b") as b,
        running_gateway([a, b], fast_path=fast_path, model_alias=["gpt=b", "none=c"]) as gateway,
    ):
        body = b'{"model": "gpt", "messages": [], "x": 1.50, "y": "\\u00e9"}'
        assert (await gateway.client.post(CHAT, content=body)).status_code == 200
        assert b.requests[-1].json == json.loads(body) | {"model": "b"}
        assert b"1.50" in b.requests[-1].body
        assert b.requests[-1].header("content-length") == str(len(b.requests[-1].body))
        assert (await gateway.client.post(CHAT, content=chat_body(model="a"))).status_code == 200
        assert len(a.requests) == 1
        unknown = await gateway.client.post(CHAT, content=chat_body(model="none"))
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        unsaid = await gateway.client.post(CHAT, content=b'{"messages": []}')
        assert (unsaid.status_code, unsaid.json()["error"]["param"]) == (400, "model")
        listed = (await gateway.client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["root"]) for card in listed] == [("a", "a"), ("b", "b"), ("gpt", "b")]
        assert (await gateway.client.get("/v1/models/gpt")).status_code == 200
        assert (await gateway.client.get("/v1/models/none")).status_code == 404
        explained = await gateway.client.post("/route/explain", content=body)
        assert explained.json()["chosen"]["url"] == b.url


async def test_nan_survives_an_alias() -> None:
    async with FakeWorker(model="b") as worker, running_gateway([worker], model_alias=["gpt=b"]) as gateway:
        await gateway.client.post(CHAT, content=b'{"model": "gpt", "top_p": NaN}')
        assert b"NaN" in worker.requests[-1].body and worker.requests[-1].json["model"] == "b"


async def test_loads_in_other_shapes() -> None:
    load = {"num_running_reqs": 3, "num_waiting_reqs": 1, "num_used_tokens": 70}
    async with FakeWorker(load=load) as worker, running_gateway([worker]) as gateway:
        await until(lambda: gateway.gateway.registry.snapshot.workers[0].load.report, 5, "a load report")
        assert (await gateway.client.get("/get_load")).json() == [
            {"dp_rank": 0, "num_reqs": 4, "num_waiting_reqs": 1, "num_tokens": 70}
        ]
        assert (await gateway.client.get("/get_loads")).json() == {"workers": [{"worker": worker.url, "load": 4}]}
