"""Keys, TLS and browsers over real HTTP."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest

from tests.helpers.certificates import make_certificate
from tests.helpers.fake_worker import FakeWorker
from tests.helpers.gateway_harness import CHAT, chat_body, request_bytes, running_gateway

CLIENT, ADMIN = {"authorization": "Bearer client-key"}, {"authorization": "Bearer admin-key"}


async def test_generation_needs_a_key(fast_path: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        FakeWorker() as worker,
        running_gateway([worker], fast_path=fast_path, api_key="client-key", admin_api_key="admin-key") as gateway,
    ):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "client-key"}):
            refused = await gateway.client.post(CHAT, content=chat_body(), headers={**headers, "x-request-id": "r7"})
            assert (refused.status_code, refused.headers["x-request-id"]) == (401, "r7")
            assert refused.headers["www-authenticate"] == "Bearer"
            error = refused.json()["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert not worker.requests
        for _ in range(2):  # the second time its head is known
            for headers in (CLIENT, ADMIN):
                assert (await gateway.client.post(CHAT, content=chat_body(), headers=headers)).status_code == 200
        assert (await gateway.chat()).status_code == 401
        assert all(request.header("authorization") is None for request in worker.requests)
    assert "client-key" not in caplog.text and "admin-key" not in caplog.text


async def test_each_of_several_keys_opens(fast_path: bool) -> None:
    async with FakeWorker() as worker, running_gateway([worker], fast_path=fast_path, api_key=["a", "b"]) as gateway:
        statuses = [(await gateway.chat(authorization=f"Bearer {key}")).status_code for key in ("a", "b", "c")]
        assert statuses == [200, 200, 401]


async def test_a_body_without_key_is_not_kept(fast_path: bool) -> None:
    async with running_gateway([], fast_path=fast_path, api_key="k", max_body_bytes=2**20) as gateway:
        client = await gateway.raw()
        for _ in range(2):
            await client.send(request_bytes(b"x" * 900_000))
            status, _, body = await client.response()
            assert (status, b"invalid_api_key" in body) == (401, True)
        client.close()


@pytest.mark.parametrize(
    ("method", "path", "open_to"),
    [
        ("GET", "/health", "all"),
        ("GET", "/liveness", "all"),
        ("GET", "/metrics", "all"),
        ("GET", "/v1/models", "clients"),
        ("GET", "/v1/loads", "clients"),
        ("GET", "/model_info", "clients"),
        ("GET", "/nothing", "clients"),
        ("GET", "/workers", "administrators"),
        ("POST", "/workers", "administrators"),
        ("DELETE", "/workers/x", "administrators"),
        ("POST", "/flush_cache", "administrators"),
        ("POST", "/abort_request", "administrators"),
        ("POST", "/pause_generation", "administrators"),
        ("POST", "/update_weights_from_disk", "administrators"),
        ("POST", "/start_profile", "administrators"),
        ("POST", "/stop_profile", "administrators"),
        ("POST", "/route/explain", "administrators"),
        ("GET", "/tuning", "administrators"),
    ],
)
async def test_what_is_open_to_whom(method: str, path: str, open_to: str) -> None:
    expected = {"all": (False, False, False), "clients": (401, False, False), "administrators": (403, 403, False)}
    async with running_gateway([], api_key="client-key", admin_api_key="admin-key") as gateway:
        for headers, status in zip(({}, CLIENT, ADMIN), expected[open_to], strict=True):
            got = await gateway.client.request(method, path, headers=headers)
            assert got.status_code == status if status else got.status_code not in (401, 403)
        wrong = await gateway.client.request(method, path, headers={"authorization": "Bearer wrong"})
        assert (wrong.status_code == 401) == (open_to != "all")


async def test_tls(fast_path: bool, tmp_path: Path) -> None:
    own = make_certificate(tmp_path, "own")
    async with (
        FakeWorker() as worker,
        running_gateway([worker], fast_path=fast_path, ssl_certfile=str(own.cert), ssl_keyfile=str(own.key)) as gateway,
        httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{gateway.port}", verify=own.client(), trust_env=False, timeout=10
        ) as client,
    ):
        assert (await client.get("/health")).status_code == 200
        for stream in (False, True, True):
            answer = await client.post(CHAT, content=chat_body("x" * 300_000, stream=stream))
            assert answer.status_code == 200
            assert answer.content.endswith(b"[DONE]\n\n") == stream
        with pytest.raises(httpx.HTTPError):
            await gateway.chat()


async def test_pages_of_allowed_origins_may_call(fast_path: bool) -> None:
    async with (
        FakeWorker() as worker,
        running_gateway(
            [worker], fast_path=fast_path, api_key="k", cors_allowed_origins=["https://good.example"]
        ) as gateway,
    ):
        asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        asked = await gateway.client.options(CHAT, headers={"origin": "https://good.example", **asks})
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://good.example"
        assert "authorization" in asked.headers["access-control-allow-headers"]
        refused = await gateway.client.options(CHAT, headers={"origin": "https://bad.example", **asks})
        assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (400, False)
        for key, status in (("k", 200), ("wrong", 401)):
            answer = await gateway.chat(origin="https://good.example", authorization=f"Bearer {key}")
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (
                status,
                "https://good.example",
            )
            assert "x-canopy-route" in answer.headers["access-control-expose-headers"]
        foreign = await gateway.chat(origin="https://bad.example", authorization="Bearer k")
        assert "access-control-allow-origin" not in foreign.headers
        assert (await gateway.chat(authorization="Bearer k")).status_code == 200
