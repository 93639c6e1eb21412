"""A stuck step ends the process; waiting for work does not."""

from __future__ import annotations

import subprocess
import sys


def run(body: str) -> subprocess.CompletedProcess[str]:
    code = f"import time\nfrom worker.launch.watchdog import Watchdog\nwatchdog = Watchdog(0.3)\n{body}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)


def test_a_stuck_step_ends_the_process_and_shows_where() -> None:
    done = run("def stuck_step():\n    time.sleep(20)\nwatchdog.alive()\nstuck_step()")
    assert done.returncode == 1
    assert "Timeout" in done.stderr and "stuck_step" in done.stderr


def test_steps_that_go_on_and_rests_of_any_length_do_not() -> None:
    done = run("for _ in range(20):\n    watchdog.alive()\n    time.sleep(0.05)\nwatchdog.rest()\ntime.sleep(0.8)")
    assert (done.returncode, done.stderr) == (0, "")
