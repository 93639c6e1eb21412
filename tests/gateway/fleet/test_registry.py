"""The registry: legal states only, immutable snapshots, lives; and the ledger of one worker."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.fleet.registry import Registry, Snapshot, check_url
from gateway.fleet.worker import (
    LEGAL_TRANSITIONS,
    NO_LIFE,
    Identity,
    LoadReport,
    Ticket,
    WorkerLoad,
    WorkerStatus,
    WorkerView,
    remaining_share,
)

A, B = "http://a:1", "http://b:2"
M = Identity(model="m", incarnation="1")


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://h:8000/", "http://h:8000"),
        ("http://h", "http://h:80"),
        ("https://h", "https://h:443"),
        ("http://[::1]:5", "http://[::1]:5"),
        ("HTTP://Host:1", "http://host:1"),
    ],
)
def test_urls_are_normalised(url: str, normal: str) -> None:
    assert check_url(url) == normal


@pytest.mark.parametrize(
    "url", ["", "h:80", "ftp://h", "http://", "http://h:99999", "http://h/path", "http://u:p@h", "http://h?x=1", "h"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="worker URL"):
        check_url(url)


def test_a_worker_becomes_routable_when_its_probe_succeeds() -> None:
    registry = Registry()
    registry.add(A, source="static")
    assert not registry.snapshot.ready
    registry.identify(A, M)
    assert not registry.snapshot.ready
    registry.ready(A)
    assert [worker.url for worker in registry.snapshot.ready["m"]] == [A]
    registry.degrade(A, "tired")
    assert not registry.snapshot.ready
    worker = registry.snapshot.get(A)
    assert worker is not None and (worker.status, worker.message) == (WorkerStatus.DEGRADED, "tired")


def test_snapshots_do_not_change() -> None:
    registry = Registry()
    seen: list[Snapshot] = []
    registry.subscribe(seen.append)
    registry.add(A, source="static", identity=M)
    registry.ready(A)
    registry.ready(A)  # nothing new
    registry.add(B, source="static")
    registry.remove(A)
    assert [(s.version, len(s.workers)) for s in seen] == [(1, 1), (2, 1), (3, 2), (4, 1)]
    assert [worker.url for worker in seen[1].ready["m"]] == [A]


def test_another_incarnation_is_another_life() -> None:
    registry = Registry()
    life = registry.add(A, source="static", identity=M).life
    registry.identify(A, Identity(model="m", incarnation="1", max_total_tokens=5))
    assert registry.snapshot.workers[0].life == life
    registry.identify(A, Identity(model="m", incarnation="2"))
    assert registry.snapshot.workers[0].life > life


def test_learning_the_incarnation_is_no_new_life() -> None:
    registry = Registry()
    life = registry.add(A, source="static").life
    registry.identify(A, M)
    assert registry.snapshot.workers[0].life == life


def test_a_lost_worker_has_no_life_until_it_is_back() -> None:
    registry = Registry()
    life = registry.add(A, source="static", identity=M).life
    registry.ready(A)
    registry.degrade(A, "slow")
    assert registry.snapshot.workers[0].life == life
    for _ in range(2):
        registry.lost(A, "refused")
        assert registry.snapshot.workers[0].life == NO_LIFE
    registry.ready(A)
    assert registry.snapshot.workers[0].life > life


def test_drained_workers_get_nothing_and_go_when_idle() -> None:
    registry = Registry()
    ticket = registry.add(A, source="static", identity=M).load.begin(5, None)
    registry.ready(A)
    registry.drain(A)
    for change in (registry.ready, lambda url: registry.degrade(url, "x"), lambda url: registry.lost(url, "x")):
        change(A)
        assert registry.snapshot.workers[0].status is WorkerStatus.DRAINING
    registry.reap(0.0, 100.0)
    assert registry.snapshot.workers
    ticket.end()
    registry.reap(0.0, 100.0)
    assert not registry.snapshot.workers
    assert registry.drain(A) is None and registry.remove(A) is None


@pytest.mark.parametrize(
    "url", ["http://h o:1", "http://h\r\nx:1", "http://h:0", "http://h\t:1", "http://h<:1", "http://:1", "HTTP"]
)
def test_places_where_no_worker_can_be(url: str) -> None:
    with pytest.raises(ValueError, match="is not a worker URL"):
        check_url(url)


def test_illegal_transitions_are_refused() -> None:
    for before in WorkerStatus:
        for after in WorkerStatus:
            view = WorkerView(url=A, name="a", life=1, status=before, identity=M, source="static", load=WorkerLoad())
            if after is before or after in LEGAL_TRANSITIONS[before]:
                assert view.moved(after).status is after
            else:
                with pytest.raises(ValueError, match="not a legal transition"):
                    view.moved(after)


def test_the_ledger_forgets_requests_that_are_over() -> None:
    """Also if nobody ever lets prefill work expire: only cache_aware does."""
    load = WorkerLoad()
    long = load.begin(7, release_s=1e9)
    for _ in range(1000):
        load.begin(5, release_s=1e9).end()
    assert (load.inflight, load.pending_tokens) == (1, 7)
    long.end()
    load.begin(5, release_s=1e9).end()
    assert len(load.expiring) == 1


def test_reports_show_what_others_sent() -> None:
    load = WorkerLoad()
    load.begin(100, None)
    load.told(LoadReport(running_requests=1, waiting_requests=3, waiting_tokens=350))
    assert (load.requests, load.others_tokens) == (4, 250)
    load.told(LoadReport())
    assert (load.requests, load.others_tokens) == (1, 0)


def test_what_ended_while_a_report_was_under_way_is_nobody_else_s() -> None:
    load = WorkerLoad()
    tickets = [load.begin(10, None) for _ in range(5)]
    before = load.ours
    for ticket in tickets:
        ticket.end()
    load.told(LoadReport(running_requests=5, waiting_requests=2, waiting_tokens=60), before)
    assert (load.requests, load.others_requests, load.others_tokens) == (2, 2, 10)


@given(ages=st.lists(st.floats(0, 1e6), min_size=2, max_size=2))
def test_the_share_of_others_falls_with_age_and_halves_each_second(ages: list[float]) -> None:
    younger, older = sorted(ages)
    assert 0 <= remaining_share(older) <= remaining_share(younger) <= 1
    assert remaining_share(younger + 1) == pytest.approx(remaining_share(younger) / 2)


def test_a_report_in_the_future_counts_whole() -> None:
    assert remaining_share(-3.0) == remaining_share(0.0) == 1.0


def test_others_requests_are_forgotten_unless_they_are_told_again() -> None:
    registry = Registry()
    registry.add(A, source="static")
    load = registry.snapshot.workers[0].load
    registry.report(A, LoadReport(running_requests=511, waiting_tokens=1000, received_s=100.0))
    seen = []
    for now_s in (100.0, 101.0, 101.0, 102.0, 109.0, 112.0):  # a tick changes nothing but by the time it brings
        registry.tick(now_s)
        seen.append((load.others_requests, load.others_tokens))
    assert seen == [(511, 1000), (256, 500), (256, 500), (128, 250), (1, 2), (0, 0)]
    registry.report(A, LoadReport(running_requests=511, received_s=112.0))
    registry.tick(112.0)
    assert load.requests == 511


class Ledger(RuleBasedStateMachine):
    """Whatever happens to tickets, the ledger is the sum of those that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.load = WorkerLoad()
        self.open: dict[Ticket, int] = {}
        self.release: dict[Ticket, float] = {}
        self.now_s = 0.0
        self.begun = 0

    @rule(tokens=st.integers(0, 100), release_in_s=st.none() | st.integers(0, 5))
    def begin(self, tokens: int, release_in_s: int | None) -> None:
        release_s = None if release_in_s is None else self.now_s + release_in_s
        ticket = self.load.begin(tokens, release_s)
        self.open[ticket] = tokens
        self.begun += 1

    @rule(data=st.data(), again=st.booleans())
    def end(self, data: st.DataObject, again: bool) -> None:
        if self.open:
            ticket = data.draw(st.sampled_from(list(self.open)))
            del self.open[ticket]
            ticket.end()
            if again:
                ticket.prefilled()
                ticket.end()

    @rule(data=st.data())
    def prefilled(self, data: st.DataObject) -> None:
        if self.open:
            ticket = data.draw(st.sampled_from(list(self.open)))
            self.open[ticket] = 0
            ticket.prefilled()

    @rule(seconds=st.integers(0, 3))
    def time_passes(self, seconds: int) -> None:
        self.now_s += seconds
        self.load.expire(self.now_s)

    @invariant()
    def sums_hold(self) -> None:
        assert self.load.inflight == len(self.open)
        assert self.load.sent_total == self.begun
        assert 0 <= self.load.pending_tokens <= sum(self.open.values())

    @invariant()
    def nothing_waits_for_ever(self) -> None:
        self.load.expire(self.now_s + 100)
        assert self.load.pending_tokens == sum(
            tokens for ticket, tokens in self.open.items() if ticket.release_s is None
        )
        self.open = {ticket: 0 if ticket.release_s is not None else tokens for ticket, tokens in self.open.items()}


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=50, deadline=None)
