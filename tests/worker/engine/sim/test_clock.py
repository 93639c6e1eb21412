"""Waiting on the two clocks of simulated devices."""

from __future__ import annotations

import time

from worker.engine.sim.clock import SleepingClock, VirtualClock


def test_virtual_time_passes_only_by_waiting_and_never_backwards() -> None:
    clock = VirtualClock()
    clock.wait_until(1e6)
    clock.wait_until(5.0)
    assert clock.now_s() == 1e6


def test_many_waits_do_not_add_up_their_delays() -> None:
    clock = SleepingClock()
    start_s = clock.now_s()
    for number in range(1, 101):
        clock.wait_until(start_s + number * 1e-3)
    assert clock.now_s() - start_s >= 0.1
    begin = time.monotonic()
    clock.wait_until(start_s)  # long ago
    assert time.monotonic() - begin < 0.05
