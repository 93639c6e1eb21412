"""The wheel that images and cluster nodes install: everything that the programs read is in it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("benchmarks", "common", "deploy", "gateway", "worker")
# Read by people, by `ray up`, by kubectl and docker, but by no program of ours.
NOT_READ = ("deploy/clusters/", "deploy/docker/", "deploy/kubernetes/", "deploy/fleet.yaml", "deploy/prometheus/tests/")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the tracked files alone, as a fresh clone would."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    names = ["pyproject.toml", "README.md", "LICENSE", *PACKAGES]
    tracked = subprocess.run(["git", "ls-files", "-z", *names], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", build, out], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = out.glob("canopy_serve-*.whl")
    return found


def test_it_has_all_code_and_all_data(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    missing = [
        name
        for name in tracked.stdout.splitlines()
        if name not in inside and (name.endswith(".py") or not name.startswith(NOT_READ))
    ]
    assert not missing
    assert not [name for name in inside if name.startswith("tests/")]


def test_its_programs_run_from_it_alone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = """
import sys
from deploy.cli import main
from gateway.console import routes
from worker.engine.sim import profile
assert all(m.__file__.startswith(sys.argv[1]) for m in (routes, profile)), routes.__file__
sys.exit(main(["worker", "--model-path", "x", "--sim-profile", "h200-llama3-8b", "--help"]))
"""
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: canopy worker")
