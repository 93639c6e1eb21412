"""Process trees that end as a whole, whoever dies first: the launcher, its guards and the replicas are built on this.

A process here is *subreaper* of its descendants: an orphan of any depth becomes its child instead of init's, so the
tree can be ended by pid, never by name. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from common.errors import UserError
from common.process import die_with_parent
from deploy.handover import Offer

_PR_SET_CHILD_SUBREAPER = 36
_KILL_DEADLINE_S = 10.0
_POLL_S = 0.02
_KILLED = 128 + signal.SIGKILL


def become_subreaper() -> None:
    """From now on orphaned descendants become children of this process. Raises UserError off Linux."""
    if not sys.platform.startswith("linux"):
        raise UserError("A fleet needs Linux; run `canopy worker` and `canopy gateway` by hand on other systems.")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants() -> list[psutil.Process]:
    """Every process below this one, zombies left out."""
    return [p for p in psutil.Process().children(recursive=True) if is_alive(p)]


def end_descendants(grace_s: float) -> list[int]:
    """SIGTERM to everything below this process, SIGKILL after `grace_s`. Returns the pids that outlived even that.

    It collects the exit codes of all children, so call it only when nothing else still waits for one.
    """
    if grace_s > 0:
        _signal_all(descendants(), signal.SIGTERM)
        _wait_until_none(grace_s)
    deadline = time.monotonic() + _KILL_DEADLINE_S
    while (left := descendants()) and time.monotonic() < deadline:  # a fork can outrun one round of kills
        _signal_all(left, signal.SIGKILL)
        time.sleep(_POLL_S)
    _reap_orphans()
    return [p.pid for p in left]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a supervised command ended: its exit code (128 + n for signal n), and whether we had passed a stop on."""

    code: int
    was_stopped: bool


def supervise(
    command: Sequence[str],
    *,
    lifeline: int | None = None,
    is_guard: bool = False,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
    offer: Offer | None = None,
) -> Outcome:
    """Run `command` as the head of a tree; return once the whole tree has ended.

    The tree is killed when the command ends by itself, and when `lifeline`, the read end of a pipe that our parent
    holds, reaches its end; with an `offer` it may then go on until it has a successor. The command gets the same kind
    of lifeline as its stdin. SIGINT, SIGTERM and SIGHUP are passed on to it as SIGTERM; the second one kills the tree
    at once. Call it from the main thread: the kernel kills the command when the thread that started it ends, except a
    guard, which must outlive us to clear up.
    """
    become_subreaper()
    with subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        cwd=cwd,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=None if is_guard else partial(die_with_parent, os.getpid()),
    ) as child:
        stops = _pass_on_stop_signals(child)
        try:
            code = _wait_for_end(child, lifeline, offer)
        finally:
            end_descendants(grace_s=0)
    return Outcome(code, was_stopped=bool(stops))


def _wait_for_end(child: subprocess.Popen[bytes], lifeline: int | None, offer: Offer | None) -> int:
    """The code of a child that ended, or that of a kill when our parent has ended."""
    pidfd = os.pidfd_open(child.pid)
    with selectors.DefaultSelector() as selector:
        selector.register(pidfd, selectors.EVENT_READ)
        if lifeline is not None:
            selector.register(lifeline, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if pidfd in ready:
                return _code_of(child)
            if lifeline in ready and not os.read(lifeline, 4096):
                return _wait_for_successor(child, pidfd, offer) if offer else _KILLED


def _wait_for_successor(child: subprocess.Popen[bytes], pidfd: int, offer: Offer) -> int:
    """The same, when our parent has ended: the child goes on for a while, and finishes when a successor listens."""
    while True:
        ready, _, _ = select.select([pidfd, offer.fileno()], [], [], offer.patience_s)
        if pidfd in ready:
            return _code_of(child)
        if not ready:
            return _KILLED
        if offer.attend():
            child.send_signal(signal.SIGTERM)
            return _code_of(child)


def _code_of(child: subprocess.Popen[bytes]) -> int:
    code = child.wait()
    return code if code >= 0 else 128 - code


def _pass_on_stop_signals(child: subprocess.Popen[bytes]) -> list[int]:
    """Returns the list into which signals are written as they come."""
    seen: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        seen.append(number)
        child.send_signal(signal.SIGTERM if len(seen) == 1 else signal.SIGKILL)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    return seen


def _wait_until_none(timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while descendants() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _reap_orphans() -> None:
    """Collect every ended child, those handed to us as subreaper among them."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _signal_all(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
