"""The gateway's /metrics: what is in it, what leaves it, what it costs; and the workers' texts in one."""

from __future__ import annotations

import asyncio
import time

import httpx
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from common.fleet import ReplicaRecord
from gateway.app import text_of
from gateway.fleet.metrics import FleetMetrics
from gateway.fleet.registry import Registry
from gateway.metrics import Metrics
from tests.helpers.clock import FakeClock
from tests.helpers.fake_worker import MODEL, FakeWorker, Received, Reply, answer, event
from tests.helpers.gateway_harness import CHAT, RunningGateway, chat_body, request_bytes, running_gateway
from tests.helpers.processes import until

REPLICAS = 200
MOST_CPU_S = 0.005
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples_of(text: str) -> Samples:
    found = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in found for s in family.samples}


async def scraped(gateway: RunningGateway, path: str = "/metrics") -> Samples:
    answered = await gateway.client.get(path)
    assert answered.status_code == 200 and answered.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples_of(answered.text)


def of_worker(samples: Samples, worker: str) -> dict[str, float]:
    return {name: value for (name, labels), value in samples.items() if ("worker", worker) in labels}


async def test_series_of_workers_come_and_go_with_them() -> None:
    async with FakeWorker(answer) as a, FakeWorker(answer) as b, running_gateway([a, b]) as gateway:
        names = [worker.name for worker in gateway.gateway.registry.snapshot.workers]
        assert (await gateway.chat()).status_code == 200
        before = await scraped(gateway)
        assert sum(of_worker(before, name)["canopy_gateway_worker_requests_total"] for name in names) == 1
        assert {of_worker(before, name)["canopy_gateway_worker_breaker_state"] for name in names} == {0}
        state = ("model", MODEL), ("state", "ready"), ("worker", names[0])
        assert before["canopy_gateway_worker_state", state] == 1
        gateway.gateway.registry.remove(b.url)
        after = await scraped(gateway)
        assert of_worker(after, names[0]) and not of_worker(after, names[1])


async def test_requests_in_flight_have_ages() -> None:
    clock = FakeClock()

    async def endless(request: Received, reply: Reply) -> None:
        await reply.stream_head()
        await reply.chunk(event({"choices": []}))
        await asyncio.Event().wait()

    async with FakeWorker(endless) as worker, running_gateway([worker], clock=clock, total_timeout_s=900) as gateway:
        streams = [await gateway.raw() for _ in range(2)]
        for stream in streams:
            body = chat_body(stream=True)
            await stream.send(request_bytes(body))
            await stream.head()
            clock.advance(20.0)
        samples = await scraped(gateway)
        by_age = {labels[0][1]: value for (name, labels), value in samples.items() if name.endswith("in_flight_by_age")}
        assert by_age == {"0s-1s": 0, "1s-10s": 0, "10s-60s": 2, "60s-300s": 0, "300s-": 0}
        assert samples["canopy_gateway_oldest_request_age_seconds", ()] == 40.0
        for stream in streams:
            stream.close()
        await until(lambda: gateway.inflight == 0, 5, "the streams end")
        assert (await scraped(gateway))["canopy_gateway_oldest_request_age_seconds", ()] == 0


async def test_index_loop_and_process_are_told() -> None:
    async with FakeWorker(answer) as worker, running_gateway([worker], policy="cache_aware") as gateway:
        await gateway.chat("a long prompt " * 100)
        await until(lambda: gateway.metric("event_loop_lag_seconds_count") > 0, 5, "the loop is measured")
        samples = await scraped(gateway)
        assert samples["canopy_gateway_prefix_index_blocks", ()] > 4
        assert samples["canopy_gateway_prefix_index_bytes", ()] > 0
        assert samples["canopy_gateway_prefix_index_evicted_blocks_total", ()] == 0
        assert samples["process_cpu_seconds_total", ()] > 0
        assert samples["canopy_gateway_queue_requests", ()] == 0  # without a gate too


async def test_engine_metrics_are_all_workers_texts() -> None:
    async def with_metrics(request: Received, reply: Reply) -> None:
        text = b"# HELP load Load\n# TYPE load gauge\nload 3\n"
        await reply.head(content_type="text/plain", content_length=str(len(text)))
        await reply.raw(text)

    async with (
        FakeWorker(other={"/metrics": with_metrics}) as a,
        FakeWorker(other={"/metrics": with_metrics}) as b,
        FakeWorker() as without,
        running_gateway([a, b, without]) as gateway,
    ):
        names = [worker.name for worker in gateway.gateway.registry.snapshot.workers]
        samples = await scraped(gateway, "/engine_metrics")
        assert [of_worker(samples, name).get("load") for name in names] == [3, 3, None]
        told = [of_worker(samples, name)["canopy_gateway_worker_scraped"] for name in names]
        assert told == [1, 1, 0]
        groups = (await gateway.client.get("/prometheus/targets")).json()
        addresses = [worker.url.removeprefix("http://") for worker in (a, b, without)]
        assert [group["targets"] for group in groups] == [[address] for address in addresses]
        assert [group["labels"]["worker"] for group in groups] == names


async def test_workers_texts_and_places_are_for_administrators() -> None:
    async with FakeWorker() as worker, running_gateway([worker], admin_api_key="boss") as gateway:
        for path in ("/engine_metrics", "/prometheus/targets"):
            assert (await gateway.client.get(path)).status_code in (401, 403)
            headers = httpx.Headers({"authorization": "Bearer boss"})
            assert (await gateway.client.get(path, headers=headers)).status_code == 200


def test_the_fleet_as_its_controller_tells_it() -> None:
    def record(number: int, state: str, **fields: object) -> ReplicaRecord:
        name = f"replica-{number}"
        return ReplicaRecord(replica_id=name, incarnation="i", url="", model="m", state=state, **fields)  # type: ignore[arg-type]

    records = [record(0, "ready", restarts=2), record(1, "failed", crash_looping=True, restarts=5)]
    registry = CollectorRegistry()
    FleetMetrics(registry, lambda: records)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"canopy_fleet_{name}", labels)

    assert [value("replicas", state=state) for state in ("starting", "ready", "failed")] == [0, 1, 1]
    assert value("replica_restarts_total", replica="replica-0") == 2
    assert [value("replica_crash_looping", replica=f"replica-{n}") for n in range(2)] == [0, 1]
    records.pop()
    assert value("replica_crash_looping", replica="replica-1") is None


def test_two_hundred_workers_cost_less_than_five_milliseconds() -> None:
    collectors, registry = CollectorRegistry(), Registry()
    metrics = Metrics(collectors)
    for number in range(REPLICAS):
        registry.add(f"http://10.0.0.{number}:8000", source="static", name=f"replica-{number}", model_id="m")
    for endpoint in (CHAT, "/v1/completions", "/generate"):
        metrics.answered(endpoint, "m", 200, 0.1)
        metrics.first_token(endpoint, "m", 0.1)
    metrics.gaps_of("m").append(0.02)
    spent_s = []
    for _ in range(20):  # the least: whoever else uses the core is not ours
        start_s = time.thread_time()
        text = text_of(collectors, registry)
        spent_s.append(time.thread_time() - start_s)
    assert text.count(b"replica-") == 5 * REPLICAS
    assert min(spent_s) < MOST_CPU_S
