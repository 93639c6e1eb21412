"""The gateway's process: whoever comes while it is away waits for the next one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from common.clock import MonotonicClock
from common.errors import UserError
from common.process import bind_port
from deploy.local.gateway_process import LISTENING, GatewayProcess
from tests.helpers.processes import assert_all_end, wait_until

START_LIMIT_S = 60.0


def gateway_of(tmp_path: Path, *, outlives_us: bool = False, **values: Any) -> GatewayProcess:
    with bind_port("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    settings = {"host": "127.0.0.1", "port": port, "shutdown_settle_s": 0, **values}
    log = tmp_path / "gateway.log"
    return GatewayProcess(settings, tmp_path, log, dict(os.environ), MonotonicClock(), outlives_us=outlives_us)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """Listening."""
    process = gateway_of(tmp_path)
    process.start()
    wait_until(lambda: process.is_listening, START_LIMIT_S, "it listens")
    yield process
    process.stop(10)


def pid_of(gateway: GatewayProcess) -> int:
    """The process below the guard."""
    (guard,) = [p for p in psutil.Process().children() if "deploy.guard" in p.cmdline() and p.pid == gateway.pid]
    return guard.children()[0].pid


def test_a_killed_gateway_refuses_nobody(gateway: GatewayProcess) -> None:
    victim = pid_of(gateway)
    psutil.Process(victim).kill()
    assert_all_end([victim], 5)
    answers: list[int] = []

    def ask() -> None:
        answers.append(httpx.get(f"{gateway.url}/liveness", timeout=START_LIMIT_S, trust_env=False).status_code)

    waiting = threading.Thread(target=ask)
    waiting.start()
    wait_until(lambda: gateway.tend() == "gateway: started again", 10, "it is started again")
    waiting.join()
    assert answers == [200]


def test_a_successor_takes_the_socket_over(gateway: GatewayProcess) -> None:
    new = gateway.successor({**gateway.values, "policy": "round_robin"})
    assert new.can_run_beside(gateway)
    new.start()
    try:
        wait_until(lambda: new.is_listening, START_LIMIT_S, "it listens too")
        gateway.stop(10)
        assert httpx.get(f"{new.url}/liveness", timeout=10, trust_env=False).status_code == 200
    finally:
        new.stop(10)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{new.url}/liveness", timeout=10, trust_env=False)


def test_a_port_that_is_taken_is_a_fault_of_the_user(tmp_path: Path) -> None:
    gateway = gateway_of(tmp_path)
    with bind_port("127.0.0.1", gateway.settings.port), pytest.raises(UserError, match="address already in use"):
        gateway.start()


def test_several_processes_on_one_port_cannot_run_beside_others_there(tmp_path: Path) -> None:
    gateway = gateway_of(tmp_path, gateway_processes=2)
    assert not gateway.successor(gateway.values).can_run_beside(gateway)


def test_a_gateway_whose_owner_was_killed_goes_on_until_its_heir_listens(tmp_path: Path) -> None:
    old = gateway_of(tmp_path, outlives_us=True)
    old.start()
    wait_until(lambda: old.is_listening, START_LIMIT_S, "it listens")
    guard, victim = old.pid, pid_of(old)
    assert guard is not None
    heir = gateway_of(tmp_path, outlives_us=True, port=old.settings.port)
    try:
        cut_off(old)
        heir.inherit()
        heir.start()
        wait_until(lambda: answers(heir) and heir.log.read_text().count(LISTENING) == 2, 30, "it listens")
        assert psutil.pid_exists(victim)
        heir.let_inherited_finish()
        assert_all_end([guard, victim], 30)
        old.stop(0)
        assert answers(heir)
    finally:
        heir.stop(10)


def cut_off(gateway: GatewayProcess) -> None:
    """What the kernel does when the owner is killed."""
    assert gateway._process is not None
    assert gateway._process.stdin is not None
    assert gateway._socket is not None
    gateway._process.stdin.close()
    gateway._socket.close()


def answers(gateway: GatewayProcess) -> bool:
    return httpx.get(f"{gateway.url}/liveness", timeout=START_LIMIT_S, trust_env=False).status_code == 200
