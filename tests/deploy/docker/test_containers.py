"""Images and compose files: linted, valid, and their command lines are ours. Building needs a Docker daemon."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

from tests.helpers.command_lines import parsed
from tests.helpers.processes import wait_until

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "deploy/docker"
DOCKERFILES = ["Dockerfile.cpu", "Dockerfile.cuda"]
MODEL_DIR = "/models/my-llama"


def compose(name: str) -> dict[str, Any]:
    """A compose file with its one required variable filled in."""
    text = re.sub(r"\$\{CANOPY_MODEL_DIR:\?[^}]*\}", MODEL_DIR, (DOCKER / name).read_text())
    return dict(yaml.safe_load(text))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_dockerfiles_pass_hadolint(name: str) -> None:
    done = subprocess.run([Path(sys.prefix) / "bin/hadolint", DOCKER / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_copy_what_the_context_has_and_run_without_root(name: str) -> None:
    text = (DOCKER / name).read_text()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for source in (word for word in line.split() if not word.startswith("--")):
            assert (ROOT / source).exists(), source
            assert f"!{source.split('/')[0]}" in ignored, f"{source} is not in the build context"
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    assert 'ENTRYPOINT ["tini", "--", "canopy"]' in text


def test_every_package_of_the_wheel_is_in_the_build() -> None:
    packages = re.search(r"^include = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert packages
    wanted = {word.strip(' "*') for word in packages[1].split(",")}
    for name in DOCKERFILES:
        copied = set(re.findall(r"^COPY (\w+) \w+$", (DOCKER / name).read_text(), re.MULTILINE))
        assert copied == wanted


def test_both_images_have_the_same_python() -> None:
    # Ray refuses nodes with another minor version, and a cluster has nodes of both images.
    assert "ARG PYTHON=3.12\n" in (DOCKER / "Dockerfile.cpu").read_text()
    assert "-ubuntu24.04" in (DOCKER / "Dockerfile.cuda").read_text()  # whose python3 is 3.12


@pytest.mark.parametrize("name", ["compose.yaml", "gpu.yaml"])
def test_compose_files_are_valid(name: str) -> None:
    compose_spec.PyCompose.from_yaml(yaml.safe_dump(compose(name), sort_keys=False))
    with pytest.raises(ValueError, match="imag"):
        broken = compose(name)
        broken["services"]["replica-0"]["imag"] = "x"
        compose_spec.PyCompose.from_yaml(yaml.safe_dump(broken, sort_keys=False))


@pytest.mark.parametrize("name", ["compose.yaml", "gpu.yaml"])
def test_our_services_have_valid_commands_room_and_health(name: str) -> None:
    for service in compose(name)["services"].values():
        if not service["image"].startswith("canopy:"):
            continue
        variables = {n: v or f"value of {n}" for n, v in service.get("environment", {}).items()}
        settings = parsed(service["command"], variables).model_dump()
        assert settings["host"] == "0.0.0.0"
        if service["command"][0] == "worker":
            assert service["shm_size"] in ("2gb", "8gb")


def test_the_fleet_fits_together() -> None:
    services = compose("compose.yaml")["services"]
    gateway = parsed(services["gateway"]["command"]).model_dump()
    replicas = {name: s for name, s in services.items() if name.startswith("replica-")}
    ports = {name: parsed(s["command"]).model_dump()["port"] for name, s in replicas.items()}
    assert gateway["worker_urls"] == [f"http://{name}:{port}" for name, port in ports.items()] and len(ports) == 2
    for name, service in services.items():
        path = re.search(r"http://127.0.0.1:(\d+)(/\S+)", service["healthcheck"]["test"][-1])
        assert path, name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), "published to this machine only"
    assert services["gateway"]["healthcheck"]["test"][-1].endswith(f":{gateway['port']}/liveness")
    assert {s["healthcheck"]["test"][-1] for s in replicas.values()} == {"http://127.0.0.1:30000/health"}


def test_prometheus_and_grafana_find_their_files() -> None:
    services = compose("compose.yaml")["services"]
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DOCKER / source).exists(), source
    jobs = yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]
    assert jobs[0]["static_configs"][0]["targets"] == ["gateway:8000"]
    assert jobs[1]["http_sd_configs"][0]["url"] == "http://gateway:8000/prometheus/targets"


def test_follow_fleet_applies_until_it_succeeds_and_again_after_a_change(tmp_path: Path) -> None:
    program, calls, fleet = tmp_path / "canopy", tmp_path / "calls", tmp_path / "fleet.yaml"
    program.write_text(f'#!/bin/bash\necho "$@" >> {calls}\n[ "$(wc -l < {calls})" -ge 2 ]\n')
    (tmp_path / "sleep").write_text("#!/bin/bash\nexec /bin/sleep 0.02\n")
    program.chmod(0o755)
    (tmp_path / "sleep").chmod(0o755)
    fleet.write_text("models: []")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen([DOCKER / "follow-fleet", fleet, "--address=localhost:6379"], env=env) as process:
        try:
            wait_until(lambda: calls.exists() and len(calls.read_text().splitlines()) == 2, 10, "a second try")
            fleet.write_text("models: [changed]")
            wait_until(lambda: len(calls.read_text().splitlines()) == 3, 10, "the change is applied")
        finally:
            process.terminate()
        assert process.wait(10) == 0
    assert set(calls.read_text().splitlines()) == {f"serve --cluster {fleet} --address=localhost:6379"}
