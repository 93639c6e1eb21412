"""Reads observations from metrics: of a gateway's replicas (/engine_metrics) or of one worker (/metrics), Canopy's
names or SGLang's, once a second; settings that metrics do not tell by /server_info."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import httpx

from common.errors import UserError
from common.tuning.observation import Facts, Observation
from common.tuning.replica_watch import ReplicaWatch, merged, series_by_replica
from deploy.tune.logs import facts_of

_ASK_TIMEOUT_S = 10.0


def watch(
    url: str, headers: Mapping[str, str], facts: Facts, *, seconds: float, tick: Callable[[float], None]
) -> list[Observation]:
    """Watch for `seconds`; `tick` hears how many have passed. `facts` count before what the server says; of a gateway
    one replica speaks for all. Raises UserError if there are no metrics."""
    watches: dict[str, ReplicaWatch] = {}
    with httpx.Client(timeout=_ASK_TIMEOUT_S, trust_env=False, headers=dict(headers)) as client:
        path = _path(client, url)
        facts = merged(_told(client, url), facts)
        begin_s = time.monotonic()
        while (passed_s := time.monotonic() - begin_s) < seconds:
            for replica, series in series_by_replica(_get(client, url + path)).items():
                watches.setdefault(replica, ReplicaWatch(replica)).take(passed_s, series)
            tick(passed_s)
            time.sleep(max(0.0, min(1.0, seconds - passed_s)))
    if not watches:
        raise UserError(f"{url} shows no replica's metrics yet; wait until one is ready.")
    return [watches[name].observation(facts) for name in sorted(watches)]


def _path(client: httpx.Client, url: str) -> str:
    try:
        answer = client.get(f"{url}/engine_metrics")
    except httpx.HTTPError as error:
        raise UserError(f"Cannot ask {url}: {error}; give --url the address of a gateway or worker.") from None
    if answer.status_code in (401, 403):
        raise UserError(f"{url} wants a key for its metrics; give --api-key.")
    return "/engine_metrics" if answer.status_code == 200 else "/metrics"


def _told(client: httpx.Client, url: str) -> Facts:
    """What /server_info says, by SGLang's names; nothing where there is none."""
    try:
        settings = client.get(f"{url}/server_info").raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return Facts()
    if not isinstance(settings, dict):
        return Facts()
    return facts_of({name: str(value) for name, value in settings.items()})


def _get(client: httpx.Client, url: str) -> str:
    try:
        answer = client.get(url)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise UserError(f"Cannot read {url}: {error}.") from None
    return answer.text
