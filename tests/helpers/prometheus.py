"""A real Prometheus in tests: started on a configuration, asked by its API. And promtool."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.process import die_with_parent, free_port
from deploy.observe import find
from tests.helpers.processes import wait_until

_START_TIMEOUT_S = 60.0


def need(program: str) -> str:
    """Its path; skips the test where it is not installed."""
    path = find(program)
    if path is None:
        pytest.skip(f"{program} is not here; `make tools` fetches it")
    return path


def promtool(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run promtool."""
    command = [need("promtool"), *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


@dataclass(frozen=True)
class Series:
    """One series of an answer: its labels, and (time, value) pairs."""

    labels: dict[str, str]
    points: list[tuple[float, float]]


class Prometheus:
    """One that runs."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()

    def query(self, expr: str, at_s: float | None = None) -> list[Series]:
        """What an expression is now, or at a Unix time. Fails with Prometheus' own words."""
        params = {"query": expr} | ({"time": str(at_s)} if at_s is not None else {})
        data = self._get("/api/v1/query", params)
        if data["resultType"] == "scalar":
            return [Series({}, [_point(data["result"])])]
        return [
            Series(result["metric"], [_point(pair) for pair in result.get("values") or [result["value"]]])
            for result in data["result"]
        ]

    def value(self, expr: str) -> float:
        """The only value of an expression; 0 without one."""
        found = self.query(expr)
        assert len(found) < 2, found
        return found[0].points[-1][1] if found else 0.0

    def grown(self, selector: str, since: str = "1h") -> float:
        """By how much counters have grown, exactly: what `increase` would say without its extrapolation. Series begin
        at 0, and a value that falls is a new life."""
        total = 0.0
        for series in self.query(f"{selector}[{since}]"):
            before = 0.0
            for _, value in series.points:
                total += value - before if value >= before else value
                before = value
        return total

    def alerts(self) -> set[str]:
        """Names of the alerts that fire."""
        found = self._get("/api/v1/alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in found if alert["state"] == "firing"}

    def targets(self) -> dict[str, str]:
        """Health of each target by its URL."""
        found = self._get("/api/v1/targets")["activeTargets"]
        return {target["scrapeUrl"]: target["health"] for target in found}

    def wait_for_scrape(self) -> None:
        """Until all targets have been scraped after now."""
        now_s = time.time()
        wait_until(lambda: self._oldest_scrape_s() > now_s, 30, "a scrape of all targets")
        time.sleep(0.2)  # the scrape's samples are in

    def _oldest_scrape_s(self) -> float:
        found = self.query("min(timestamp(up))")
        return found[0].points[0][1] if found else 0.0

    def _get(self, path: str, params: dict[str, str] | None = None) -> Any:
        answer = self._client.get(path, params=params).json()
        assert answer["status"] == "success", (params, answer)
        return answer["data"]


def _point(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


@contextmanager
def prometheus(config: Path, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus on a configuration file until the end of the block."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [need("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "prometheus.log").open("wb") as log:
        end = partial(die_with_parent, os.getpid())
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, preexec_fn=end)
    try:
        wait_until(lambda: _ready(url) or process.poll() is not None, _START_TIMEOUT_S, "Prometheus is ready")
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        with closing(Prometheus(url)) as watcher:
            yield watcher
    finally:
        process.terminate()
        process.wait(20)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=1, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
