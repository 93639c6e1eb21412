"""`make observe` with the real Prometheus, and a stand-in for Grafana that listens where it is told to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from common.process import free_port
from tests.helpers.processes import assert_all_end, wait_until
from tests.helpers.prometheus import need

pytestmark = pytest.mark.observe
ROOT = Path(__file__).parents[2]
_GRAFANA = """#!/bin/sh
test -d "$GF_PATHS_PROVISIONING/dashboards" && test -d "$CANOPY_DASHBOARDS" || exit 3
exec {python} -m http.server --bind "$GF_SERVER_HTTP_ADDR" "$GF_SERVER_HTTP_PORT" >/dev/null 2>&1
"""


def test_both_come_up_and_go_together(tmp_path: Path) -> None:
    need("prometheus")
    program = tmp_path / "grafana-server"
    program.write_text(_GRAFANA.format(python=sys.executable))
    program.chmod(0o755)
    gateway, prometheus, grafana = (f"127.0.0.1:{free_port()}" for _ in range(3))
    places = ("--gateway", gateway, "--prometheus", prometheus, "--grafana", grafana)
    process = subprocess.Popen(
        [sys.executable, "-m", "deploy.observe", *places, "--folder", str(tmp_path / "stored")],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert re.search(rf"http://{grafana}/ .*http://{prometheus}/", said), said
        children = [child.pid for child in psutil.Process(process.pid).children()]
        assert len(children) == 2
        # Prometheus answers before it has read its targets.
        wait_until(lambda: _scraped(prometheus) == [f"http://{gateway}/metrics"], 30, "the gateway among the targets")
        rules = httpx.get(f"http://{prometheus}/api/v1/rules", timeout=10, trust_env=False).json()["data"]["groups"]
        assert sum(len(group["rules"]) for group in rules) == 22
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert_all_end(children, 5)
        assert (tmp_path / "stored" / "data").exists()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _scraped(prometheus: str) -> list[str]:
    answer = httpx.get(f"http://{prometheus}/api/v1/targets", timeout=10, trust_env=False)
    return [target["scrapeUrl"] for target in answer.json()["data"]["activeTargets"]]
