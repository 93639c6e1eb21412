"""Every expression of every dashboard that is checked in, and whether a Prometheus has an answer to it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.prometheus import Prometheus

DASHBOARDS = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
_VALUES = {"$__rate_interval": "1m", "$model": ".*", "$worker": ".*", "$instance": ".*"}


def panel_expressions() -> Iterator[tuple[str, str]]:
    """(dashboard and panel, expression with its variables filled in)."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                expr = target["expr"]
                for variable, value in _VALUES.items():
                    expr = expr.replace(variable, value)
                yield f"{board['title']}: {panel['title']}", expr


def panels_without_data(prometheus: Prometheus) -> list[tuple[str, str]]:
    """Those that give nothing, or nothing but NaN."""
    return [
        (panel, expr)
        for panel, expr in panel_expressions()
        if not any(math.isfinite(series.points[-1][1]) for series in prometheus.query(expr))
    ]
