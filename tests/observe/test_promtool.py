"""Configurations, rules and their unit tests, by promtool."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.helpers.observed_fleet import observed
from tests.helpers.prometheus import promtool

pytestmark = pytest.mark.observe
PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"


@pytest.mark.parametrize("name", sorted(path.name for path in PROMETHEUS.glob("prometheus*.yml")))
def test_configurations_are_valid(name: str) -> None:
    done = promtool("check", "config", PROMETHEUS / name)
    assert done.returncode == 0 and b"2 rule files found" in done.stdout, done.stdout + done.stderr


def test_rules_have_no_finding() -> None:
    rules = sorted((PROMETHEUS / "rules").iterdir())
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", *rules)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr


def test_every_alert_fires_when_it_should_and_not_otherwise() -> None:
    done = promtool("test", "rules", PROMETHEUS / "tests" / "alerts.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    alerts = yaml.safe_load((PROMETHEUS / "rules" / "alerts.yml").read_text())["groups"][0]["rules"]
    tests = yaml.safe_load((PROMETHEUS / "tests" / "alerts.yml").read_text())["tests"]
    provoked = {
        case["alertname"] for test in tests for case in test.get("alert_rule_test", ()) if case.get("exp_alerts")
    }
    assert provoked == {alert["alert"] for alert in alerts}


def test_faster_rules_are_rules(tmp_path: Path) -> None:
    done = promtool("check", "config", observed("127.0.0.1:1", tmp_path, faster=20))
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "rules" / "alerts.yml").read_text()
    assert "offset 30s" in text and "for: 3s" in text and "[45s]" in text
