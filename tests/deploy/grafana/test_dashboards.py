"""The dashboards that are checked in: current, complete, and with their healthy bands; alerts have runbooks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk is not installed; `make setup` does that")

from deploy.grafana.write import FOLDER, files

ROOT = Path(__file__).parents[3]
BOARDS = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}


def panels(board: str) -> dict[str, Any]:
    return {panel["title"]: panel for panel in BOARDS[board]["panels"] if panel["type"] != "row"}


def test_files_are_what_the_code_makes() -> None:
    made = files()
    assert {path.name for path in made} == {f"{name}.json" for name in BOARDS}
    for path, text in made.items():
        assert path.read_text() == text, f"{path.name} is not current; run `make docs`"


@pytest.mark.parametrize("board", BOARDS)
def test_every_panel_says_what_it_is_and_uses_the_chosen_prometheus(board: str) -> None:
    assert len(panels(board)) >= 10
    for panel in panels(board).values():
        assert panel["description"].endswith(".") and panel["targets"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_tuning_has_the_guides_bands() -> None:
    def steps(title: str) -> list[tuple[float | None, str]]:
        field = panels("canopy-tuning")[title]["fieldConfig"]["defaults"]
        assert field["custom"]["thresholdsStyle"]["mode"] == "area"
        return [(step["value"], step["color"]) for step in field["thresholds"]["steps"]]

    assert steps("Waiting requests") == [(None, "orange"), (100, "green"), (2000, "orange")]
    assert steps("Token usage") == [(None, "orange"), (0.9, "green")]
    assert steps("Retractions a minute") == [(None, "green"), (1, "orange"), (10, "red")]
    assert steps("Memory left after the start") == [(None, "orange"), (5e9, "green"), (8e9, "orange")]


def test_every_alert_has_a_runbook() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules/alerts.yml").read_text())["groups"][0]["rules"]
    headings = re.findall(r"^#+ (.+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for rule in rules:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "docs/operations.md" and anchor in anchors, rule["alert"]
