"""The queue in front of the workers: by properties against a naive model, and its rules one by one."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.admission.bucket import TokenBucket
from gateway.admission.queue import AdmissionQueue, Place, PlaceState, QueueRules

SIZE, MAX_BYTES, TIMEOUT_S, MAX_CONCURRENT = 4, 100, 10.0, 3


def place(owner: int = 0, *, priority: int = 0, body_bytes: int = 0, arrival_s: float = 0.0) -> Place[int]:
    return Place(owner, priority, body_bytes, arrival_s)


class AnyHistory(RuleBasedStateMachine):
    """Requests come, end, leave and wait in any order; the books are right after each step."""

    def __init__(self) -> None:
        super().__init__()
        rules = QueueRules(max_concurrent=MAX_CONCURRENT, size=SIZE, max_bytes=MAX_BYTES, timeout_s=TIMEOUT_S)
        self.queue: AdmissionQueue[int] = AdmissionQueue(rules)
        self.places: list[Place[int]] = []
        self.now_s = 0.0

    @rule(priority=st.integers(-1, 1), body_bytes=st.integers(0, 60))
    def come(self, priority: int, body_bytes: int) -> None:
        new = place(len(self.places), priority=priority, body_bytes=body_bytes, arrival_s=self.now_s)
        self.places.append(new)
        had_room = self.queue.admitted < MAX_CONCURRENT and not self.queue.waiting
        victims = self.queue.enter(new, self.now_s)
        assert (new.state is PlaceState.ADMITTED) == had_room
        assert all(victim.priority < priority and victim.state is PlaceState.OVER for victim in victims)
        if new.state is PlaceState.OVER:
            assert not victims

    @rule(number=st.integers(0, 1000))
    def leave(self, number: int) -> None:
        if self.places:
            self.queue.leave(self.places[number % len(self.places)])

    @rule()
    def admit(self) -> None:
        waiting = self.of(PlaceState.WAITING)
        expected = min(waiting, key=lambda p: (-p.priority, p.owner), default=None)
        room = self.queue.admitted < MAX_CONCURRENT
        assert self.queue.next(self.now_s) is (expected if room else None)

    @rule(seconds=st.floats(0, 15))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        due_s = self.queue.due_s(self.now_s)
        late = {p.owner for p in self.of(PlaceState.WAITING) if p.arrival_s <= self.now_s - TIMEOUT_S}
        assert (due_s == 0) == bool(late) or due_s is not None and due_s < 1e-6
        assert {p.owner for p in self.queue.expire(self.now_s)} == late

    def of(self, state: PlaceState) -> list[Place[int]]:
        return [p for p in self.places if p.state is state]

    @invariant()
    def books_are_right(self) -> None:
        waiting = self.of(PlaceState.WAITING)
        assert self.queue.admitted == len(self.of(PlaceState.ADMITTED)) <= MAX_CONCURRENT
        assert self.queue.waiting == len(waiting) <= SIZE
        assert self.queue.waiting_bytes == sum(p.body_bytes for p in waiting) <= MAX_BYTES

    def teardown(self) -> None:
        for left in self.places:
            self.queue.leave(left)
        assert (self.queue.admitted, self.queue.waiting, self.queue.waiting_bytes) == (0, 0, 0)


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase


def test_without_a_bound_only_the_rate_counts() -> None:
    queue: AdmissionQueue[int] = AdmissionQueue(QueueRules(), TokenBucket(2.0, 1.0))
    first, second = place(1), place(2)
    queue.enter(first, 0.0)
    queue.enter(second, 0.0)
    assert (first.state, second.state) == (PlaceState.ADMITTED, PlaceState.WAITING)
    assert queue.due_s(0.0) == 0.5
    assert queue.next(0.4) is None
    assert queue.next(0.5) is second


def test_a_full_queue_keeps_the_urgent() -> None:
    queue: AdmissionQueue[int] = AdmissionQueue(QueueRules(max_concurrent=1, size=2))
    running, low, lower, same, urgent = (place(n, priority=p) for n, p in ((0, 0), (1, 0), (2, -1), (3, -1), (4, 5)))
    for one in (running, low, lower):
        queue.enter(one, 0.0)
    assert queue.enter(same, 0.0) == [] and same.state is PlaceState.OVER
    assert queue.enter(urgent, 0.0) == [lower]
    queue.leave(running)
    assert queue.next(1.0) is urgent


def test_bytes_are_a_bound_of_their_own() -> None:
    queue: AdmissionQueue[int] = AdmissionQueue(QueueRules(max_concurrent=1, max_bytes=10))
    running, big, small = place(0), place(1, body_bytes=11), place(2, body_bytes=10)
    for one in (running, big, small):
        queue.enter(one, 0.0)
    assert (big.state, small.state) == (PlaceState.OVER, PlaceState.WAITING)


def test_the_retry_after_is_what_others_waited() -> None:
    queue: AdmissionQueue[int] = AdmissionQueue(QueueRules(max_concurrent=1, timeout_s=500))
    assert queue.retry_after_s == 1
    running, second, third = place(0), place(1), place(2)
    for one in (running, second, third):
        queue.enter(one, 0.0)
    queue.leave(running)
    queue.next(6.2)
    assert queue.retry_after_s == 7
    queue.expire(501.0)
    assert queue.retry_after_s == 60
