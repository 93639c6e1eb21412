"""Cluster files pass Ray's own checks, offline, and call only what exists."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.clusters.workers import WorkersPlan
from deploy.fleet.description_file import read_fleet
from tests.helpers.command_lines import parsed

ROOT = Path(__file__).parents[3]
CLUSTERS = ROOT / "deploy/clusters"
FILES = ["cluster.yaml", "deploy/clusters/gcp.yaml", "deploy/clusters/local.yaml"]
CLOUDS = FILES[:2]
COMMANDS = ("setup_commands", "head_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
REMOTE = "~/canopy/"
MADE_BEFORE = {"dist", "~/.canopy/secrets"}  # by `make wheel`, and by the owner

# In a process of its own: importing Ray's autoscaler takes a second, and it logs.
_CHECK = """
import json, sys, yaml
from ray.autoscaler._private.util import prepare_config, validate_config
for path in sys.argv[1:]:
    config = prepare_config(yaml.safe_load(open(path)))
    validate_config(config)
    print("prepared", json.dumps(config))
"""


@pytest.fixture(scope="module")
def prepared() -> dict[str, dict[str, Any]]:
    """Each file as Ray would use it."""
    paths = [str(ROOT / file) for file in FILES]
    done = subprocess.run([sys.executable, "-c", _CHECK, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^prepared (.*)$", done.stdout, re.MULTILINE)  # Ray logs to the same place
    return dict(zip(FILES, map(json.loads, found), strict=True))


def read(file: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / file).read_text()))


def commands(file: str) -> list[str]:
    config = read(file)
    return [command for key in COMMANDS for command in config.get(key, [])]


@pytest.mark.parametrize("file", FILES)
def test_ray_accepts_it(prepared: dict[str, dict[str, Any]], file: str) -> None:
    config = prepared[file]
    head = config["head_node_type"]
    workers = {name: kind for name, kind in config["available_node_types"].items() if name != head}
    assert sum(kind["min_workers"] for kind in workers.values()) <= config["max_workers"]


@pytest.mark.parametrize("file", CLOUDS)
def test_clouds_have_a_head_for_the_gateway_and_gpu_workers(prepared: dict[str, dict[str, Any]], file: str) -> None:
    kinds = prepared[file]["available_node_types"]
    assert kinds["head"]["resources"] == {"CPU": 0}
    for name in ("h100", "h200"):
        assert kinds[name]["resources"]["GPU"] == 8
        assert kinds[name]["labels"] == {"accelerator": name}
    configs = {name: kind["node_config"] for name, kind in kinds.items()}
    machines = {config.get("InstanceType") or config["machineType"] for config in configs.values()}
    assert len(machines) == 3


def test_own_machines_are_started_by_the_keeper_and_not_by_ray() -> None:
    config = read("deploy/clusters/local.yaml")
    start, keeper = config["head_start_ray_commands"]
    assert "--autoscaling-config=" not in start
    assert start.startswith(": no --autoscaling-config;"), "`ray up` warns without these words"
    assert keeper == "sudo systemctl enable --quiet --now canopy-workers@$(id -un)"
    plan = WorkersPlan.read(config, head="10.0.0.10", key="key")
    assert plan.addresses == ("10.0.0.11", "10.0.0.12")


@pytest.mark.parametrize("file", FILES)
def test_what_is_copied_is_there(file: str) -> None:
    for remote, local in read(file)["file_mounts"].items():
        assert remote.startswith(REMOTE)
        assert local in MADE_BEFORE or (ROOT / local).exists(), local


@pytest.mark.parametrize("file", FILES)
def test_commands_call_scripts_that_were_copied(file: str) -> None:
    mounts = read(file)["file_mounts"]
    found = [path for command in commands(file) for path in re.findall(r"~/canopy/\S+", command)]
    assert {"packages.sh", "configure.sh", "start.sh"} <= {Path(path).name for path in found}
    for path in found:
        mount = next(remote for remote in mounts if path.startswith(f"{remote}/"))
        assert (ROOT / mounts[mount] / path.removeprefix(f"{mount}/")).is_file()


@pytest.mark.parametrize("file", FILES)
def test_ray_is_started_as_a_unit_with_the_dashboard_on_loopback(file: str) -> None:
    words = shlex.split(read(file)["head_start_ray_commands"][0].rpartition("; ")[2])
    assert words[:5] == ["bash", "~/canopy/clusters/start.sh", "head", "ray", "start"]
    assert {"--head", "--dashboard-host=127.0.0.1", "--port=6379"} <= set(words)
    assert file not in CLOUDS or "--autoscaling-config=$HOME/ray_bootstrap_config.yaml" in words
    (worker,) = read(file)["worker_start_ray_commands"]
    assert worker.endswith("start.sh worker ray start --address=$RAY_HEAD_IP:6379")


@pytest.mark.parametrize("file", FILES)
def test_no_command_stops_rays_by_name_or_carries_a_secret(file: str) -> None:
    text = (ROOT / file).read_text()
    assert not [command for command in commands(file) if "ray stop" in command or "pkill" in command]
    assert not re.search(r"(token|key|password|secret)\s*[:=]\s*['\"]?[A-Za-z0-9+/]{16,}", text, re.IGNORECASE)


def test_ray_knows_every_flag_that_is_passed() -> None:
    script = (CLUSTERS / "start.sh").read_text()
    texts = [script, *(command for file in FILES for command in commands(file))]
    used = {flag for text in texts for flag in re.findall(r"(--[a-z-]+)=", text)} | {"--head"}
    ray = Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages/ray/scripts/scripts.py"
    known = set(re.findall(r'"(--[a-z-]+)"', ray.read_text()))
    assert used and used <= known, used - known


def test_the_units_apply_the_fleet_with_flags_of_ours() -> None:
    unit = (CLUSTERS / "units/canopy-fleet@.service").read_text()
    lines = re.findall(r"^Exec(?:Start|Reload)=(.*)$", unit, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        program, *words = line.split()
        assert program == "/opt/canopy/venv/bin/canopy"
        assert parsed(words).model_dump()["cluster"] == "%E/canopy/fleet.yaml"


def test_the_fleet_file_is_valid() -> None:
    fleet = read_fleet(str(ROOT / "deploy/fleet.yaml"))
    assert fleet.gateway["port"] == 8000  # the port that cluster.yaml opens


def test_ports_closed_by_the_firewall_are_those_that_ray_takes() -> None:
    script = (CLUSTERS / "start.sh").read_text()
    match = re.search(r"tcp dport \{ (.*) \} drop", script)
    assert match
    closed: set[int] = set()
    for part in match[1].split(", "):
        low, _, high = part.partition("-")
        closed |= set(range(int(low), int(high or low) + 1))
    taken = {int(port) for port in re.findall(r"--[a-z-]*port=(\d+)", script)} | {6379, 8265, 10001}
    assert taken <= closed
    assert 8000 not in closed and 22 not in closed


@pytest.mark.parametrize("script", sorted(path.name for path in CLUSTERS.glob("*.sh")))
def test_scripts_pass_shellcheck(script: str) -> None:
    done = subprocess.run(
        [Path(sys.prefix) / "bin/shellcheck", "--shell=bash", CLUSTERS / script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
