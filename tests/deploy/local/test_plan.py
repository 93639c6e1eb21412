"""Fleet files: private, and forgotten when their process is gone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import psutil
import pytest

from common.settings import validated
from deploy.fleet.description import FleetDescription, ModelDescription, ReplicaBounds
from deploy.local.gateway_process import gateway_url
from deploy.local.plan import RunningFleet, ServePlan, fleets_dir, running_fleets, write_private
from gateway.config import GatewaySettings


def fleet(pid: int, started_s: float) -> RunningFleet:
    return RunningFleet(
        model="m", url="http://x", ray_address="r", token_file="t", log_dir="l", pid=pid, started_s=started_s
    )


def test_only_fleets_whose_process_lives_are_found(tmp_path: Path) -> None:
    fleets_dir(tmp_path).mkdir()
    me = psutil.Process()
    mine = fleet(me.pid, me.create_time())
    for name, content in (
        ("mine", mine),
        ("its pid was used again", fleet(me.pid, me.create_time() - 100)),
        ("gone", fleet(2**22 + 1, 0.0)),
    ):
        write_private(fleets_dir(tmp_path) / f"{name}.json", msgspec.json.encode(content))
    assert running_fleets(tmp_path) == [mine]
    assert [path.name for path in fleets_dir(tmp_path).iterdir()] == ["mine.json"]


def test_a_private_file_is_whole_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_private(path, b"first")
    write_private(path, b"2nd")
    assert path.read_bytes() == b"2nd"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:81"),
        ("0.0.0.0", "http://127.0.0.1:81"),
        ("::", "http://[::1]:81"),
        ("example.org", "http://example.org:81"),
    ],
)
def test_the_printed_address_can_be_reached(host: str, url: str) -> None:
    chat = ModelDescription(name="m", model="p", replicas=ReplicaBounds(min=1, max=1))
    plain = FleetDescription(models=(chat,), gateway={"host": host, "port": 81})
    assert gateway_url(validated(GatewaySettings, plain.gateway)) == url
    assert not plan_of(plain).needs_key
    with_tls = msgspec.structs.replace(
        plain, gateway={**plain.gateway, "ssl_certfile": "c", "ssl_keyfile": "c", "api_key": "k"}
    )
    assert gateway_url(validated(GatewaySettings, with_tls.gateway)) == url.replace("http:", "https:")
    assert plan_of(with_tls).needs_key


def plan_of(fleet: FleetDescription) -> ServePlan:
    return ServePlan(fleet=fleet, url="", shutdown_grace_s=1, worker_command=[], run_dir="", log_dir="", fleet_file="")
