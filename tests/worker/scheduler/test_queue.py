"""The waiting queue keeps order, counts prompt tokens, and knows whose turn is overdue."""

from __future__ import annotations

from tests.helpers.builders import make_request, queue_of
from worker.scheduler.queue import Lane


def test_order_front_and_removal() -> None:
    a, b, c = (make_request([1] * n, rid) for rid, n in (("a", 3), ("b", 4), ("c", 5)))
    queue = queue_of(a, b)
    queue.push_front(c)
    assert list(queue) == [c, a, b]
    assert queue.num_prompt_tokens == 12
    queue.remove(a)
    assert list(queue) == [c, b]
    assert (len(queue), queue.num_prompt_tokens) == (2, 9)
    assert (queue.first, queue.last) == (c, b)


def test_an_empty_queue() -> None:
    queue = queue_of()
    assert (queue.first, queue.last, queue.lanes(), list(queue)) == (None, None, [], [])


def test_a_lane_for_each_rank_most_urgent_first() -> None:
    low, high, later, front = (
        make_request([1], rid, rank=rank) for rid, rank in zip("abcd", (5, -5, 5, 5), strict=True)
    )
    queue = queue_of(low, high, later, by_rank=True)
    queue.push_front(front)
    assert list(queue) == [high, front, low, later]
    assert [lane.rank for lane in queue.lanes()] == [-5, 5]
    queue.remove(high)
    assert [lane.rank for lane in queue.lanes()] == [5]
    assert (queue.first, queue.last) == (front, later)


def test_ranks_do_not_count_unless_asked() -> None:
    first, second = make_request([1], "a", rank=5), make_request([1], "b", rank=-5)
    assert list(queue_of(first, second)) == [first, second]


def test_overdue_is_64_departures_after_ones_turn() -> None:
    lane = Lane(0)
    requests = [make_request([1], f"r{n}") for n in range(100)]
    for request in requests:
        lane.append(request)
    assert not lane.is_overdue(requests[2])
    for request in requests[3:68]:  # two are ahead, so its turn comes after two departures
        lane.remove(request)
    assert [lane.is_overdue(request) for request in requests[:3]] == [True, True, False]
    lane.remove(requests[68])
    assert lane.is_overdue(requests[2])


def test_who_comes_back_after_a_retraction_is_overdue_and_leaves_once() -> None:
    lane = Lane(0)
    waiting, retracted = make_request([1], "w"), make_request([1], "r")
    lane.append(waiting)
    for _ in range(100):
        retracted.refill(retracted.prompt_key)
        lane.push_front(retracted)
        assert lane.is_overdue(retracted)
        lane.remove(retracted)
    assert not lane.is_overdue(waiting)
