"""The parent of several gateway processes: starts them, starts dead ones anew, passes signals on, ends when all have.

Each process has a listening socket of its own on the same port (SO_REUSEPORT), so that the kernel spreads connections
evenly. The parent holds them all: connections that wait for a dead process are taken up by the one after it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from common.process import LISTEN_BACKLOG, bind_port, die_with_parent, set_title
from gateway.processes.siblings import Member

_LOG = logging.getLogger("gateway.processes")
_STOP = (signal.SIGTERM, signal.SIGINT)
_WATCHED = frozenset({*_STOP, signal.SIGCHLD})
_SHORT_LIFE_S = 5.0
_MAX_BACKOFF_S = 30.0
_USER_FAULT = 2

# Serves on a socket until told to stop; returns the exit code.
Work = Callable[[socket.socket, Member], int]


class _Child:
    """One of the processes, through all its lives."""

    def __init__(self, member: Member, sock: socket.socket) -> None:
        self.member = member
        self.sock = sock
        self.pid: int | None = None
        self.started_s = 0.0
        self.short_lives = 0
        self.start_at_s = 0.0


class Parent:
    """Owner of the processes. Call `run` in a process that has neither threads nor an event loop."""

    def __init__(self, sockets: list[socket.socket], folder: Path, work: Work) -> None:
        count = len(sockets)
        self._children = [_Child(Member(folder, index, count), sock) for index, sock in enumerate(sockets)]
        self._work = work
        self._stopping = False
        self._exit_code = 0

    def run(self) -> int:
        """Returns the exit code when all have ended: 0, or that of the first that could not go on."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        try:
            while True:
                self._start_due(mask)
                if not any(child.pid for child in self._children) and self._stopping:
                    return self._exit_code
                self._wait()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _start_due(self, mask: set[int | signal.Signals]) -> None:
        now_s = time.monotonic()
        for child in self._children:
            if child.pid is None and not self._stopping and child.start_at_s <= now_s:
                child.started_s = now_s
                child.pid = self._fork(child, mask)

    def _wait(self) -> None:
        """For a signal, or for the time to start one again."""
        due_s = [child.start_at_s for child in self._children if child.pid is None]
        timeout_s = max(min(due_s, default=float("inf")) - time.monotonic(), 0.0)
        info = signal.sigtimedwait(_WATCHED, min(timeout_s, 3600.0))
        if info is not None and info.si_signo in _STOP:
            self._stop()
        self._reap()

    def _stop(self) -> None:
        self._stopping = True
        for child in self._children:
            if child.pid is not None:
                os.kill(child.pid, signal.SIGTERM)

    def _reap(self) -> None:
        for child in self._children:
            if child.pid is None:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: _Child, code: int) -> None:
        pid, child.pid = child.pid, None
        if self._stopping:
            self._exit_code = self._exit_code or max(code, 0)
            return
        if code == _USER_FAULT:
            self._exit_code = code
            self._stop()
            return
        now_s = time.monotonic()
        child.short_lives = child.short_lives + 1 if now_s - child.started_s < _SHORT_LIFE_S else 0
        backoff_s = min(2.0 ** (child.short_lives - 1), _MAX_BACKOFF_S) if child.short_lives else 0.0
        child.start_at_s = now_s + backoff_s
        _LOG.error(
            "gateway process %d (pid %d) ended with code %d; starting it again in %g s",
            child.member.index,
            pid,
            code,
            backoff_s,
        )

    def _fork(self, child: _Child, mask: set[int | signal.Signals]) -> int:
        parent_pid = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setpgid(0, 0)  # a terminal's Ctrl-C goes to the parent alone, which passes it on
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            die_with_parent(parent_pid)
            set_title(f"canopy-gateway-{child.member.index}")
            for other in self._children:
                if other is not child:
                    other.sock.close()
            code = self._work(child.sock, child.member)
        except BaseException:
            _LOG.exception("gateway process %d failed", child.member.index)
        finally:
            logging.shutdown()
            os._exit(code)


def run_processes(host: str, port: int, count: int, work: Work) -> int:
    """`work` in `count` processes on one port, until told to stop. Raises UserError if the port cannot be had."""
    with shared_port(host, port, count) as sockets, private_folder() as folder:
        return Parent(sockets, folder, work).run()


@contextlib.contextmanager
def shared_port(host: str, port: int, count: int) -> Iterator[list[socket.socket]]:
    """`count` listening sockets on one port. Raises UserError if it cannot be had, also if it is shared already."""
    with bind_port(host, port) as alone:
        family, address = alone.family, alone.getsockname()
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
            sock.listen(LISTEN_BACKLOG)
            sock.setblocking(False)
            sockets.append(sock)
        yield sockets


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A directory that only we may enter, for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="canopy-gateway-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
