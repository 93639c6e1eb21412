"""What `canopy serve` says: one line per event, and on a terminal a live line while something is awaited."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Sequence

from rich.console import Console
from rich.status import Status

from common.clock import Clock
from common.fleet import ReplicaRecord
from common.logs import LogFormat, to_json, utc

_REPEAT_S = 10.0  # between two lines about the same wait, where there is no terminal


class Progress:
    """Prints to standard output, as text or one JSON object a line. Seconds count from its creation."""

    def __init__(self, clock: Clock, console: Console | None = None, log_format: LogFormat = "text") -> None:
        self._clock = clock
        self._json = log_format == "json"
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._began_s = clock.now_s()
        self._seen: dict[str, str] = {}
        self._status: Status | None = None
        self._repeat_at_s = _REPEAT_S

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock.now_s() - self._began_s

    def line(self, text: str) -> None:
        """One event."""
        if self._json:
            head = {"time": utc(time.time()), "level": "info", "process": "canopy-serve", "pid": os.getpid()}
            self._console.print(to_json(head | {"message": text}), markup=False)
            return
        self._console.print(f"[{self.elapsed_s:6.1f} s] {text}", markup=False)

    def replicas(self, records: Sequence[ReplicaRecord]) -> None:
        """A line for each replica whose state changed."""
        for record in records:
            now = f"{record.state} {record.incarnation}"
            if self._seen.get(record.replica_id) != now:
                self._seen[record.replica_id] = now
                self.line(f"{record.replica_id}: {_describe(record)}")

    def waiting(self, what: str) -> None:
        """Show what is awaited now."""
        if self._console.is_terminal and not self._json:
            if self._status is None:
                self._status = self._console.status("")
                self._status.start()
            self._status.update(f"{what}, {self.elapsed_s:.0f} s")
        elif self.elapsed_s >= self._repeat_at_s:
            self._repeat_at_s = self.elapsed_s + _REPEAT_S
            self.line(what)

    def done_waiting(self) -> None:
        """Remove the live line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def invitation(self, url: str, model: str, log_dir: str, *, needs_key: bool = False) -> None:
        """How to use, watch and stop what runs now."""
        if self._json:
            return self.line(f"Serving {model} at {url}; logs in {log_dir}")
        text = (
            f"\nServing {model} at {url} after {self.elapsed_s:.1f} s. Try it:\n\n"
            f"  {curl_line(url, model, needs_key=needs_key)}\n\n"
            f"Logs: {log_dir}    Fleet: canopy status    Stop: Ctrl-C\n"
        )
        self._console.print(text, markup=False)


def curl_line(url: str, model: str, *, needs_key: bool = False) -> str:
    """A request that works when pasted into a shell, if CANOPY_API_KEY is there where a key is needed."""
    key = '-H "Authorization: Bearer $CANOPY_API_KEY" ' if needs_key else ""
    question = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": model, "messages": question, "temperature": 0, "max_tokens": 64}
    return f"curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"


def _describe(record: ReplicaRecord) -> str:
    if record.state == "ready":
        return f"ready at {record.url}"
    if record.state == "failed":
        return f"failed, {record.message}"
    again = f", restart {record.restarts} ({record.message})" if record.restarts else ""
    return f"{record.state}{again}"
