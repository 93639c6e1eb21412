"""jemalloc is used where it is installed and nothing else was chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from ctypes.util import find_library

import pytest

from gateway.allocator import with_jemalloc

_PROGRAM = "from gateway.allocator import use_jemalloc; use_jemalloc(); print(open('/proc/self/maps').read())"


def found(_: str) -> str:
    return "libjemalloc.so.2"


def test_what_was_chosen_stays() -> None:
    assert with_jemalloc({}, lambda _: None) is None
    assert with_jemalloc({"LD_PRELOAD": ""}, found) is None
    assert with_jemalloc({"PYTHONMALLOC": "pymalloc"}, found) is None


def test_a_configuration_of_jemalloc_stays() -> None:
    environ = with_jemalloc({"MALLOC_CONF": "narenas:4", "HOME": "/"}, found)
    assert environ == {
        "HOME": "/",
        "LD_PRELOAD": "libjemalloc.so.2",
        "MALLOC_CONF": "narenas:4",
        "PYTHONMALLOC": "malloc",
    }
    assert with_jemalloc(environ, found) is None  # no second time


@pytest.mark.skipif(find_library("jemalloc") is None, reason="needs libjemalloc2 (make allocator)")
def test_a_program_begins_again_under_it() -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "PYTHONMALLOC")}
    maps = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert "libjemalloc" in maps.stdout
