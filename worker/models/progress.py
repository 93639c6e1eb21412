"""Shows how far a long preparation is: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Progress = Callable[[str, float], None]  # (what is done now, share done of the whole, 0 to 1)

_LINE_STEP = 0.25  # plain lines appear at a new label and at every quarter


def silent(label: str, share: float) -> None:
    """Shows nothing."""


@contextmanager
def console_progress(title: str, stream: TextIO = sys.stderr) -> Iterator[Progress]:
    """Progress of one undertaking on `stream`."""
    if not stream.isatty():
        yield _PlainLines(title, stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(file=stream)) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda label, share: bar.update(task, completed=share, description=f"{title}: {label}")


class _PlainLines:
    def __init__(self, title: str, stream: TextIO) -> None:
        self._title = title
        self._stream = stream
        self._last: tuple[str, int] | None = None

    def __call__(self, label: str, share: float) -> None:
        now = (label, int(share / _LINE_STEP))
        if now != self._last:
            self._last = now
            print(f"{self._title}: {label} ({share:.0%})", file=self._stream, flush=True)
