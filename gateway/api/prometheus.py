"""For Prometheus: this gateway's metrics, those of all workers in one text, and where the workers are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Response

from common.exposition import CONTENT_TYPE, Merge, header, labelled
from gateway.fleet.registry import Registry
from gateway.fleet.worker import NO_LIFE, WorkerView
from gateway.proxy.fetch import Fetcher, FetchError

# Prometheus text of everything that /metrics tells.
Render = Callable[[], Awaitable[bytes]]
_TIMEOUT_S = 5.0
_MAX_ASKED = 32  # workers at once
_SCRAPED = "canopy_gateway_worker_scraped"
_SCRAPED_TEXT = "Whether the worker told its metrics; always there"


class WorkerTexts:
    """Asks all workers that may be alive for their metrics."""

    def __init__(self, registry: Registry, fetcher: Fetcher) -> None:
        self._registry = registry
        self._fetcher = fetcher

    async def merged(self) -> str:
        """One text; each sample has its worker's name as the label `worker`. Who does not answer in time is not in it,
        and has a 0 in canopy_gateway_worker_scraped."""
        workers = [worker for worker in self._registry.snapshot.workers if worker.life != NO_LIFE]
        slots, merge = asyncio.Semaphore(_MAX_ASKED), Merge()

        async def take(worker: WorkerView) -> None:
            async with slots:
                text = await self._text_of(worker)
            text = f"{header(_SCRAPED, 'gauge', _SCRAPED_TEXT)}\n{_SCRAPED} {int(text is not None)}\n{text or ''}"
            merge.add(labelled(text, "worker", worker.name))

        await asyncio.gather(*map(take, workers))
        return merge.text()

    async def _text_of(self, worker: WorkerView) -> str | None:
        try:
            answer = await self._fetcher.fetch(worker.url, "/metrics", timeout_s=_TIMEOUT_S)
        except FetchError:
            return None
        return answer.body.decode(errors="replace") if answer.status == 200 else None


def prometheus_routes(registry: Registry, render: Render, fetcher: Fetcher) -> APIRouter:
    """GET /metrics, /engine_metrics and /prometheus/targets."""
    router = APIRouter()
    texts = WorkerTexts(registry, fetcher)

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(await render(), media_type=CONTENT_TYPE)

    @router.get("/engine_metrics")
    async def engine_metrics() -> Response:
        return Response(await texts.merged(), media_type=CONTENT_TYPE)

    @router.get("/prometheus/targets")
    async def targets() -> list[dict[str, Any]]:
        """The workers, for Prometheus' http_sd_configs."""
        return [target_of(worker) for worker in registry.snapshot.workers]

    return router


def target_of(worker: WorkerView) -> dict[str, Any]:
    """One worker as a target group."""
    scheme, _, address = worker.url.partition("://")
    return {"targets": [address], "labels": {"worker": worker.name, "__scheme__": scheme}}
