"""Waiting for processes and conditions in tests, always with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import psutil


def is_running(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Poll until `condition()` is true. Fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


async def until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """The same for coroutines."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


def assert_all_end(pids: Iterable[int], timeout_s: float) -> None:
    """All of these processes end within `timeout_s`."""
    left = set(pids)
    deadline = time.monotonic() + timeout_s
    while left := {pid for pid in left if is_running(pid)}:
        names = {pid: command_of(pid) for pid in left}
        assert time.monotonic() < deadline, f"still running after {timeout_s} s: {names}"
        time.sleep(0.02)


def command_of(pid: int) -> str:
    """Its command line; `ended` if it is no more."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:  # or a zombie
        return "ended"
