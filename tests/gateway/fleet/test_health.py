"""The probe loop against scripted answers, in real time with short intervals, and its readers of foreign formats."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from common.clock import MonotonicClock
from gateway.fleet.health import HealthMonitor, Unreachable, first_card, identity_of, load_of
from gateway.fleet.registry import Registry
from gateway.fleet.worker import NO_LIFE, Identity, LoadReport, WorkerStatus, WorkerView
from tests.helpers.processes import until

URL = "http://w:1"


@dataclass
class Answer:
    status: int
    body: bytes


@dataclass
class ScriptedProbe:
    """Answers by path; an exception is raised, None hangs until the time-out."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def get(self, url: str, path: str, timeout_s: float) -> Answer:
        self.asked.append(path)
        answer = self.answers.get(path, 404)
        if answer is None:
            await asyncio.sleep(timeout_s)
            raise Unreachable("no answer", refused=False)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return Answer(answer, b"")
        return Answer(200, orjson.dumps(answer))


OURS = {
    "/health": 200,
    "/v1/models": {"data": [{"id": "m", "task": "embed", "max_model_len": 512}]},
    "/server_info": {
        "served_model_name": "m",
        "incarnation": "i1",
        "max_total_num_tokens": 900,
        "max_running_requests": 8,
    },
    "/v1/loads": {
        "loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1, "num_waiting_tokens": 30, "token_usage": 0.5}]
    },
}


@contextlib.asynccontextmanager
async def monitored(probe: ScriptedProbe, **settings: Any) -> AsyncIterator[tuple[Registry, HealthMonitor]]:
    registry = Registry()
    values = {"interval_s": 0.02, "timeout_s": 0.05, "max_failures": 3, "on_probe_failure": lambda: None, **settings}
    monitor = HealthMonitor(registry, probe, MonotonicClock(), **values)
    registry.subscribe(monitor.follow)
    task = asyncio.create_task(monitor.run())
    registry.add(URL, source="static")
    try:
        yield registry, monitor
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def view(registry: Registry) -> WorkerView:
    return registry.snapshot.workers[0]


async def test_a_healthy_worker_is_known_and_ready() -> None:
    async with monitored(ScriptedProbe(dict(OURS))) as (registry, _):
        await until(lambda: view(registry).load.report, 2, "a load report")
        worker = view(registry)
        assert worker.status is WorkerStatus.READY
        assert worker.identity == Identity(
            model="m",
            task="embed",
            context_tokens=512,
            incarnation="i1",
            max_total_tokens=900,
            max_running_requests=8,
        )
        assert registry.snapshot.cards == {"m": {"task": "embed", "max_model_len": 512}}
        assert worker.load.report is not None
        assert (worker.load.report.running_requests, worker.load.report.waiting_tokens) == (2, 30)


async def test_the_first_look_ends_when_all_have_been_asked() -> None:
    async with monitored(ScriptedProbe(dict(OURS)), interval_s=60) as (registry, monitor):
        await monitor.first_look(10)
        assert view(registry).status is WorkerStatus.READY


async def test_the_first_look_does_not_wait_for_those_who_are_silent() -> None:
    async with monitored(ScriptedProbe({"/health": None}), timeout_s=60) as (registry, monitor):
        async with asyncio.timeout(10):
            await monitor.first_look(0.01)
        assert view(registry).status is WorkerStatus.STARTING


async def test_without_workers_there_is_nothing_to_look_at() -> None:
    registry = Registry()
    monitor = HealthMonitor(
        registry,
        ScriptedProbe(),
        MonotonicClock(),
        interval_s=1,
        timeout_s=1,
        max_failures=3,
        on_probe_failure=lambda: None,
    )
    async with asyncio.timeout(10):
        await monitor.first_look(60)


async def test_other_makers_need_only_health_and_models() -> None:
    probe = ScriptedProbe({"/health": 200, "/v1/models": {"data": [{"id": "their-model"}]}})
    async with monitored(probe) as (registry, _):
        await until(lambda: registry.snapshot.ready.get("their-model"), 2, "ready")
        await until(lambda: probe.asked.count("/health") > 5, 2, "more probes")
        assert probe.asked.count("/v1/loads") == probe.asked.count("/get_load") == 1  # it has none: not asked again


async def test_a_load_that_is_pushed_is_not_asked_for() -> None:
    clock, probe = MonotonicClock(), ScriptedProbe(dict(OURS))
    async with monitored(probe) as (registry, _):
        await until(lambda: view(registry).load.report, 2, "a load report")
        registry.report(URL, LoadReport(running_requests=7, received_s=clock.now_s(), pushed=True))
        await asyncio.sleep(0.1)  # a probe may be under way
        asked = probe.asked.count("/v1/loads")
        probes = probe.asked.count("/health")
        await until(lambda: probe.asked.count("/health") > probes + 5, 2, "more probes")
        assert probe.asked.count("/v1/loads") == asked
        registry.report(URL, LoadReport(running_requests=7, received_s=clock.now_s() - 10, pushed=True))
        await until(lambda: probe.asked.count("/v1/loads") > asked, 2, "it is asked for again")


async def test_only_a_worker_that_misses_all_probes_and_sends_nothing_hangs() -> None:
    heard: list[bool] = []
    probe = ScriptedProbe(dict(OURS))
    async with monitored(probe, on_silence=lambda url, hangs: heard.append(hangs)) as (registry, _):
        await until(lambda: registry.snapshot.ready, 2, "ready")
        registry.degrade(URL, "for the test")
        probe.answers["/health"] = None
        await until(lambda: len(heard) >= 4, 5, "silence")
        assert heard[:2] == [False, False] and all(heard[2:])  # the third miss says so
        view(registry).load.last_progress_s = MonotonicClock().now_s() + 5
        before = len(heard)
        await until(lambda: len(heard) >= before + 3, 5, "more silence")
        assert not any(heard[before + 1 :])  # something flows, however many are missed
        view(registry).load.last_progress_s = float("-inf")
        for answer in (503, Unreachable("refused", refused=True)):
            probe.answers["/health"] = answer
            await asyncio.sleep(0.1)
            before = len(heard)
            await asyncio.sleep(0.2)
            assert len(heard) == before


async def test_a_worker_without_a_name_is_not_routed_to() -> None:
    async with monitored(ScriptedProbe({"/health": 200})) as (registry, _):
        await until(lambda: view(registry).status is WorkerStatus.DEGRADED, 2, "degraded")
        assert "model's name" in view(registry).message


async def test_missed_probes_degrade_and_an_answer_mends() -> None:
    probe = ScriptedProbe(dict(OURS))
    async with monitored(probe) as (registry, _):
        await until(lambda: registry.snapshot.ready, 2, "ready")
        life = view(registry).life
        probe.answers["/health"] = None
        missed = probe.asked.count("/health")
        await until(lambda: not registry.snapshot.ready, 2, "degraded")
        assert probe.asked.count("/health") - missed >= 3
        assert view(registry).life == life  # silence is no proof of death
        probe.answers["/health"] = 200
        await until(lambda: registry.snapshot.ready, 2, "ready again")
        assert view(registry).life == life


async def test_a_busy_worker_whose_tokens_flow_is_not_failed() -> None:
    probe = ScriptedProbe(dict(OURS))
    async with monitored(probe) as (registry, _):
        await until(lambda: registry.snapshot.ready, 2, "ready")
        probe.answers["/health"] = None
        start = probe.asked.count("/health")
        while probe.asked.count("/health") < start + 8:
            view(registry).load.last_progress_s = MonotonicClock().now_s()
            assert view(registry).status is WorkerStatus.READY
            await asyncio.sleep(0.01)
        await until(lambda: not registry.snapshot.ready, 2, "degraded once nothing flows")


async def test_several_good_probes_in_a_row_can_be_asked_for() -> None:
    probe = ScriptedProbe(dict(OURS))
    async with monitored(probe, min_successes=3) as (registry, _):
        await until(lambda: registry.snapshot.ready, 4, "ready")
        assert probe.asked.count("/health") == 3
        probe.answers["/health"] = 503
        await until(lambda: not registry.snapshot.ready, 2, "degraded")
        probe.answers["/health"] = 200
        before = probe.asked.count("/health")
        await until(lambda: registry.snapshot.ready, 4, "ready again")
        assert probe.asked.count("/health") - before in (3, 4)  # one may have been on its way


async def test_another_path_can_be_asked() -> None:
    probe = ScriptedProbe({**OURS, "/health": 500, "/alive": 200})
    async with monitored(probe, path="/alive") as (registry, _):
        await until(lambda: registry.snapshot.ready, 2, "ready")
        assert "/health" not in probe.asked


async def test_its_own_word_degrades_at_once() -> None:
    probe = ScriptedProbe(dict(OURS))
    async with monitored(probe, max_failures=100) as (registry, _):
        await until(lambda: registry.snapshot.ready, 2, "ready")
        view(registry).load.last_progress_s = MonotonicClock().now_s() + 100
        probe.answers["/health"] = 503
        await until(lambda: not registry.snapshot.ready, 2, "degraded")


async def test_a_refused_connection_is_a_death() -> None:
    probe = ScriptedProbe(dict(OURS))
    async with monitored(probe) as (registry, _):
        await until(lambda: registry.snapshot.ready, 2, "ready")
        life = view(registry).life
        probe.answers["/health"] = Unreachable("refused", refused=True)
        await until(lambda: view(registry).life == NO_LIFE, 2, "lost")
        probe.answers["/health"] = 200
        await until(lambda: registry.snapshot.ready, 2, "back")
        assert view(registry).life > life


async def test_suspicion_asks_at_once_who_it_is() -> None:
    """A restart on the same address that no probe saw: the new incarnation is another life."""
    probe = ScriptedProbe(dict(OURS))
    async with monitored(probe, interval_s=30) as (registry, monitor):
        await until(lambda: registry.snapshot.ready, 2, "ready")
        life = view(registry).life
        probe.answers["/server_info"] = {**OURS["/server_info"], "incarnation": "i2"}  # type: ignore[dict-item]
        monitor.suspect(URL)
        await until(lambda: view(registry).life > life, 2, "another life")
        monitor.suspect("http://unknown:1")  # no matter


async def test_identity_is_asked_for_now_and_then() -> None:
    probe = ScriptedProbe(dict(OURS))
    async with monitored(probe) as (registry, _):
        await until(lambda: registry.snapshot.ready, 2, "ready")
        probe.answers["/server_info"] = {**OURS["/server_info"], "incarnation": "i2"}  # type: ignore[dict-item]
        await until(lambda: view(registry).identity.incarnation == "i2", 3, "seen without suspicion")


async def test_removed_workers_are_not_probed() -> None:
    probe = ScriptedProbe(dict(OURS))
    async with monitored(probe) as (registry, _):
        await until(lambda: registry.snapshot.ready, 2, "ready")
        registry.remove(URL)
        count = len(probe.asked)
        await asyncio.sleep(0.1)
        assert len(probe.asked) == count


async def test_nonsense_answers_do_not_stop_the_loop() -> None:
    probe = ScriptedProbe(
        {**OURS, "/v1/loads": [1, {"num_running_reqs": "x"}], "/server_info": [1], "/v1/models": {"data": 3}}
    )
    async with monitored(probe) as (registry, _):
        await until(lambda: view(registry).status is WorkerStatus.DEGRADED, 2, "degraded")
        probe.answers.update(OURS)
        await until(lambda: registry.snapshot.ready, 2, "ready")


def test_load_formats() -> None:
    ours = load_of({"loads": [{"num_running_reqs": 1}, {"num_running_reqs": 2, "gen_throughput": 4.0}]}, 7.0)
    assert (ours.running_requests, ours.gen_throughput, ours.received_s) == (3, 4.0, 7.0)
    ranks = [{"totals": {"generation_tokens_total": 5}}, {"totals": {"generation_tokens_total": 6}}, {"totals": 7}]
    assert load_of({"loads": ranks}, 0.0).generated_tokens == 11
    older = load_of([{"num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 100, "num_pending_tokens": 40}], 0.0)
    assert (older.running_requests, older.waiting_requests, older.used_tokens, older.waiting_tokens) == (3, 2, 100, 40)
    for nonsense in (None, 3, "x", {}, {"loads": 3}, [None]):
        assert load_of(nonsense, 0.0).running_requests == 0


def test_identity_formats() -> None:
    assert identity_of({}, {"model_path": "/models/x"}).model == "/models/x"
    assert identity_of({"id": "name"}, {"model_path": "/models/x"}).model == "name"
    assert identity_of({"id": "m"}, {"max_total_num_tokens": None, "incarnation": None}) == Identity(model="m")
    shapes: list[dict[str, Any]] = [{}, {"data": []}, {"data": [3]}, {"data": [{}]}]
    for nonsense in shapes:
        assert identity_of(first_card(nonsense), {}) == Identity()
