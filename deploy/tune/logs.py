"""Reads an observation from the log of a worker, Canopy's or SGLang's, as text or as JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import msgspec

from common.errors import UserError
from common.tuning.observation import Facts, Observation, Phase, Sample, Symptom
from common.tuning.replica_watch import merged
from worker.log_lines import (
    ConservativenessLine,
    DecodeLine,
    LogLine,
    PrefillLine,
    RetractLine,
    StartupLine,
    StepFailedLine,
    parse,
)

_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")
_MEMORY = re.compile(r"CUDA out of memory|OutOfMemoryError", re.IGNORECASE)
_SYMPTOMS = (
    (re.compile(r"peer access is not supported between these two devices"), Symptom.PEER_ACCESS),
    (
        re.compile(
            r"(No space left on device|bus error).*(/dev/shm|shared memory)|/dev/shm.*No space left"
            r"|Error while creating shared memory segment",
            re.IGNORECASE,
        ),
        Symptom.SHARED_MEMORY,
    ),
    (re.compile(r"Health check failed\.|Watchdog (timeout|caught collective operation timeout)"), Symptom.HANG),
)
_ARGUMENT = re.compile(r"(\w+)=('[^']*'|[^,()\s]+)")


class _JsonLine(msgspec.Struct):
    time: str = ""
    message: str = ""


class LogReader:
    """Takes the lines of one log one by one."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._samples: list[Sample] = []
        self._new = self._cached = self._retractions = 0
        self._memory: list[Phase] = []
        self._symptoms: set[Symptom] = set()
        self._startup: StartupLine | None = None
        self._arguments: dict[str, str] = {}
        self._first_s: float | None = None
        self._last_s: float | None = None
        self._phase = Phase.UNKNOWN
        self._known = 0
        self._automatic = False

    def take(self, line: str) -> None:
        """One line, whatever it says."""
        time, text = _split(line)
        found = parse(text)
        if found is not None:
            self._known += 1
            self._on_time(time)
            self._on_line(found)
        elif _MEMORY.search(text):
            self._memory.append(self._phase)
        elif "server_args=" in text:
            self._arguments = {name: value.strip("'") for name, value in _ARGUMENT.findall(text)}
        for pattern, symptom in _SYMPTOMS:
            if pattern.search(text):
                self._symptoms.add(symptom)

    def observation(self, facts: Facts) -> Observation:
        """What was read. Raises UserError if no line was of a known kind."""
        if not self._known and not self._memory and not self._symptoms:
            raise UserError(
                f"{self._replica} has no line that canopy tune knows; give the log of a Canopy or SGLang worker."
            )
        seconds = None if self._first_s is None or self._last_s is None else self._last_s - self._first_s
        return Observation(
            replica=self._replica,
            minutes=seconds / 60 if seconds else None,
            samples=self._samples,
            retractions=self._retractions,
            new_tokens=self._new,
            cached_tokens=self._cached,
            out_of_memory=self._memory,
            symptoms=frozenset(self._symptoms),
            startup=self._startup,
            facts=merged(replace(facts_of(self._arguments), conservativeness_auto=self._automatic), facts),
        )

    def _on_time(self, time: float | None) -> None:
        if time is not None:
            self._first_s = time if self._first_s is None else self._first_s
            self._last_s = time

    def _on_line(self, line: LogLine) -> None:
        match line:
            case DecodeLine():
                self._phase = Phase.DECODE
                self._samples.append(Sample(line.running, line.queued, line.usage, line.cuda_graph))
            case PrefillLine():
                self._phase = Phase.PREFILL
                self._new += line.new_tokens
                self._cached += line.cached_tokens
            case RetractLine():
                self._retractions += 1
            case StepFailedLine() if "memory" in line.reason:
                self._memory.append(Phase.PREFILL if line.new_tokens else Phase.DECODE)
            case StartupLine():
                self._startup = line
            case ConservativenessLine():
                self._automatic = True
            case _:
                pass


def read_log(path: Path, facts: Facts) -> Observation:
    """Raises UserError if the file cannot be read or is no such log."""
    reader = LogReader(str(path))
    try:
        with path.open(errors="replace") as file:
            _take_all(reader, file)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    return reader.observation(facts)


def _take_all(reader: LogReader, lines: Iterable[str]) -> None:
    for line in lines:
        reader.take(line)


def _split(line: str) -> tuple[float | None, str]:
    """(seconds since the epoch, text)."""
    if line.startswith("{"):
        try:
            found = msgspec.json.decode(line, type=_JsonLine)
            return _seconds(found.time), found.message
        except (msgspec.DecodeError, msgspec.ValidationError):
            pass
    return _seconds(line[:40]), line


def _seconds(text: str) -> float | None:
    found = _TIME.search(text)
    return datetime.fromisoformat(found[1]).timestamp() if found else None


def facts_of(arguments: dict[str, str]) -> Facts:
    """The facts among SGLang's `server_args=ServerArgs(...)`, or what /server_info says, as Python prints them."""

    def number(name: str) -> float | None:
        try:
            return float(arguments[name])
        except (KeyError, ValueError):
            return None

    def whole(name: str) -> int | None:
        value = number(name)
        return None if value is None else int(value)

    def word(name: str) -> str | None:
        value = arguments.get(name)
        return None if value in (None, "None", "") else value

    return Facts(
        schedule_conservativeness=number("schedule_conservativeness"),
        schedule_policy=word("schedule_policy"),
        mem_fraction_static=number("mem_fraction_static"),
        chunked_prefill_size=whole("chunked_prefill_size"),
        max_running_requests=whole("max_running_requests"),
        cuda_graph_max_bs=whole("cuda_graph_max_bs"),
        tp_size=whole("tp_size"),
        nnodes=whole("nnodes"),
        quantization=word("quantization"),
        torch_compile={"True": True, "False": False}.get(arguments.get("enable_torch_compile", "")),
    )
