"""A worker's standing, and what the registry makes of it: who is routable, who is spared, who is forgotten."""

from __future__ import annotations

from gateway.fleet.registry import Registry
from gateway.fleet.worker import Identity, WorkerView
from gateway.resilience.breaker import BreakerRules, BreakerState
from gateway.resilience.guard import ReplicaGuard, Standing
from gateway.resilience.outcomes import Outcome

RULES = BreakerRules(failure_threshold=2, success_threshold=1, open_s=10, window_s=60)
URLS = ("http://a:1", "http://b:1", "http://c:1")


def fleet(number: int = 3) -> Registry:
    registry = Registry(RULES)
    for url in URLS[:number]:
        registry.add(url, source="static", identity=Identity(model="m", incarnation="1"))
        registry.ready(url)
    return registry


def view(registry: Registry, url: str) -> WorkerView:
    worker = registry.snapshot.get(url)
    assert worker is not None
    return worker


def fail(registry: Registry, url: str, now_s: float = 0.0, times: int = 2) -> None:
    for _ in range(times):
        registry.judge(view(registry, url), Outcome.REPLICA_FAULT, now_s, cause="test")


def refuse(registry: Registry, url: str, now_s: float, rest_s: float) -> None:
    registry.judge(view(registry, url), Outcome.BACK_PRESSURE, now_s, rest_s=rest_s)


def routable(registry: Registry) -> list[str]:
    return [worker.url for worker in registry.snapshot.ready.get("m", ())]


def resting(registry: Registry) -> list[str]:
    return [worker.url for worker in registry.snapshot.resting.get("m", ())]


def test_client_faults_change_nothing() -> None:
    guard = ReplicaGuard(RULES)
    for _ in range(100):
        guard.judge(Outcome.CLIENT_FAULT, 0, 0.0, 0.0)
    assert (guard.standing, guard.breaker.state) == (Standing.GOOD, BreakerState.CLOSED)


def test_back_pressure_makes_rest_and_never_opens() -> None:
    guard = ReplicaGuard(RULES)
    for _ in range(100):
        guard.judge(Outcome.BACK_PRESSURE, 0, 5.0, 3.0)
    assert (guard.standing, guard.breaker.state) == (Standing.RESTING, BreakerState.CLOSED)
    guard.judge(Outcome.BACK_PRESSURE, 0, 5.0, 1.0)  # a shorter one does not shorten the rest
    seen = []
    for now_s in (7.9, 8.0):
        guard.tick(now_s)
        seen.append(guard.standing)
    assert seen == [Standing.RESTING, Standing.GOOD]


def test_open_breakers_and_rests_move_requests_elsewhere() -> None:
    registry = fleet()
    fail(registry, URLS[0])
    refuse(registry, URLS[1], 0.0, 4.0)
    assert (routable(registry), resting(registry)) == ([URLS[2]], [URLS[1]])
    registry.tick(4.0)
    assert (routable(registry), resting(registry)) == ([URLS[1], URLS[2]], [])
    registry.tick(10.0)
    assert routable(registry) == list(URLS)


def test_where_there_is_no_elsewhere_they_change_nothing() -> None:
    registry = fleet()
    for url in URLS:
        fail(registry, url)
    assert routable(registry) == list(URLS)
    registry.tick(10.0)
    refuse(registry, URLS[0], 10.0, 4.0)
    fail(registry, URLS[1], 10.0)  # no trial: of yesterday
    assert (routable(registry), resting(registry)) == ([URLS[1], URLS[2]], [URLS[0]])
    single = fleet(1)
    refuse(single, URLS[0], 0.0, 4.0)
    assert (routable(single), resting(single)) == ([URLS[0]], [])


def test_a_half_open_worker_leaves_the_list_while_its_trials_run() -> None:
    registry = fleet()
    fail(registry, URLS[0])
    registry.tick(10.0)
    trial = registry.begin_trial(view(registry, URLS[0]))
    assert trial and routable(registry) == [URLS[1], URLS[2]]
    registry.judge(view(registry, URLS[0]), Outcome.SERVED, 11.0, trial=trial)
    assert routable(registry) == list(URLS)
    assert view(registry, URLS[0]).guard.breaker.state is BreakerState.CLOSED


def test_back_pressure_on_a_trial_is_no_verdict() -> None:
    registry = fleet()
    fail(registry, URLS[0])
    registry.tick(10.0)
    worker = view(registry, URLS[0])
    registry.judge(worker, Outcome.BACK_PRESSURE, 10.0, trial=registry.begin_trial(worker), rest_s=2.0)
    assert worker.guard.breaker.state is BreakerState.HALF_OPEN and resting(registry) == [URLS[0]]
    registry.tick(12.0)
    assert routable(registry) == list(URLS)


def test_another_process_at_the_same_address_starts_with_a_clean_sheet() -> None:
    registry = fleet()
    fail(registry, URLS[0])
    fail(registry, URLS[1])
    old = view(registry, URLS[0])
    registry.identify(URLS[0], Identity(model="m", incarnation="2"))  # noticed by its new incarnation
    registry.lost(URLS[1], "refused")  # or by its death
    registry.ready(URLS[1])
    assert routable(registry) == list(URLS)
    registry.judge(old, Outcome.REPLICA_FAULT, 1.0)
    registry.judge(old, Outcome.REPLICA_FAULT, 1.0)  # what the old process does after that says nothing of the new
    assert routable(registry) == list(URLS)


def test_a_flush_or_a_bad_probe_does_not_forget() -> None:
    registry = fleet()
    fail(registry, URLS[0])
    registry.flushed(URLS[0])
    registry.degrade(URLS[0], "silent")
    registry.ready(URLS[0])
    assert routable(registry) == [URLS[1], URLS[2]]


def test_a_large_fleet_in_trouble_publishes_with_pauses() -> None:
    """A snapshot of a thousand workers takes a millisecond; a thousand refusals within one must not take a second."""
    registry = Registry(RULES)
    for number in range(1000):
        registry.add(url := f"http://w{number}:1", source="static", identity=Identity(model="m"))
        registry.ready(url)
    version = registry.snapshot.version
    workers = registry.snapshot.workers
    for worker in workers[:900]:
        registry.judge(worker, Outcome.BACK_PRESSURE, 5.0, rest_s=3.0)
    assert registry.snapshot.version == version + 1
    registry.tick(5.5)
    assert len(routable(registry)) == 100 and len(resting(registry)) == 900
    registry.tick(8.0)
    registry.tick(8.5)
    assert len(routable(registry)) == 1000


def test_what_ends_with_a_removed_worker_is_no_verdict_on_it() -> None:
    moves: list[BreakerState] = []
    registry = Registry(RULES, moves.append)
    worker = registry.add(URLS[0], source="static", identity=Identity(model="m"))
    registry.remove(URLS[0])
    version = registry.snapshot.version
    for _ in range(5):
        registry.judge(worker, Outcome.REPLICA_FAULT, 0.0)
    assert not moves and registry.snapshot.version == version


def test_moves_are_counted() -> None:
    moves: list[BreakerState] = []
    registry = Registry(RULES, moves.append)
    registry.add(URLS[0], source="static", identity=Identity(model="m"))
    registry.ready(URLS[0])
    fail(registry, URLS[0])
    registry.tick(10.0)
    worker = view(registry, URLS[0])
    registry.judge(worker, Outcome.SERVED, 10.0, trial=registry.begin_trial(worker))
    assert moves == [BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED]


def test_draining_workers_are_given_up_after_the_grace_time() -> None:
    registry = fleet(2)
    ticket = view(registry, URLS[0]).load.begin(1, None)
    registry.drain(URLS[0])
    for now_s in (100.0, 129.9):
        registry.reap(now_s, 30.0)
        assert registry.snapshot.get(URLS[0]) is not None
    registry.reap(130.0, 30.0)
    assert registry.snapshot.get(URLS[0]) is None
    ticket.end()
    # The same address, drained again later, gets its whole grace time.
    registry.add(URLS[0], source="static", identity=Identity(model="m"))
    view(registry, URLS[0]).load.begin(1, None)
    registry.reap(200.0, 30.0)
    registry.drain(URLS[0])
    registry.reap(201.0, 30.0)
    assert registry.snapshot.get(URLS[0]) is not None
