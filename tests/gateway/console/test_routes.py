"""The page and its events over HTTP: policy, keys, and several processes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from typing import Any

import httpx
import pytest

from gateway.console.routes import read_assets
from tests.gateway.test_server import gateway_process
from tests.helpers.fake_worker import FakeWorker
from tests.helpers.gateway_harness import CHAT, chat_body, running_gateway


async def events(client: httpx.AsyncClient, number: int, **headers: str) -> list[tuple[str, Any]]:
    """The first events of the stream."""
    found: list[tuple[str, Any]] = []
    async with client.stream("GET", "/console/events", headers=headers) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                found.append((name, json.loads(line[6:])))
                if len(found) == number:
                    break
    return found


async def test_the_page_brings_all_it_needs_and_runs_nothing_else() -> None:
    async with running_gateway([]) as gateway:
        page = await gateway.client.get("/console")
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
        assert not re.search(r'\son\w+=|<style|style=|<script>|(src|href)="(https?:|//)', page.text)
        for name in re.findall(r'(?:src|href)="(console/[^"]+)"', page.text):
            answer = await gateway.client.get(f"/{name}")
            assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff", name
            again = await gateway.client.get(f"/{name}", headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        assert (await gateway.client.get("/console/nothing.js")).status_code == 404
        assert (await gateway.client.get("/console/..%2froutes.py")).status_code == 404


def test_modules_import_files_that_are_there() -> None:
    assets = read_assets()
    for name, asset in assets.items():
        for other in re.findall(rb'from "\./([^"]+)"', asset.content):
            assert other.decode() in assets, (name, other)


async def test_without_the_console() -> None:
    async with running_gateway([], console=False) as gateway:
        assert (await gateway.client.get("/console")).status_code == 404


@pytest.mark.parametrize(
    ("keys", "opens", "refused"),
    [
        ({}, [None, "any"], []),
        ({"api_key": "a"}, ["a"], [None, "x"]),
        ({"api_key": "a", "admin_api_key": "b"}, ["a", "b"], [None, "x"]),
        ({"admin_api_key": "b"}, ["b"], [None, "x"]),
    ],
)
async def test_events_need_a_key_where_there_is_one(
    keys: dict[str, str], opens: list[str | None], refused: list[str | None]
) -> None:
    async with running_gateway([], **keys) as gateway:
        assert (await gateway.client.get("/console")).status_code == 200
        assert (await gateway.client.get("/console/main.js")).status_code == 200
        for key in opens:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            ((name, whole),) = await events(gateway.client, 1, **headers)
            assert name == "snapshot" and whole["keys"] is bool(keys)
        for key in refused:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            assert (await gateway.client.get("/console/events", headers=headers)).status_code == 401


@pytest.mark.observe
async def test_one_console_sees_all_processes() -> None:
    flags = ("--gateway-processes", "3", "--policy", "round_robin")
    async with FakeWorker() as worker, gateway_process("--worker-urls", worker.url, *flags) as (_, url):
        limits = httpx.Limits(max_keepalive_connections=0)  # a new connection each, so that all processes are met
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20, limits=limits) as client:
            seen: set[str] = set()

            async def watch() -> None:
                async with client.stream("GET", "/console/events") as answer:
                    async for line in answer.aiter_lines():
                        fields = json.loads(line[6:]) if line.startswith("data: ") else {"events": []}
                        seen.update(one["key"] for one in fields["events"] if one["kind"] == "choice")
                        if fields.get("processes") == 3:
                            ready.set()

            ready = asyncio.Event()
            watcher = asyncio.create_task(watch())
            async with asyncio.timeout(20):
                await ready.wait()
                for _ in range(30):
                    assert (await client.post(CHAT, content=chat_body())).status_code == 200
                while len(seen) < 30:
                    await asyncio.sleep(0.05)
            assert {key.partition(".")[0] for key in seen} == {"0", "1", "2"} and len(seen) == 30
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)


@pytest.mark.observe
async def test_viewers_do_not_hold_up_the_end() -> None:
    async with (
        gateway_process("--worker-urls", "http://127.0.0.1:9") as (process, url),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as client,
        client.stream("GET", "/console/events") as answer,
    ):
        lines = answer.aiter_lines()
        while not (await anext(lines)).startswith("data: "):
            pass
        process.send_signal(signal.SIGTERM)
        rest = [line async for line in lines]
        assert "event: bye" in rest
        assert await asyncio.wait_for(process.wait(), 10) == 0
        assert process.stderr is not None
        log = (await process.stderr.read()).decode()
        assert "Traceback" not in log and "ERROR" not in log, log
