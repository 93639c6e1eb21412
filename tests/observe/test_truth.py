"""What Prometheus says is what clients counted, exactly: with one and three gateway processes, and after a replica's
restart. Then every panel of every dashboard has data."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from common.process import free_port
from tests.helpers.observed_fleet import CHAT, MODEL, Clients, gateway, observed
from tests.helpers.panels import panels_without_data
from tests.helpers.prometheus import Prometheus, need, prometheus, promtool
from tests.helpers.replica_process import ReplicaProcess, replica
from tests.helpers.text_models import save_tiny_chat_model

pytestmark = pytest.mark.observe
SHARED = "A beginning that many prompts share, so that caches hold it. " * 4


@dataclass
class Fleet:
    """A gateway, two replicas, and who watches them."""

    address: str
    replicas: list[ReplicaProcess]
    prometheus: Prometheus
    processes: int
    restart: Callable[[], ReplicaProcess]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_chat_model(tmp_path_factory.mktemp("observe") / MODEL, context_len=8192)


@pytest.fixture(params=[1, 3], ids=["one process", "three processes"])
def fleet(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> Iterator[Fleet]:
    need("prometheus")
    with ExitStack() as stack:

        def start(port: int, *, wait: bool) -> ReplicaProcess:
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            flags = ["--device", "sim", "--port", str(port), "--max-total-tokens", "60000"]
            return stack.enter_context(replica(model, folder, *flags, "--metrics-compat", "sglang", wait=wait))

        ports = [free_port() for _ in range(2)]
        replicas = [start(port, wait=False) for port in ports]
        for process in replicas:
            process.wait_ready()
        flags = ("--gateway-processes", str(request.param), "--max-concurrent-requests", "6", "--log-level", "warning")
        address = stack.enter_context(gateway([process.url for process in replicas], tmp_path, *flags))
        watcher = stack.enter_context(prometheus(observed(address, tmp_path / "prometheus"), tmp_path))
        yield Fleet(address, replicas, watcher, request.param, lambda: start(ports[0], wait=True))


async def some_load(clients: Clients) -> None:
    """Every kind of answer, several at once."""
    asked = [clients.ask(f"{SHARED}{n}", tokens=8 + n % 5) for n in range(24)]
    streamed = [clients.stream(f"{SHARED}{n}", tokens=20 + n % 7) for n in range(24)]
    wrong = [clients.ask("hi", model="nobody's") for _ in range(3)]
    await asyncio.gather(*asked, *streamed, *wrong, *(clients.malformed() for _ in range(4)))


def check_gateway(fleet: Fleet, clients: Clients) -> None:
    """Its counters are the clients'."""
    fleet.prometheus.wait_for_scrape()
    truth, grown = clients.truth, fleet.prometheus.grown
    for status, count in truth.statuses.items():
        assert grown(f'canopy_gateway_requests_total{{endpoint="{CHAT}", status="{status}"}}') == count, status
    assert grown('canopy_gateway_requests_total{status="499"}') == truth.cancelled
    assert grown("canopy_gateway_client_disconnects_total") == truth.cancelled
    for kind in ("prompt", "cached", "completion"):
        assert grown(f"canopy_gateway_{kind}_tokens_total") == getattr(truth, f"{kind}_tokens"), kind
    assert grown("canopy_gateway_actual_cached_tokens_total") == truth.cached_tokens
    assert fleet.prometheus.value("sum(canopy_gateway_requests_in_flight)") == 0


def check_replicas(fleet: Fleet, clients: Clients) -> None:
    """Their counters, over all lives, are the clients'. Tokens of those that left early nobody has counted."""
    truth, grown = clients.truth, fleet.prometheus.grown
    assert grown("canopy_num_requests_total") == truth.statuses[200] + truth.cancelled
    assert grown("canopy_num_aborted_requests_total") == truth.cancelled
    assert grown('canopy_finished_requests_total{reason="length"}') == truth.statuses[200]
    if not truth.cancelled:
        assert grown("canopy_prompt_tokens_total") == truth.prompt_tokens
        assert grown("canopy_cached_tokens_total") == truth.cached_tokens
        assert grown("canopy_generation_tokens_total") == truth.completion_tokens
        assert grown("sglang:generation_tokens_total") == truth.completion_tokens


async def test_counters_are_what_clients_counted(fleet: Fleet) -> None:
    fleet.prometheus.wait_for_scrape()
    async with Clients(fleet.address) as clients:
        await some_load(clients)
        assert clients.truth.statuses == {200: 48, 404: 3, 400: 4} and clients.truth.cached_tokens > 1000
        check_gateway(fleet, clients)
        check_replicas(fleet, clients)
        if fleet.processes > 1:
            used = fleet.prometheus.query("sum by (process) (canopy_gateway_requests_total) > 0")
            assert len(used) == fleet.processes

        fleet.replicas[0].signal(signal.SIGKILL)
        fleet.replicas[0].exit_code()
        fleet.restart()
        await until_both_ready(fleet)
        await some_load(clients)
        assert clients.truth.statuses[200] == 96
        check_gateway(fleet, clients)
        check_replicas(fleet, clients)
        series = "max by (worker) (changes(canopy_start_time_seconds[5m]))"
        assert sorted(found.points[0][1] for found in fleet.prometheus.query(series)) == [0, 1]

        await asyncio.gather(*(clients.cancel(f"{SHARED}{n}") for n in range(5)))
        await until_idle(fleet)
        check_gateway(fleet, clients)
        check_replicas(fleet, clients)
    assert panels_without_data(fleet.prometheus) == []
    for url in (f"http://{fleet.address}/metrics", f"{fleet.replicas[1].url}/metrics"):
        text = httpx.get(url, timeout=10, trust_env=False).content
        ours = b"\n".join(line for line in text.splitlines() if b"sglang:" not in line) + b"\n"
        checked = promtool("check", "metrics", stdin=ours)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


async def until_both_ready(fleet: Fleet) -> None:
    async with asyncio.timeout(30):
        while fleet.prometheus.value('min(canopy_gateway_workers{state="ready"})') != 2:
            await asyncio.sleep(0.5)


async def until_idle(fleet: Fleet) -> None:
    async with asyncio.timeout(30):
        while fleet.prometheus.value("sum(canopy_num_running_reqs) + sum(canopy_gateway_requests_in_flight)") != 0:
            await asyncio.sleep(0.5)
