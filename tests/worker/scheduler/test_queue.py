"""The waiting queue keeps order and counts prompt tokens."""

from __future__ import annotations

from tests.helpers.builders import make_request
from worker.scheduler.queue import WaitingQueue


def test_order_front_and_removal() -> None:
    a, b, c = (make_request([1] * n, rid) for rid, n in (("a", 3), ("b", 4), ("c", 5)))
    queue = WaitingQueue()
    queue.append(a)
    queue.append(b)
    queue.push_front(c)
    assert list(queue) == [c, a, b]
    assert queue.num_prompt_tokens == 12
    queue.remove(a)
    assert list(queue) == [c, b]
    assert (len(queue), queue.num_prompt_tokens) == (2, 9)
