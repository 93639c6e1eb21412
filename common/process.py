"""What a server process needs from the operating system: its port, its name, and an end when its parent ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from setproctitle import setproctitle

from common.errors import UserError

LISTEN_BACKLOG = 2048
LISTEN_FD_VARIABLE = "LISTEN_FD"  # number of an inherited listening socket
_PR_SET_PDEATHSIG = 1
_PARENT_POLL_S = 0.5
_ANY_PORTS = range(20_000, 30_000)  # below those that Linux gives to outgoing connections
_ATTEMPTS = 20


def bind_port(host: str, port: int) -> socket.socket:
    """A listening TCP socket on `host`:`port` (0 = any free port). Raises UserError if it cannot be had.

    It listens at once: two sockets may share a bound port with SO_REUSEADDR, but not a listening one.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )[0]
    except OSError as error:
        raise UserError(f"--host {host} is not an address of this machine: {error.strerror}.") from None
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(LISTEN_BACKLOG)
    except OSError as error:
        sock.close()
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"Cannot listen on {host}:{port}: {reason}; choose another --port or --host.") from None
    sock.setblocking(False)
    return sock


def free_port(host: str = "127.0.0.1") -> int:
    """A port that can be had now, and that no outgoing connection takes before somebody listens on it. Raises
    UserError."""
    *some, last = random.sample(_ANY_PORTS, _ATTEMPTS)
    for port in some:
        with contextlib.suppress(UserError), bind_port(host, port):
            return port
    with bind_port(host, last):
        return last


def listening_fds(env: Mapping[str, str]) -> tuple[int, ...]:
    """File numbers of sockets that our parent listens on for us: one or none."""
    return (int(env[LISTEN_FD_VARIABLE]),) if LISTEN_FD_VARIABLE in env else ()


def listening_socket(host: str, port: int, env: Mapping[str, str]) -> socket.socket:
    """The socket that our parent listens on for us, so that clients need not notice when we start anew; without such
    one, that of `bind_port`. Raises UserError."""
    for number in listening_fds(env):
        return socket.socket(fileno=number)
    return bind_port(host, port)


def raise_file_limit() -> None:
    """Let this process open as many files as it may: each connection is one, and shells often allow 1024 at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def url_of(sock: socket.socket, *, tls: bool = False) -> str:
    """The address under which this machine reaches a listening socket; a wildcard address becomes the loopback."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def set_title(title: str) -> None:
    """The name of this process in ps and top."""
    setproctitle(title)


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """While entered, SIGTERM ends in KeyboardInterrupt as Ctrl-C does, also where a shell has put this program into the
    background with SIGINT ignored. In other threads than the main one, which have no say in it, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio ends tasks in order only where it finds this one
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def die_with_parent(parent_pid: int) -> None:
    """End this process as soon as `parent_pid`, which must have started it, is gone. Call it first thing.

    On Linux the kernel does it, with SIGKILL, when the THREAD that started us ends: start children from a thread that
    lives as long as the process. Elsewhere a thread looks twice a second.
    """
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(1)


def _watch_parent(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)
