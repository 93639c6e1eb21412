"""`make observe`: configuration, commands, and what is said where programs are missing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import observe
from deploy.observe import Places, config_for, grafana_setup, prometheus_command

PLACES = Places(gateway="10.1.2.3:9000", prometheus="127.0.0.1:9090", grafana="0.0.0.0:3000")


def test_the_configuration_names_this_gateway(tmp_path: Path) -> None:
    text = config_for(PLACES, tmp_path).read_text()
    assert text.count("10.1.2.3:9000") == 2 and "127.0.0.1:8000" not in text
    assert {path.name for path in (tmp_path / "rules").iterdir()} == {"alerts.yml", "recording.yml"}


def test_the_configuration_knows_the_admin_key(tmp_path: Path) -> None:
    def targets(places: Places) -> dict[str, Any]:
        jobs = yaml.safe_load(config_for(places, tmp_path).read_text())["scrape_configs"]
        return dict(jobs[1]["http_sd_configs"][0])

    assert "authorization" not in targets(PLACES)
    key_file = Path("/run/a key")
    known = targets(replace(PLACES, admin_key_file=key_file))["authorization"]
    assert known == {"type": "Bearer", "credentials_file": str(key_file)}  # old Prometheus leaves the type out else


def test_commands(tmp_path: Path) -> None:
    assert "--web.listen-address=127.0.0.1:9090" in prometheus_command("prometheus", PLACES, tmp_path)
    command, environment = grafana_setup("/usr/sbin/grafana", PLACES, tmp_path)
    assert command[:2] == ["/usr/sbin/grafana", "server"]
    assert environment["GF_SERVER_HTTP_ADDR"] == "0.0.0.0"
    assert environment["CANOPY_PROMETHEUS_URL"] == "http://127.0.0.1:9090"
    assert Path(environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]).exists()
    assert (Path(environment["GF_PATHS_PROVISIONING"]) / "dashboards" / "canopy.yml").exists()


def test_without_programs_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(observe, "TOOLS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["observe"])
    assert observe.main() == 2
    assert capsys.readouterr().err.startswith(
        "Prometheus is not installed, and neither is docker with its compose plugin"
    )


def test_a_docker_without_compose_is_none(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    for code in (0, 1):
        docker.write_text(f"#!/bin/sh\nexit {code}\n")
        docker.chmod(0o755)
        assert observe.has_compose(str(docker)) == (code == 0)


def test_a_key_file_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["observe", "--admin-key-file", str(tmp_path / "key")])
    assert observe.main() == 2
    assert capsys.readouterr().err.startswith("There is no file ")
