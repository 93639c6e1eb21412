"""Shows how far a long preparation is: a bar on a terminal, plain lines elsewhere, log lines where logs are JSON."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from common.logs import json_is_set_up

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]  # (what is done now, share done of the whole, 0 to 1)

_LINE_STEP = 0.25  # plain lines appear at a new label and at every quarter


def silent(label: str, share: float) -> None:
    """Shows nothing."""


@contextmanager
def console_progress(title: str, stream: TextIO = sys.stderr) -> Iterator[Progress]:
    """Progress of one undertaking on `stream`."""
    if json_is_set_up():
        yield _Lines(title, log.info)
        return
    if not stream.isatty():
        yield _Lines(title, lambda line: print(line, file=stream, flush=True))
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(file=stream)) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda label, share: bar.update(task, completed=share, description=f"{title}: {label}")


class _Lines:
    def __init__(self, title: str, write: Callable[[str], None]) -> None:
        self._title = title
        self._write = write
        self._last: tuple[str, int] | None = None

    def __call__(self, label: str, share: float) -> None:
        now = (label, int(share / _LINE_STEP))
        if now != self._last:
            self._last = now
            self._write(f"{self._title}: {label} ({share:.0%})")
