"""The fleet that a batch starts for itself, by `canopy serve`, and ends with itself."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from common.errors import UserError
from common.process import free_port
from deploy.guard import guarded

_POLL_S = 0.5
_END_S = 60.0


@contextlib.contextmanager
def own_fleet(arguments: str | None) -> Iterator[str | None]:
    """Yields its URL once it serves; None without `arguments`. Raises UserError if it does not come up."""
    if arguments is None:
        yield None
        return
    port = free_port()
    # the guard ends the fleet when we are killed; Ctrl-C reaches it through us, once
    guard = guarded(_command(arguments, port), remove=[])
    with subprocess.Popen(guard, stdout=sys.stderr, stdin=subprocess.PIPE, start_new_session=True) as fleet:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(fleet, url)
            yield url
        finally:
            fleet.send_signal(signal.SIGTERM)
            try:
                fleet.wait(_END_S)
            except subprocess.TimeoutExpired:
                fleet.kill()


def _command(arguments: str, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "deploy.cli", "serve", *_split(arguments)),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]


def _split(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise UserError(f"--serve: {error}; give the arguments of canopy serve in one string.") from None


def _wait_until_ready(fleet: subprocess.Popen[bytes], url: str) -> None:
    while True:
        if fleet.poll() is not None:
            raise UserError("--serve: the fleet did not start; its reason stands above.")
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{url}/readiness", timeout=5):
            return
        time.sleep(_POLL_S)
