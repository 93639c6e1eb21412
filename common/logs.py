"""One log format for every process, to standard error: `[2026-01-31 12:00:00] text`, levels above info spelled out, or
one JSON object a line."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from itertools import repeat
from typing import Any, Literal

import msgspec
import orjson

LogFormat = Literal["text", "json"]

_TIME = "%Y-%m-%d %H:%M:%S"
_TEXT_HEAD, _JSON_HEAD = "--- ", '{"event":"start",'
_ACCESS = "uvicorn.access"
_HTTP_SERVER = ("uvicorn", "uvicorn.error", _ACCESS)
_LIBRARIES = ("httpx", "httpcore", "asyncio", "transformers", "huggingface_hub", "filelock")


# Of the request that the running task serves; in every line that is logged meanwhile. Elsewhere: `about_request`.
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")


def about_request(request_id: str) -> dict[str, str]:
    """`extra` of a line about a request that is logged outside of its task."""
    return {"request_id": request_id}


class Lines(list[object]):
    """Several lines that are logged by one call: `log.info("%s", Lines(...))`. In JSON each is an object.

    `times`: when each was made, in seconds since 1970; without them, when they are logged.
    """

    def __init__(self, lines: Iterable[object], times: Sequence[float] = ()) -> None:
        super().__init__(lines)
        self.times = times

    def timed(self, logged: float) -> Iterator[tuple[object, float]]:
        """Each line with its time; `logged`: when they were logged."""
        return zip(self, self.times or repeat(logged, len(self)), strict=True)

    def __str__(self) -> str:
        return "\n".join(map(str, self))


class JsonLine(str):
    """A line that is a JSON object already: `log.info("%s", JsonLine(...))` writes it as it is, without any head."""


class LineFormatter(logging.Formatter):
    """`[date time] text` up to info, `[date time] WARNING text` above. Operators' tools parse the info lines.

    A line about a request ends in ` request_id=...`, unless it has the id already.
    """

    def __init__(self) -> None:
        super().__init__("[%(asctime)s] %(message)s", _TIME)

    def format(self, record: logging.LogRecord) -> str:
        line = _value(record)
        if isinstance(line, Lines):
            return "\n".join(f"[{_local(int(time_s))}] {one}" for one, time_s in line.timed(record.created))
        return str(line) if isinstance(line, JsonLine) else super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        request_id = _request_id(record)
        if request_id and request_id not in line:
            line += f" request_id={request_id}"
        if record.levelno <= logging.INFO:
            return line
        stamp, _, text = line.partition("] ")
        return f"{stamp}] {record.levelname} {text}"


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC, ISO 8601), level, process, pid, logger, message; `exception` where there is one.

    A line about a request has its `request_id`. One made of a dataclass or struct (`log.info("%s", line)`) also has its
    values, as `fields`, and its class, as `event`.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        head = {
            "time": utc(record.created),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": os.getpid(),
            "logger": record.name,
        }
        value = _value(record)
        if isinstance(value, JsonLine):
            return str(value)
        if isinstance(value, Lines):
            return "\n".join(
                to_json(head | {"time": utc(time_s), "message": str(line)} | _parts(line))
                for line, time_s in value.timed(record.created)
            )
        entry: dict[str, Any] = head | {"message": record.getMessage()} | _parts(value)
        request_id = _request_id(record)
        if request_id:
            entry["request_id"] = request_id
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return to_json(entry)


def _parts(value: object) -> dict[str, Any]:
    """What of a JSON line comes from the object that is logged."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.asdict(value)
    else:
        return {}
    request_id = fields.get("request_id")
    about = {"request_id": request_id} if request_id else {}
    return about | {"event": type(value).__name__, "fields": fields}


def _request_id(record: logging.LogRecord) -> str:
    return getattr(record, "request_id", "") or REQUEST_ID.get()


def _value(record: logging.LogRecord) -> object:
    """The only argument of a record, None if it has none or several."""
    return record.args[0] if isinstance(record.args, tuple) and len(record.args) == 1 else None


@lru_cache(maxsize=8)
def _local(timestamp_s: int) -> str:
    return time.strftime(_TIME, time.localtime(timestamp_s))


def utc(timestamp_s: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(timestamp_s, UTC).isoformat(timespec="milliseconds")


def to_json(entry: dict[str, Any]) -> str:
    """One JSON log line. What JSON has no word for becomes its text."""
    return orjson.dumps(entry, default=str, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def setup(level: str, log_format: LogFormat = "text", *, process: str, http_level: str | None = None) -> None:
    """Send the logs of `process` to standard error: own modules from `level` up, libraries from warning up, the HTTP
    server from `http_level` up (without it as libraries).

    Call once, at the edge, before threads start.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if log_format == "json" else LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    quiet = max(logging.WARNING, root.level)
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(quiet)
    for name in _HTTP_SERVER:
        logging.getLogger(name).setLevel(quiet if http_level is None else http_level.upper())


def headline(text: str, log_format: LogFormat) -> str:
    """The line that begins a process's life in a log file that holds several lives."""
    if log_format == "json":
        return _JSON_HEAD + to_json({"time": utc(time.time()), "level": "info", "message": text})[1:]
    return f"{_TEXT_HEAD}{time.strftime(_TIME)} {text} ---"


def is_headline(line: str) -> bool:
    """Whether `headline` made it."""
    return line.startswith((_TEXT_HEAD, _JSON_HEAD))


def json_is_set_up() -> bool:
    """Whether this process logs in JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def log_accesses(http_level: str | None, exclude_prefixes: Sequence[str]) -> bool:
    """Whether the HTTP server logs a line for each request; paths that begin with one of the prefixes get none."""
    if http_level not in ("info", "debug"):
        return False
    prefixes = tuple(exclude_prefixes)

    def wanted(record: logging.LogRecord) -> bool:
        path = record.args[2] if isinstance(record.args, tuple) and len(record.args) > 2 else ""
        return not (prefixes and str(path).startswith(prefixes))

    access = logging.getLogger(_ACCESS)
    access.filters[:] = [wanted]
    access.propagate = True
    return True
