"""Following pods through a stand-in for the API server: HTTPS, list and watch, lost watches, versions too old."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from common.errors import UserError
from gateway.fleet.kubernetes import Cluster, KubernetesDiscovery, in_cluster
from gateway.fleet.registry import Registry
from tests.helpers.certificates import Certificate, make_certificate
from tests.helpers.processes import until


def pod(name: str, version: int, *, address: str = "", phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    address = address or f"10.0.0.{ord(name[0])}"
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), "labels": {"app": "w"}, **metadata}
    return {"metadata": meta, "status": {"phase": phase, "podIP": address}}


class ApiServer:
    """Answers lists from `pods`, and watches from `events`: a dict is sent, a number is an error's code, None ends."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.version = 1
        self.events: asyncio.Queue[dict[str, Any] | int | None] = asyncio.Queue()
        self.queries: list[dict[str, list[str]]] = []
        self.tokens: set[str] = set()
        self.fail_next = 0
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self, own: Certificate) -> AsyncIterator[None]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own.cert, own.key)
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()

    @property
    def lists(self) -> int:
        return sum("watch" not in query for query in self.queries)

    @property
    def watched_from(self) -> list[str]:
        return [query["resourceVersion"][0] for query in self.queries if "watch" in query]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                target = urlsplit(head[0].split(" ")[1])
                assert target.path == "/api/v1/namespaces/models/pods"
                query = parse_qs(target.query)
                self.queries.append(query)
                self.tokens |= {line.split(": ")[1] for line in head if line.startswith("authorization")}
                if self.fail_next:
                    self.fail_next -= 1
                    await self._json(writer, {"message": "not now"}, 500)
                elif "watch" in query:
                    await self._events(writer)
                else:
                    listed = {"metadata": {"resourceVersion": str(self.version)}, "items": self.pods}
                    await self._json(writer, listed, 200)
        writer.close()

    async def _json(self, writer: asyncio.StreamWriter, fields: Any, status: int) -> None:
        body = json.dumps(fields).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()

    async def _events(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while (event := await self.events.get()) is not None:
            if isinstance(event, int):
                event = {"type": "ERROR", "object": {"code": event, "message": "too old"}}
            line = json.dumps(event).encode() + b"\n"
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))
            await writer.drain()
        writer.write(b"0\r\n\r\n")


@contextlib.asynccontextmanager
async def following(folder: Path, api: ApiServer) -> AsyncIterator[Registry]:
    own = make_certificate(folder, "api")
    (folder / "token").write_text("first\n")
    registry = Registry()
    async with api.running(own):
        cluster = Cluster(api.url, folder / "token", own.cert, "models")
        task = asyncio.create_task(KubernetesDiscovery(registry, cluster, ["app=w", "tier=gpu"], 30000).run())
        try:
            yield registry
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


def workers(registry: Registry) -> dict[str, str]:
    return {worker.name: worker.url for worker in registry.snapshot.workers}


async def test_list_then_watch(tmp_path: Path) -> None:
    api = ApiServer()
    api.pods = [pod("a", 1), pod("b", 1, phase="Pending"), pod("c", 1, annotations={"canopy/port": "81"})]
    async with following(tmp_path, api) as registry:
        await until(lambda: len(workers(registry)) == 2, 5, "the list is read")
        assert workers(registry) == {"a": "http://10.0.0.97:30000", "c": "http://10.0.0.99:81"}
        assert registry.snapshot.workers[0].labels == {"app": "w"}
        assert api.queries[0]["labelSelector"] == ["app=w,tier=gpu"]
        api.events.put_nowait({"type": "MODIFIED", "object": pod("b", 2)})
        await until(lambda: "b" in workers(registry), 5, "b runs")
        api.events.put_nowait({"type": "MODIFIED", "object": pod("a", 3, deletionTimestamp="2026-01-01T00:00:00Z")})
        await until(lambda: registry.snapshot.workers[0].status.value == "draining", 5, "a drains")
        api.events.put_nowait({"type": "DELETED", "object": pod("a", 4)})
        api.events.put_nowait({"type": "MODIFIED", "object": pod("c", 5, phase="Failed")})
        await until(lambda: list(workers(registry)) == ["b"], 5, "a and c are gone")
        assert api.tokens == {"Bearer first"}


async def test_lost_watches_go_on_where_they_were(tmp_path: Path) -> None:
    api = ApiServer()
    api.pods = [pod("a", 1)]
    async with following(tmp_path, api) as registry:
        await until(lambda: api.watched_from == ["1"], 5, "it watches")
        (tmp_path / "token").write_text("second")
        api.events.put_nowait({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}})
        api.events.put_nowait(None)
        await until(lambda: api.watched_from == ["1", "7"], 5, "it watches again")
        assert (api.lists, list(workers(registry))) == (1, ["a"])
        assert api.tokens == {"Bearer first", "Bearer second"}


async def test_too_old_versions_are_listed_anew(tmp_path: Path) -> None:
    api = ApiServer()
    api.pods = [pod("a", 1), pod("b", 1)]
    async with following(tmp_path, api) as registry:
        await until(lambda: len(workers(registry)) == 2, 5, "the list is read")
        api.pods, api.version = [pod("b", 9), pod("d", 9)], 9
        api.events.put_nowait(410)
        await until(lambda: set(workers(registry)) == {"b", "d"}, 5, "a is gone, d is there")
        await until(lambda: api.watched_from == ["1", "9"], 5, "it watches from there")


async def test_while_the_api_server_fails_the_last_pods_stay(tmp_path: Path) -> None:
    api = ApiServer()
    api.pods = [pod("a", 1)]
    async with following(tmp_path, api) as registry:
        await until(lambda: api.watched_from == ["1"], 5, "it watches")
        api.fail_next = 2
        api.events.put_nowait(None)
        await until(lambda: api.watched_from == ["1"] * 4, 5, "it comes back")
        assert list(workers(registry)) == ["a"]


async def test_a_new_pod_may_have_an_old_ones_address(tmp_path: Path) -> None:
    api = ApiServer()
    api.pods = [pod("a", 1, address="10.1.1.1")]
    async with following(tmp_path, api) as registry:
        await until(lambda: api.watched_from, 5, "it watches")
        api.events.put_nowait({"type": "ADDED", "object": pod("b", 2, address="10.1.1.1")})
        api.events.put_nowait({"type": "DELETED", "object": pod("a", 3, address="10.1.1.1")})
        api.events.put_nowait({"type": "ADDED", "object": pod("c", 4)})
        await until(lambda: len(workers(registry)) == 2, 5, "c is there")
        assert set(workers(registry).values()) == {"http://10.1.1.1:30000", "http://10.0.0.99:30000"}


def test_the_cluster_we_run_in(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="service account"):
        in_cluster({}, None, tmp_path)
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("ours\n")
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    cluster = in_cluster(env, None, tmp_path)
    assert (cluster.url, cluster.namespace) == ("https://[fd00::1]:6443", "ours")
    assert in_cluster(env, "theirs", tmp_path).namespace == "theirs"
