"""Ports and the end of parents, with real sockets and processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from common.errors import UserError
from common.process import bind_port, free_port, url_of
from tests.helpers.processes import assert_all_end, is_running

CHILD = """
import os, sys, time
from common.process import die_with_parent
die_with_parent(int(sys.argv[1]))
print("up", flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}, str(os.getpid())], stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline().strip(), flush=True)
time.sleep(60)
"""


def test_a_free_port_is_found_and_a_taken_one_refused_in_one_sentence() -> None:
    with bind_port("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert port > 0
        with pytest.raises(UserError, match=rf"^Cannot listen on 127\.0\.0\.1:{port}: address already in use; .*\.$"):
            bind_port("127.0.0.1", port)
    bind_port("127.0.0.1", port).close()


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(UserError, match=r"^Cannot listen on 203\.0\.113\.1:0: .*\.$"):
        bind_port("203.0.113.1", 0)
    with pytest.raises(UserError, match=r"^--host no such host .*\.$"):
        bind_port("no such host", 0)


def test_urls() -> None:
    with bind_port("127.0.0.1", 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
    with bind_port("0.0.0.0", 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_a_child_dies_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, said = parent.stdout.readline().split()
        assert said == "up" and is_running(int(pid))
        parent.kill()
    assert_all_end([int(pid)], 5)


def test_a_child_whose_parent_is_already_gone_ends_at_once() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    assert not psutil.pid_exists(dead.pid)
    done = subprocess.run([sys.executable, "-c", CHILD, str(dead.pid)], capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_port_for_later_is_none_of_those_that_outgoing_connections_take() -> None:
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = free_port()
    assert 1024 < port < first_outgoing
    bind_port("127.0.0.1", port).close()
    with pytest.raises(UserError, match="is not an address of this machine"):
        free_port("no such host")
