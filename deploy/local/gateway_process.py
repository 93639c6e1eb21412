"""The local fleet's gateway as a child process: started, watched, restarted when it dies, drained at the end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import yaml

from common.clock import Clock
from common.fleet import KEPT_FLEET_VARIABLE
from common.logs import headline
from common.process import LISTEN_FD_VARIABLE, bind_port
from common.settings import validated
from deploy.environment import without_settings
from deploy.fleet.state import Policy
from deploy.fleet.worker_process import tail
from deploy.guard import guarded
from deploy.handover import Inheritance, inherit
from deploy.local.plan import write_private
from gateway.config import GatewaySettings

_PROBE_TIMEOUT_S = 2.0
_KEPT_FLEET = "kept-fleet"  # in the run directory, which is that of one fleet
_OFFER = "offer.sock"  # there too
LISTENING = "Gateway listening on"  # gateway/server.py writes it


def gateway_url(settings: GatewaySettings) -> str:
    """The gateway's address as seen from its own machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    scheme = "https" if settings.tls else "http"
    return f"{scheme}://[{host}]:{settings.port}" if ":" in host else f"{scheme}://{host}:{settings.port}"


class GatewayProcess:
    """Owner of the gateway's process and, where that is one process, of the socket it listens on: connections that come
    while it is away wait for the next one. Its settings travel in a private file, so no secret shows in `ps`.

    What it knows of the fleet is kept in `run_dir` for its next life. With `outlives_us` it goes on when this process
    is killed, until who comes after us has inherited it, or nobody has for a while.
    """

    def __init__(
        self,
        values: dict[str, Any],
        run_dir: Path,
        log: Path,
        env: dict[str, str],
        clock: Clock,
        *,
        outlives_us: bool = False,
    ) -> None:
        self.values = values
        self.settings = validated(GatewaySettings, values)
        self.url = gateway_url(self.settings)
        self.log = log
        self._run_dir = run_dir
        self._env = without_settings(env)
        self._clock = clock
        self._policy = Policy()
        self._offer = run_dir / _OFFER if outlives_us else None
        self._inheritance: Inheritance | None = None
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._keeps_log = False  # a new fleet begins a new one
        self._started_s = 0.0
        self._short_lives = 0
        self._restart_at_s: float | None = None

    def successor(self, values: dict[str, Any]) -> GatewayProcess:
        """The same with other settings, not started. At the same address it listens on the same socket."""
        outlives_us = self._offer is not None
        new = GatewayProcess(values, self._run_dir, self.log, self._env, self._clock, outlives_us=outlives_us)
        new._keeps_log = True
        if new._listens_on == self._listens_on and self._socket is not None:
            new._socket = self._socket.dup()
        return new

    def inherit(self) -> None:
        """Take over from a gateway whose owner was killed, if there is one: listen where it listens, and let it finish
        as soon as ours does. Before the first start."""
        assert self._offer is not None
        self._inheritance = inherit(self._offer)
        if self._inheritance is not None:
            self._socket, self._keeps_log = self._inheritance.listening, True

    def let_inherited_finish(self) -> None:
        """Ours listens."""
        if self._inheritance is not None:
            self._inheritance.listens()
            self._inheritance = None

    def can_run_beside(self, other: GatewayProcess) -> bool:
        """Whether both can listen at once."""
        return self._socket is not None or self._listens_on[:2] != other._listens_on[:2]

    def start(self) -> None:
        """Start it. Raises OSError if that fails, UserError if the port cannot be had."""
        if self._socket is None and self.settings.gateway_processes == 1:
            self._socket = bind_port(self.settings.host, self.settings.port)
        env = self._env | {KEPT_FLEET_VARIABLE: str(self._run_dir / _KEPT_FLEET)}
        fds: tuple[int, ...] = ()
        if self._socket is not None:
            fds = (self._socket.fileno(),)
            env = env | {LISTEN_FD_VARIABLE: str(self._socket.fileno())}
        work_dir = Path(tempfile.mkdtemp(prefix="canopy-gateway-", dir=self._run_dir))
        config = work_dir / "gateway.yaml"
        write_private(config, yaml.safe_dump(self.values).encode())
        command = [sys.executable, "-P", "-m", "gateway", "--config", str(config)]
        with self._open_log() as log:
            self._process = subprocess.Popen(
                guarded(command, remove=[work_dir], offer=self._offer),
                stdin=subprocess.PIPE,  # the guard's lifeline
                stdout=log,
                stderr=log,
                cwd=work_dir,
                env=env,
                pass_fds=fds,
                start_new_session=True,
            )
        self._started_s = self._clock.now_s()
        self._restart_at_s = None

    @property
    def _listens_on(self) -> tuple[str, int, bool]:
        return self.settings.host, self.settings.port, self.settings.gateway_processes == 1

    def _open_log(self) -> BinaryIO:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        log = self.log.open("ab")
        if not self._keeps_log:
            log.truncate(0)
        self._keeps_log = True
        log.write(f"{headline('gateway starts', self.values.get('log_format', 'text'))}\n".encode())
        log.flush()
        return log

    @property
    def is_listening(self) -> bool:
        """Whether it has come so far."""
        return any(LISTENING in line for line in tail(self.log))

    @property
    def pid(self) -> int | None:
        """Of the guard above it; None before its start."""
        return self._process.pid if self._process else None

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process else None

    def last_words(self) -> str:
        """The last line of its log."""
        return (tail(self.log) or ["(nothing)"])[-1]

    def ready_workers(self) -> int:
        """How many replicas it can route to; 0 while it is not up."""
        try:
            # Our own process on this machine: whom its certificate is for does not matter.
            answer = httpx.get(f"{self.url}/readiness", timeout=_PROBE_TIMEOUT_S, trust_env=False, verify=False)
            return int(answer.json()["ready_workers"]) if answer.status_code == 200 else 0
        except httpx.HTTPError:
            return 0

    def tend(self) -> str | None:
        """Restart it if it has died, with the replicas' back-off. Returns a sentence when something happened."""
        now_s = self._clock.now_s()
        if self._restart_at_s is not None:
            if now_s >= self._restart_at_s:
                self.start()
                return "gateway: started again"
            return None
        if (code := self.exit_code()) is None:
            return None
        self._let_go()
        is_stable = now_s - self._started_s >= self._policy.stable_s
        self._short_lives = 0 if is_stable else self._short_lives + 1
        self._restart_at_s = now_s + self._policy.backoff_s(self._short_lives)
        return f"gateway: ended with code {code} ({self.last_words()}); see {self.log}"

    def stop(self, grace_s: float) -> None:
        """Let running requests finish, at most `grace_s`."""
        if self._socket is not None:
            self._socket.close()  # who comes now is for somebody else
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._let_go()

    def _let_go(self) -> None:
        """Of the lifeline of a process that has ended, or is ending."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
