"""Asks one worker for its load, and so whether its scheduler still works: it is the scheduler who answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from common.clock import Clock
from deploy.autoscale.signals import BadReport, replica_load
from deploy.fleet.scaling import ReplicaLoad

_TIMEOUT_S = 5.0  # well below the lease: beats wait for it


def key_header(settings: Mapping[str, Any]) -> dict[str, str]:
    """What opens every route of a worker with these settings."""
    key = settings.get("admin_api_key") or settings.get("api_key")
    return {"authorization": f"Bearer {key}"} if key else {}


class NoProgress(Exception):
    """The scheduler did not answer, or has running requests and made no step since it was asked before."""


class LoadProbe:
    """Owner of the connection to one worker."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        settings: Mapping[str, Any],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`settings` are the worker's. `transport`: for tests."""
        self._url = f"{url}/v1/loads"
        self._clock = clock
        self._client = httpx.AsyncClient(
            headers=key_header(settings), timeout=_TIMEOUT_S, trust_env=False, transport=transport
        )
        self._steps = -1
        self.progressed_at_s = clock.now_s()

    async def ask(self) -> ReplicaLoad | None:
        """The load; None from a worker that tells it in another way than ours. Raises NoProgress."""
        try:
            answer = await self._client.get(self._url)
        except httpx.HTTPError as error:
            raise NoProgress(f"its worker does not answer ({type(error).__name__})") from None
        if answer.status_code != httpx.codes.OK:
            raise NoProgress(f"its scheduler does not answer (HTTP {answer.status_code})")
        try:
            body = answer.json()
        except ValueError:
            body = None
        steps, running = _steps(body)
        if running and steps == self._steps:
            raise NoProgress(f"its scheduler made no step with {running} requests running")
        self._steps = steps
        self.progressed_at_s = self._clock.now_s()
        try:
            return replica_load(body)
        except BadReport:
            return None

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()


def _steps(body: object) -> tuple[int, int]:
    """(steps since the start, running requests); (0, 0) where the worker does not tell."""
    try:
        entry = body["loads"][0]  # type: ignore[index]
        return int(entry["totals"]["steps_total"]), int(entry["num_running_reqs"])
    except (KeyError, IndexError, TypeError, ValueError):
        return 0, 0
