"""Real process trees: whoever is killed, nothing of the tree stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.helpers.processes import assert_all_end, wait_until

# A command with a child in a session of its own that ignores SIGTERM, and a grandchild.
TREE = """
import signal, subprocess, sys, time
inner = "import signal,subprocess,sys,time; signal.signal(signal.SIGTERM, signal.SIG_IGN);" \\
    "subprocess.Popen([sys.executable,'-c','import time; time.sleep(600)'], start_new_session=True); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", inner], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


class Guarded:
    """`python -m deploy.guard` around the tree above, with our pipe as its lifeline."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "work"
        self.directory.mkdir()
        options = ["--remove", str(self.directory), "--"]
        self.guard = subprocess.Popen(
            [sys.executable, "-m", "deploy.guard", *options, sys.executable, "-c", TREE],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        me = psutil.Process(self.guard.pid)
        wait_until(lambda: len(me.children(recursive=True)) == 3, 10, "the tree is up")
        self.tree = [p.pid for p in me.children(recursive=True)]
        self.command = me.children()[0].pid


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path)
    yield guarded
    if guarded.guard.poll() is None:
        guarded.guard.kill()
    guarded.guard.wait()
    assert guarded.guard.stdin is not None
    guarded.guard.stdin.close()
    for pid in guarded.tree:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def test_when_the_lifeline_ends_the_whole_tree_is_killed(guarded: Guarded) -> None:
    assert guarded.guard.stdin is not None
    guarded.guard.stdin.close()
    assert_all_end(guarded.tree, 2)
    assert guarded.guard.wait(2) == 128 + signal.SIGKILL
    assert not guarded.directory.exists()


def test_when_the_command_is_killed_its_orphans_are_too(guarded: Guarded) -> None:
    os.kill(guarded.command, signal.SIGKILL)
    assert_all_end(guarded.tree, 2)
    assert guarded.guard.wait(2) == 128 + signal.SIGKILL


def test_sigterm_reaches_the_command_and_its_end_ends_the_tree(guarded: Guarded) -> None:
    guarded.guard.terminate()
    assert_all_end(guarded.tree, 2)
    assert guarded.guard.wait(2) == 128 + signal.SIGTERM


def test_a_killed_guard_takes_its_command_along(guarded: Guarded) -> None:
    """What lies deeper is left to the next subreaper, see the test of WorkerProcess."""
    guarded.guard.kill()
    assert_all_end([guarded.command], 2)


def test_the_exit_code_of_the_command_comes_through() -> None:
    command = [sys.executable, "-c", "raise SystemExit(7)"]
    with subprocess.Popen([sys.executable, "-m", "deploy.guard", "--", *command], stdin=subprocess.PIPE) as guard:
        assert guard.wait(10) == 7


SUPERVISOR = """
import sys
from deploy.processes import supervise
outcome = supervise([sys.executable, "-c", '''
import signal, sys, time
def stop(*_):
    print("told to stop", flush=True)
    if "stubborn" not in sys.argv:
        sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
while True:
    time.sleep(600)
''', *sys.argv[1:]])
assert outcome.was_stopped
sys.exit(outcome.code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_becomes_one_sigterm(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "up\n"
        supervisor.send_signal(number)
        assert supervisor.wait(5) == 0
        assert supervisor.stdout.read() == "told to stop\n"


def test_the_second_stop_signal_kills() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, "stubborn"], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "up\n"
        supervisor.send_signal(signal.SIGINT)
        assert supervisor.stdout.readline() == "told to stop\n"
        supervisor.send_signal(signal.SIGINT)
        assert supervisor.wait(5) == 128 + signal.SIGKILL
