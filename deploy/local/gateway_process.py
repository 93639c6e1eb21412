"""The local fleet's gateway as a child process: started, watched, restarted when it dies, drained at the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import yaml

from common.clock import Clock
from common.logs import headline
from deploy.environment import without_settings
from deploy.fleet.state import Policy
from deploy.fleet.worker_process import tail
from deploy.guard import guarded
from deploy.local.plan import write_private
from gateway.config import GatewaySettings

_PROBE_TIMEOUT_S = 2.0


def gateway_url(settings: GatewaySettings) -> str:
    """The gateway's address as seen from its own machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    scheme = "https" if settings.tls else "http"
    return f"{scheme}://[{host}]:{settings.port}" if ":" in host else f"{scheme}://{host}:{settings.port}"


class GatewayProcess:
    """Owner of the gateway's process. Its settings travel in a private file, so no secret shows in `ps`."""

    def __init__(
        self, values: dict[str, Any], run_dir: Path, log: Path, env: dict[str, str], url: str, clock: Clock
    ) -> None:
        self.values = values
        self._run_dir = run_dir
        self.log = log
        self._env = without_settings(env)
        self.url = url
        self._clock = clock
        self._policy = Policy()
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._short_lives = 0
        self._restart_at_s: float | None = None

    def start(self) -> None:
        """Start it. Raises OSError if that fails."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        work_dir = Path(tempfile.mkdtemp(prefix="canopy-gateway-", dir=self._run_dir))
        config = work_dir / "gateway.yaml"
        write_private(config, yaml.safe_dump(self.values).encode())
        command = [sys.executable, "-P", "-m", "gateway", "--config", str(config)]
        with self.log.open("ab" if self._process else "wb") as log:
            log.write(f"{headline('gateway starts', self.values.get('log_format', 'text'))}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                guarded(command, remove=[work_dir]),
                stdin=subprocess.PIPE,  # the guard's lifeline
                stdout=log,
                stderr=log,
                cwd=work_dir,
                env=self._env,
                start_new_session=True,
            )
        self._started_s = self._clock.now_s()
        self._restart_at_s = None

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
        is_stable = now_s - self._started_s >= self._policy.stable_s
        self._short_lives = 0 if is_stable else self._short_lives + 1
        self._restart_at_s = now_s + self._policy.backoff_s(self._short_lives)
        return f"gateway: ended with code {code} ({self.last_words()}); see {self.log}"

    def stop(self, grace_s: float) -> None:
        """Let running requests finish, at most `grace_s`."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
