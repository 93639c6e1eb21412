"""One log format for every process: `[2026-01-31 12:00:00] text`, to standard error, levels above info spelled out."""

from __future__ import annotations

import logging
import sys

_LIBRARIES = ("uvicorn", "uvicorn.error", "httpx", "httpcore", "asyncio", "transformers", "huggingface_hub", "filelock")


class LineFormatter(logging.Formatter):
    """`[date time] text` up to info, `[date time] WARNING text` above. Operators' tools parse the info lines."""

    def __init__(self) -> None:
        super().__init__("[%(asctime)s] %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        if record.levelno <= logging.INFO:
            return line
        stamp, _, text = line.partition("] ")
        return f"{stamp}] {record.levelname} {text}"


def setup(level: str) -> None:
    """Send this process's logs to standard error, own modules from `level` up, libraries from warning up.

    Call once, at the edge, before threads start.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
