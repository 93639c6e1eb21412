"""Routers as child processes: ours with any policy, peers from virtual environments of their own, any other command."""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from common.errors import UserError

ROOT = Path(__file__).parents[1]
PEERS = {"sglang-router": "sglang-router==0.3.2", "smg": "smg==1.13.0"}
_START_TIMEOUT_S = 60.0
_COMMON = "--worker-urls {urls} --host 127.0.0.1 --port {port}"
# The peers' log level is set because at their default they write a line per request.
_PEER_FLAGS = f"{_COMMON} --policy cache_aware --log-level warn --prometheus-port {{metrics_port}}"


@dataclass(frozen=True)
class Router:
    """A name and its command; {urls}, {port} and {metrics_port} are filled in."""

    name: str
    command: str


def named(text: str) -> Router:
    """What --routers takes: canopy, canopy:POLICY, a peer's name, or NAME=COMMAND. Raises UserError."""
    name, given, command = text.partition("=")
    if given:
        return Router(name, command)
    base, _, policy = name.partition(":")
    if base == "canopy":
        flags = f"{_COMMON} --policy {policy or 'cache_aware'} --log-level warning"
        return Router(name, f"{shlex.quote(sys.executable)} -m gateway {flags}")
    if name == "sglang-router":
        return Router(name, f"{shlex.quote(str(python_of(name)))} -m sglang_router.launch_router {_PEER_FLAGS}")
    if name == "smg":
        return Router(name, f"{shlex.quote(str(python_of(name)))} -m smg.launch_router {_PEER_FLAGS}")
    raise UserError(f"--routers {text!r}: write canopy, canopy:POLICY, {', '.join(PEERS)}, or NAME=COMMAND.")


def python_of(peer: str) -> Path:
    """The interpreter that has a peer."""
    return ROOT / ".cache" / "bench" / peer / "bin" / "python"


def install(peer: str) -> None:
    """Make a peer's virtual environment, once."""
    if not python_of(peer).exists():
        venv.create(python_of(peer).parents[1], with_pip=True)
    command = [python_of(peer), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEERS[peer]]
    subprocess.run(command, check=True)


@contextlib.contextmanager
def running(router: Router, urls: Sequence[str]) -> Iterator[tuple[psutil.Process, int]]:
    """The router in front of the workers, ready: its process and its port. Raises UserError."""
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        port, metrics_port = first.getsockname()[1], second.getsockname()[1]
    words = router.command.format(urls=" ".join(urls), port=port, metrics_port=metrics_port)
    try:
        process = subprocess.Popen(shlex.split(words), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except FileNotFoundError as error:
        hint = f"; `make bench-router` installs {router.name}" if router.name in PEERS else ""
        raise UserError(f"The command of {router.name} cannot be run: {error.filename} is not there{hint}.") from None
    try:
        _wait_ready(f"http://127.0.0.1:{port}", router, process)
        yield psutil.Process(process.pid), port
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate; kill if that does not help."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cpu_s(process: psutil.Process) -> float:
    """User and system time of a process and its children."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


def rss_mib(process: psutil.Process) -> float:
    """Resident memory of a process and its children."""
    return float(sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))) / 2**20


def _wait_ready(address: str, router: Router, process: subprocess.Popen[bytes]) -> None:
    """Poll until the router says that it has workers, then give it a second to settle."""
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        for path in ("/readiness", "/health"):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(address + path, timeout=1, trust_env=False).status_code == 200:
                    time.sleep(1.0)
                    return
        time.sleep(0.1)
    raise UserError(f"{router.name} did not become ready; its command: {router.command}")
