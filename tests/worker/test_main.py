"""`python -m worker`: what it does with its process before the replica runs in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import gc, sys
import worker.launch.replica as replica
from worker.__main__ import main

class Replica:
    def __init__(self, settings, listener):
        self.settings = settings
    async def run(self):
        print(gc.get_threshold(), self.settings.page_size, "torch" in sys.modules and sys.modules["torch"] is None)
        return 7

replica.Replica = Replica
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("flags", "threshold"),
    [(["--gc-threshold", "900", "20"], (900, 20)), (["--gc-threshold", "0"], (0,)), ([], (700,))],
)
def test_the_frontend_process(flags: list[str], threshold: tuple[int, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "--model-path", "hub/m", "--port", "0", "--page-size", "4", *flags],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 7, done.stderr
    numbers, _, rest = done.stdout.partition(")")
    assert tuple(int(number) for number in numbers.strip("(").split(","))[: len(threshold)] == threshold
    assert rest.split() == ["4", "True"]
