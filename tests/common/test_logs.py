"""The line format that operators' tools parse."""

from __future__ import annotations

import logging
import re

import pytest

from common import logs


@pytest.mark.parametrize(
    ("level", "text"),
    [
        (logging.INFO, "Decode batch. #running-req: 1"),
        (logging.DEBUG, "detail"),
        (logging.WARNING, "WARNING full"),
        (logging.ERROR, "ERROR [a] bad"),
    ],
)
def test_the_format(level: int, text: str) -> None:
    message = text.removeprefix("WARNING ").removeprefix("ERROR ")
    record = logging.LogRecord("name", level, "", 0, "%s", (message,), None)
    line = logs.LineFormatter().format(record)
    assert re.fullmatch(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] " + re.escape(text), line)


def test_setup_keeps_libraries_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    try:
        logs.setup("info")
        logging.getLogger("worker.x").info("ours")
        logging.getLogger("worker.x").debug("too much")
        logging.getLogger("httpx").info("theirs")
        logging.getLogger("httpx").warning("their trouble")
        assert [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()] == [
            "ours",
            "WARNING their trouble",
        ]
    finally:
        root.handlers[:], root.level = before[0], before[1]
