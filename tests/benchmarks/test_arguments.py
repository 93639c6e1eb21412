"""Benchmarks end what they started, however they are ended themselves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import assert_all_end, wait_until

_BENCHMARK = """
import os, sys, time
from benchmarks.arguments import run
from benchmarks.prediction import _process
sys.path.insert(0, sys.argv[1])
os.environ["PYTHONPATH"] = sys.argv[1]
def main():
    with _process("server"):
        time.sleep(600)
run(main)
"""
_SERVER = "import os, time; print(os.getpid(), file=open({!r}, 'w'), flush=True); time.sleep(600)"


def in_background() -> None:
    """As shells start what an & stands behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_an_ended_benchmark_leaves_no_server(tmp_path: Path, number: signal.Signals, code: int) -> None:
    file = tmp_path / "pid"
    (tmp_path / "server.py").write_text(_SERVER.format(str(file)))
    command = [sys.executable, "-c", _BENCHMARK, str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=in_background) as benchmark:
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"), 60, "the server is up")
        benchmark.send_signal(number)
        _, said = benchmark.communicate(timeout=60)
    assert (benchmark.returncode, said) == (code, b"")
    assert_all_end([int(file.read_text())], 10)
