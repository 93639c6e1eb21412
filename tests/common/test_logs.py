"""The line format that operators' tools parse, as text and as JSON."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from common import logs


@pytest.fixture
def _root_as_before() -> Iterator[None]:
    root, access = logging.getLogger(), logging.getLogger("uvicorn.access")
    before = (root.handlers[:], root.level, access.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    access.setLevel(before[2])
    access.filters.clear()


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


@pytest.mark.usefixtures("_root_as_before")
def test_setup_keeps_libraries_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("info", process="test")
    logging.getLogger("worker.x").info("ours")
    logging.getLogger("worker.x").debug("too much")
    logging.getLogger("httpx").info("theirs")
    logging.getLogger("httpx").warning("their trouble")
    assert [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "ours",
        "WARNING their trouble",
    ]


@pytest.mark.usefixtures("_root_as_before")
@pytest.mark.parametrize(
    ("http_level", "logged"),
    [(None, []), ("warning", []), ("info", ["/v1/models"]), ("debug", ["/v1/models"])],
)
def test_the_http_server_has_a_level_of_its_own(
    http_level: str | None, logged: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    logs.setup("error", process="test", http_level=http_level)
    if logs.log_accesses(http_level, ["/health", "/metrics"]):
        for path in ("/v1/models", "/health", "/metrics?x=1"):
            logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', "a:1", "GET", path, "1.1", 200)
    assert re.findall(r"GET (\S+) ", capsys.readouterr().err) == logged


@dataclass(frozen=True, slots=True)
class Event:
    running: int
    usage: float

    def __str__(self) -> str:
        return f"#running: {self.running}"


@pytest.mark.usefixtures("_root_as_before")
def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup("info", "json", process="scheduler")
    log = logging.getLogger("worker.x")
    log.info("%d of %d\nready", 1, 2)
    log.warning("%s", Event(np.int64(3), np.float64(0.5)))  # type: ignore[arg-type]
    log.info("%s", logs.Lines(["one", "two"]))
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("broken")
    plain, event, one, two, broken = map(json.loads, capsys.readouterr().err.splitlines())
    assert plain["message"] == "1 of 2\nready"
    assert (plain["level"], plain["process"], plain["logger"]) == ("info", "scheduler", "worker.x")
    assert plain["pid"] and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", plain["time"])
    assert (event["level"], event["message"], event["event"]) == ("warning", "#running: 3", "Event")
    assert event["fields"] == {"running": 3, "usage": 0.5}
    assert (one["message"], two["message"]) == ("one", "two")
    assert (broken["level"], broken["message"]) == ("error", "broken")
    assert broken["exception"].endswith("ValueError: no")


def test_several_lines_as_text() -> None:
    record = logging.LogRecord("name", logging.INFO, "", 0, "%s", (logs.Lines(["one", "two"]),), None)
    stamp = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\]"
    assert re.fullmatch(f"{stamp} one\n{stamp} two", logs.LineFormatter().format(record))


def test_lines_that_waited_have_the_times_at_which_they_were_made() -> None:
    record = logging.LogRecord("name", logging.INFO, "", 0, "%s", (logs.Lines(["one", "two"], [1e9, 1e9 + 7.5]),), None)
    written = [json.loads(line)["time"] for line in logs.JsonFormatter("p").format(record).splitlines()]
    assert written == ["2001-09-09T01:46:40.000+00:00", "2001-09-09T01:46:47.500+00:00"]
    text = logs.LineFormatter().format(record)
    assert re.findall(r":(\d\d)\] (\w+)", text) == [("40", "one"), ("47", "two")]


def test_the_first_line_of_a_life() -> None:
    text, entry = logs.headline("replica-0 life a", "text"), logs.headline("replica-0 life a", "json")
    assert re.fullmatch(r"--- \d{4}-\d\d-\d\d \d\d:\d\d:\d\d replica-0 life a ---", text)
    assert json.loads(entry)["message"] == "replica-0 life a"
    assert logs.is_headline(text) and logs.is_headline(entry)
    assert not logs.is_headline("[2026-01-01 00:00:00] ready")


@pytest.mark.usefixtures("_root_as_before")
def test_lines_about_a_request_have_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    for log_format in ("text", "json"):
        logs.setup("info", log_format, process="test")  # type: ignore[arg-type]
        log = logging.getLogger("worker.x")
        token = logs.REQUEST_ID.set("r-1")
        log.warning("in its task")
        log.info("r-1 names it")
        logs.REQUEST_ID.reset(token)
        log.info("outside", extra=logs.about_request("r-2"))
        log.info("about none")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("] ")[2] for line in lines[:4]] == [
        "WARNING in its task request_id=r-1",
        "r-1 names it",
        "outside request_id=r-2",
        "about none",
    ]
    assert [json.loads(line).get("request_id") for line in lines[4:]] == ["r-1", "r-1", "r-2", None]
