"""How many requests are sent: the queue of each replica stays in its band."""

from __future__ import annotations

import random

import pytest

from deploy.batch.steering import HEALTHY_WAITING, TARGET_WAITING, ReplicaLoad, Steering


def steering(max_in_flight: int = 10**6) -> Steering:
    return Steering(without_report=32, max_in_flight=max_in_flight)


def sends(made: Steering, now_s: float = 0.0) -> int:
    count = 0
    while made.may_send(now_s):
        made.on_sent()
        count += 1
    return count


def test_nothing_before_the_first_report() -> None:
    assert sends(steering()) == 0


def test_what_runs_and_the_target_behind_it() -> None:
    made = steering()
    made.on_report([ReplicaLoad(waiting=0), ReplicaLoad(waiting=0)])
    assert sends(made) == 2 * TARGET_WAITING
    made.on_report([ReplicaLoad(running=100, waiting=12), ReplicaLoad(running=112, waiting=0)])
    assert sends(made) == 212


def test_each_answer_makes_room_for_one_more() -> None:
    made = steering()
    made.on_report([ReplicaLoad(waiting=0)])
    sends(made)
    made.on_end()
    assert sends(made) == 1


def test_other_peoples_requests_take_from_our_room() -> None:
    made = steering()
    made.on_report([ReplicaLoad(running=50, waiting=30)])
    assert sends(made) == TARGET_WAITING - 30
    made.on_report([ReplicaLoad(running=50, waiting=5000)])
    while made.in_flight:
        made.on_end()
    assert sends(made) == 1


def test_bounds_and_rests() -> None:
    made = steering(max_in_flight=10)
    made.on_report([ReplicaLoad(waiting=0)])
    assert sends(made) == 10
    made.on_end()
    made.rest(5.0)
    assert sends(made, 4.9) == 0
    assert sends(made, 5.0) == 1


def test_replicas_that_report_nothing_get_a_fixed_number() -> None:
    made = steering()
    made.on_report([ReplicaLoad(), ReplicaLoad()])
    assert sends(made) == 64
    made.on_report([ReplicaLoad(), ReplicaLoad()])
    assert sends(made) == 0


def test_no_ready_replica_no_sends() -> None:
    made = steering()
    made.on_report([ReplicaLoad(waiting=0)])
    made.on_report([])
    assert sends(made) == 0


@pytest.mark.parametrize("seed", range(5))
def test_queues_of_a_simulated_fleet_stay_in_the_band(seed: int) -> None:
    """Replicas that run up to 256 at once, each ending at random; reports each 0.25 s, up to 0.1 s old."""
    chance = random.Random(seed)
    replicas = chance.choice([1, 4, 8])
    rate = chance.uniform(0.02, 0.2)  # of running requests that end in 0.05 s
    running, waiting = [0] * replicas, [0] * replicas
    made, older = steering(), (list(running), list(waiting))
    for step in range(400):
        for r in range(replicas):
            ended = sum(chance.random() < rate for _ in range(running[r]))
            for _ in range(ended):
                made.on_end()
            started = min(256 - running[r] + ended, waiting[r])
            running[r] += started - ended
            waiting[r] -= started
        if step % 5 == 0:
            made.on_report([ReplicaLoad(running=n, waiting=w) for n, w in zip(*older, strict=True)])
        if step % 2 == 0:
            older = (list(running), list(waiting))
        for _ in range(sends(made)):
            waiting[waiting.index(min(waiting))] += 1
        if step > 100:
            assert min(running) == 256
            assert max(waiting) <= HEALTHY_WAITING[1]
