"""The fleet that a batch starts for itself ends with it, even when it is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.helpers.processes import assert_all_end, wait_until

_BATCH = """
import sys, time
from deploy.batch import fleet
stand_in = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); time.sleep(600)"
fleet._command = lambda arguments, port: [sys.executable, "-c", stand_in, arguments]
fleet._wait_until_ready = lambda process, url: None
with fleet.own_fleet(sys.argv[1]):
    time.sleep(600)
"""


def test_a_killed_batch_leaves_no_fleet(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", _BATCH, str(file)]) as batch:
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"), 60, "the fleet is up")
        batch.kill()
    assert_all_end([int(file.read_text())], 10)
