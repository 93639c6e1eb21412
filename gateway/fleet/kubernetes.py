"""Workers that are Kubernetes pods: a list of them, then a watch, through the API server with the pod's own token."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

from common.errors import UserError
from gateway.fleet.registry import Registry, check_url

_LOG = logging.getLogger("gateway.discovery")
KUBERNETES = "kubernetes"
PORT_ANNOTATION = "canopy/port"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LIST_TIMEOUT_S = 30.0
_WATCH_S = 300  # then the API server ends a watch, and we begin another
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.2, 10.0
_GONE = 410  # what we want to watch from is too old


class KubernetesFault(Exception):
    """The API server did not do what it was asked."""


class TooOld(KubernetesFault):
    """The list has to be read anew."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """How to reach the API server. The token is read for each request: Kubernetes renews it."""

    url: str
    token_file: Path
    ca_file: Path | None
    namespace: str


def in_cluster(env: Mapping[str, str], namespace: str | None, account: Path = _ACCOUNT) -> Cluster:
    """The cluster that this process runs in. Raises UserError if it runs in none."""
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (account / "token").is_file():
        raise UserError(
            "--service-discovery needs a pod with a service account that may list and watch pods; "
            "outside a cluster give --worker-urls."
        )
    host = f"[{host}]" if ":" in host else host
    ours = account / "namespace"
    return Cluster(
        url=f"https://{host}:{port}",
        token_file=account / "token",
        ca_file=account / "ca.crt",
        namespace=namespace or (ours.read_text().strip() if ours.is_file() else "default"),
    )


class KubernetesDiscovery:
    """Keeps the registry's pods those that `selector` names. While the API server is away the last known ones stay."""

    def __init__(self, registry: Registry, cluster: Cluster, selector: Sequence[str], port: int) -> None:
        self._registry = registry
        self._cluster = cluster
        self._selector = ",".join(selector)
        self._port = port
        self._urls: dict[str, str] = {}  # of the pods that serve, by uid

    async def run(self) -> None:
        """Follow the pods, for ever."""
        verify = ssl.create_default_context(cafile=self._cluster.ca_file) if self._cluster.ca_file else True
        backoff_s = _FIRST_BACKOFF_S
        version = ""
        async with httpx.AsyncClient(base_url=self._cluster.url, verify=verify, trust_env=False) as client:
            while True:
                try:
                    version = version or await self._list(client)
                    async for event in self._watch(client, version):
                        version = self._take(event)
                        backoff_s = _FIRST_BACKOFF_S
                    await asyncio.sleep(_FIRST_BACKOFF_S)
                except TooOld:
                    version = ""
                except (KubernetesFault, httpx.HTTPError, OSError) as error:
                    text = str(error) or type(error).__name__
                    _LOG.warning("Kubernetes does not tell its pods (%s); trying again in %g s", text, backoff_s)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    async def _list(self, client: httpx.AsyncClient) -> str:
        """Make the registry's pods those of the list. Returns the list's version."""
        answer = await client.get(self._path, params=self._params, headers=self._headers(), timeout=_LIST_TIMEOUT_S)
        listed = _object(answer.status_code, answer.content)
        pods = [pod for pod in listed.get("items") or [] if isinstance(pod, dict)]
        present = {_meta(pod, "uid") for pod in pods}
        for uid in [uid for uid in self._urls if uid not in present]:
            self._forget(uid)
        for pod in pods:
            self._changed(pod)
        return _meta(listed, "resourceVersion")

    async def _watch(self, client: httpx.AsyncClient, version: str) -> AsyncIterator[dict[str, Any]]:
        """Events after `version`, until the API server ends the watch."""
        params = {
            **self._params,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        timeout = httpx.Timeout(_LIST_TIMEOUT_S, read=_WATCH_S + _LIST_TIMEOUT_S)
        async with client.stream("GET", self._path, params=params, headers=self._headers(), timeout=timeout) as answer:
            if answer.status_code != httpx.codes.OK:
                _object(answer.status_code, await answer.aread())
            async for line in answer.aiter_lines():
                if line.strip():
                    yield _object(httpx.codes.OK, line.encode())

    def _take(self, event: dict[str, Any]) -> str:
        """Do what an event says. Returns the version that it brings. Raises KubernetesFault."""
        kind, pod = event.get("type"), event.get("object")
        if not isinstance(pod, dict):
            raise KubernetesFault("an event without object")
        if kind == "ERROR":
            raise _fault(pod.get("code"), str(pod.get("message")))
        if kind == "DELETED":
            self._forget(_meta(pod, "uid"))
        elif kind in ("ADDED", "MODIFIED"):
            self._changed(pod)
        return _meta(pod, "resourceVersion")

    def _changed(self, pod: dict[str, Any]) -> None:
        """A pod is there, in whatever state. Whether it serves, our own probes find out."""
        uid, status = _meta(pod, "uid"), pod.get("status") or {}
        address = status.get("podIP")
        if pod["metadata"].get("deletionTimestamp"):
            if uid in self._urls:
                self._registry.drain(self._urls[uid])
        elif status.get("phase") == "Running" and address:
            annotations = pod["metadata"].get("annotations") or {}
            host = f"[{address}]" if ":" in address else address
            try:
                url = check_url(f"http://{host}:{annotations.get(PORT_ANNOTATION, self._port)}")
            except ValueError as error:
                _LOG.warning("pod %s: %s", _meta(pod, "name"), error)
                return
            if self._urls.get(uid) not in (None, url):
                self._forget(uid)
            self._urls[uid] = url
            labels = pod["metadata"].get("labels") or {}
            self._registry.add(url, source=KUBERNETES, name=_meta(pod, "name"), labels=labels)
        elif status.get("phase") in ("Succeeded", "Failed"):
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        url = self._urls.pop(uid, None)
        if url is not None and url not in self._urls.values():  # a new pod may have the address already
            self._registry.remove(url)

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._cluster.namespace}/pods"

    @property
    def _params(self) -> dict[str, str]:
        return {"labelSelector": self._selector}

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._cluster.token_file.read_text().strip()}"}


def _object(status: int, body: bytes) -> dict[str, Any]:
    """A JSON object of the API server. Raises KubernetesFault."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _fault(status, "the answer is not JSON") from None
    if not isinstance(fields, dict):
        raise KubernetesFault("the answer is not an object")
    if status != httpx.codes.OK:
        raise _fault(status, str(fields.get("message")))
    return fields


def _fault(status: Any, message: str) -> KubernetesFault:
    return TooOld(message) if status == _GONE else KubernetesFault(f"{status}: {message}")


def _meta(item: dict[str, Any], name: str) -> str:
    """A field of an object's metadata, as text. Raises KubernetesFault if it has none."""
    metadata = item.get("metadata")
    value = metadata.get(name) if isinstance(metadata, dict) else None
    if not value:
        raise KubernetesFault(f"an object without {name}")
    return str(value)
