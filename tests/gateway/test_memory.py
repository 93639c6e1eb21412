"""When memory is given back: once after each burst, never in the middle of one."""

from __future__ import annotations

import ctypes

import pytest

from gateway.memory import MemoryTrimmer, give_back


def trims(course: list[tuple[float, int]]) -> list[float]:
    """At which of the (time, requests in flight) it was given back."""
    times: list[float] = []
    trimmer = MemoryTrimmer(lambda: times.append(now_s))
    for now_s, inflight in course:
        trimmer.look(inflight, now_s)
    return times


def seconds(start_s: int, counts: list[int]) -> list[tuple[float, int]]:
    return [(float(start_s + number), count) for number, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("course", "expected"),
    [
        (seconds(0, [0] * 60), []),
        (seconds(0, [200] + [0] * 60), []),  # too small
        (seconds(0, [2000] + [0] * 60), [7.0]),  # once
        (seconds(0, [2000] + [200] * 60), [7.0]),  # few are left
        (seconds(0, [2000] + [300] * 60), []),  # many are
        (seconds(0, [2000] + [0] * 4 + [1000] + [0] * 60), [12.0]),  # not between two waves
        (seconds(0, [2000] + [0] * 20 + [400] + [0] * 20), [7.0, 28.0]),  # after each
    ],
)
def test_once_after_each_burst(course: list[tuple[float, int]], expected: list[float]) -> None:
    assert trims(course) == expected


def test_it_can_be_done_without_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    give_back()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    give_back()
