"""The replica's life cycle: every event at every moment, by rules and by hypothesis."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.fleet.messages import Ending, Life, Ready
from deploy.fleet.scaling import ReplicaLoad
from deploy.fleet.state import TRANSITIONS, Action, Kill, Launch, Policy, Replica, State, Stop

POLICY = Policy(start_timeout_s=100, lease_s=10, silence_s=5, drain_notice_s=1, drain_timeout_s=20, stable_s=60)
CRASH = Ending(reason="its worker exited with code 1", code=1, log_tail=["Traceback", "boom"])


def make_replica(policy: Policy = POLICY) -> Replica:
    numbers = count()
    replica, actions = Replica.first("replica-0", policy, lambda: f"life-{next(numbers)}", 0.0)
    assert actions == [Launch(Life(replica_id="replica-0", incarnation="life-0"))]
    return replica


def ready_of(replica: Replica) -> Ready:
    return Ready(
        url="http://127.0.0.1:1",
        pid=1,
        scheduler_pid=2,
        model="m",
        max_total_num_tokens=100,
        max_running_requests=4,
        incarnation=replica.life.incarnation,
    )


def make_ready(replica: Replica, now_s: float) -> None:
    replica.on_ready(replica.life.incarnation, ready_of(replica), now_s)
    assert replica.state is State.READY


def test_a_ready_replica_shows_its_address_and_a_failed_one_does_not() -> None:
    replica = make_replica()
    assert (replica.record().state, replica.record().url) == ("starting", "")
    make_ready(replica, 5)
    assert (replica.record().state, replica.record().url, replica.record().pid) == ("ready", "http://127.0.0.1:1", 1)
    replica.on_ended("life-0", CRASH, 6)
    assert (replica.record().state, replica.record().url) == ("failed", "")
    assert replica.record().message == CRASH.reason


def test_the_first_restart_is_immediate_and_a_new_incarnation() -> None:
    replica = make_replica()
    make_ready(replica, 5)
    replica.on_ended("life-0", CRASH, 6)
    assert replica.tick(6) == [Launch(Life(replica_id="replica-0", incarnation="life-1", restarts=1))]
    assert replica.state is State.STARTING


def test_short_lives_are_spaced_wider_and_wider_and_end_in_a_verdict() -> None:
    replica, now, waits = make_replica(), 0.0, []
    for _ in range(8):
        replica.on_ended(replica.life.incarnation, CRASH, now)
        assert replica.restart_at_s is not None
        waits.append(replica.restart_at_s - now)
        now = replica.restart_at_s
        assert replica.tick(now - 0.01) == [] or waits[-1] == 0
        if replica.state is State.FAILED:
            assert len(replica.tick(now)) == 1
    assert waits == [0, 1, 2, 4, 8, 16, 30, 30]
    assert replica.is_crash_looping
    assert "crash loop, 8 short lives in a row" in replica.record().message


def test_a_long_life_clears_the_back_off() -> None:
    replica = make_replica()
    for now in (1.0, 2.0):
        replica.on_ended(replica.life.incarnation, CRASH, now)
        replica.tick(now + 1)
    make_ready(replica, 10)
    replica.on_beat(replica.life.incarnation, 69)
    replica.on_ended(replica.life.incarnation, CRASH, 70)
    assert replica.restart_at_s == 70
    assert not replica.is_crash_looping


def test_refused_settings_are_not_tried_again() -> None:
    replica = make_replica()
    replica.on_ended("life-0", Ending(reason="its worker exited with code 2", code=2), 1)
    assert replica.is_given_up
    assert replica.tick(1e9) == []


def test_refusal_after_a_life_that_served_is_tried_again() -> None:
    replica = make_replica()
    make_ready(replica, 1)
    replica.on_ended("life-0", CRASH, 2)
    replica.tick(2)
    replica.on_ended("life-1", Ending(reason="its worker exited with code 2", code=2), 3)
    assert not replica.is_given_up


def test_start_time_out_counts_from_the_place_on_a_node_and_kills_the_life() -> None:
    replica = make_replica()
    assert replica.tick(4.9) == []
    assert replica.record().message == ""
    assert replica.tick(1000) == []
    assert replica.record().message == "waits for a node that has room, or for its turn to start there"
    assert replica.waits_for_place
    replica.on_placed("life-0", 1000)
    assert not replica.waits_for_place
    assert replica.record().message == ""
    assert replica.tick(1099.9) == []
    assert replica.tick(1100) == [Kill(Life(replica_id="replica-0", incarnation="life-0"))]
    assert replica.record().message == "not ready after 100 s"


def test_a_replica_whose_lease_ends_is_silent_until_it_beats() -> None:
    replica = make_replica()
    make_ready(replica, 0)
    assert replica.on_beat("life-0", 8)
    assert replica.tick(17.9) == []
    assert replica.record().state == "ready"
    assert replica.tick(18) == []
    assert (replica.record().state, replica.record().url) == ("silent", "http://127.0.0.1:1")
    assert replica.record().message == "no sign of life for 10 s"
    assert replica.on_beat("life-0", 20)
    assert (replica.record().state, replica.record().url) == ("ready", "http://127.0.0.1:1")
    assert replica.tick(29.9) == []


def test_a_long_silence_kills_the_life_and_its_beats_are_refused() -> None:
    replica = make_replica()
    make_ready(replica, 0)
    replica.tick(10)
    assert replica.tick(14.9) == []
    assert replica.tick(15) == [Kill(Life(replica_id="replica-0", incarnation="life-0"))]
    assert replica.record().message == "no sign of life for 15 s"
    assert not replica.on_beat("life-0", 15.1)
    replica.tick(16)
    assert not replica.on_beat("life-0", 17)
    assert replica.on_beat("life-1", 17)


def test_a_silent_replica_that_has_to_leave_is_killed() -> None:
    replica = make_replica()
    make_ready(replica, 0)
    replica.tick(10)
    assert replica.drain(11) == [Kill(replica.life)]
    assert replica.state is State.GONE


def test_a_beat_brings_the_load() -> None:
    replica = make_replica()
    make_ready(replica, 0)
    replica.on_beat("life-0", 3, ReplicaLoad(running_requests=7))
    replica.on_beat("life-0", 5)
    assert (replica.load, replica.load_at_s) == (ReplicaLoad(running_requests=7), 3)


def test_draining_gives_gateways_notice_then_stops_then_kills() -> None:
    replica = make_replica()
    make_ready(replica, 0)
    assert replica.drain(10) == []
    assert replica.record().state == "draining"
    assert replica.tick(10.9) == []
    assert replica.tick(11) == [Stop(replica.life, 20)]
    assert replica.tick(12) == []
    assert replica.tick(31) == [Kill(replica.life)]
    assert replica.state is State.GONE


def test_a_drained_worker_that_ends_is_gone_and_not_restarted() -> None:
    replica = make_replica()
    make_ready(replica, 0)
    replica.drain(10)
    replica.on_ended("life-0", Ending(reason="stopped", code=0), 12)
    assert replica.state is State.GONE
    assert replica.tick(100) == []


@pytest.mark.parametrize("event", ["ready", "ended", "beat"])
def test_news_of_an_earlier_life_changes_nothing(event: str) -> None:
    replica = make_replica()
    make_ready(replica, 0)
    replica.on_ended("life-0", CRASH, 1)
    replica.tick(1)
    before = (replica.state, replica.life, replica.lease_until_s, replica.unstable_lives)
    if event == "ready":
        replica.on_ready("life-0", ready_of(replica), 2)
    elif event == "ended":
        replica.on_ended("life-0", CRASH, 2)
    else:
        replica.on_beat("life-0", 2)
    assert (replica.state, replica.life, replica.lease_until_s, replica.unstable_lives) == before


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["placed", "ready", "crash", "refuse", "beat", "drain", "tick", "old ready", "old crash"]),
        st.floats(0, 40),
    ),
    max_size=60,
)


@given(EVENTS)
@settings(max_examples=300, deadline=None)
def test_any_history_keeps_the_rules(events: list[tuple[str, float]]) -> None:
    """Legal transitions only; a life is launched once, after the one before it ended; none is left running."""
    replica, now_s = make_replica(), 0.0
    running = {replica.life.incarnation}  # lives launched, not ended and not killed
    for event, passed_s in events:
        now_s += passed_s
        state_before, incarnation = replica.state, replica.life.incarnation
        actions = _apply(replica, event, now_s)
        if event in ("crash", "refuse"):
            running.discard(incarnation)
        for action in actions:
            if isinstance(action, Launch):
                assert not running, "two lives at once"
                running.add(action.life.incarnation)
            elif isinstance(action, Kill):
                assert action.life.incarnation in running
                running.discard(action.life.incarnation)
        assert replica.state is state_before or replica.state in TRANSITIONS[state_before]
        if replica.state in (State.STARTING, State.READY, State.SILENT, State.DRAINING):
            assert running == {replica.life.incarnation}
        else:
            assert not running
        if replica.state is not State.GONE:
            serves = replica.state in (State.READY, State.SILENT, State.DRAINING)
            assert bool(replica.record().url) == serves


def _apply(replica: Replica, event: str, now_s: float) -> list[Action]:
    current = replica.life.incarnation
    if replica.state is State.FAILED and event in ("crash", "refuse", "ready"):
        return []  # nothing runs that could say so
    if event == "placed":
        replica.on_placed(current, now_s)
    elif event == "ready":
        replica.on_ready(current, ready_of(replica), now_s)
    elif event in ("crash", "refuse"):
        replica.on_ended(current, Ending(reason=event, code=1 if event == "crash" else 2), now_s)
    elif event == "beat":
        replica.on_beat(current, now_s)
    elif event == "old ready":
        replica.on_ready("another", ready_of(replica), now_s)
    elif event == "old crash":
        replica.on_ended("another", CRASH, now_s)
    else:
        return replica.drain(now_s) if event == "drain" else replica.tick(now_s)
    return []
