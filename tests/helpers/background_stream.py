"""A streamed answer that is read while the test does something else."""

from __future__ import annotations

import threading
from typing import Any

import httpx

from tests.helpers.processes import wait_until
from tests.helpers.replica_process import ReplicaProcess


class BackgroundStream:
    """A completion of exactly `max_tokens` tokens, read in a thread; it runs when this is made."""

    def __init__(self, server: ReplicaProcess, max_tokens: int, **fields: Any) -> None:
        self.text = ""
        self._body = {"prompt": "hello", "stream": True, "ignore_eos": True, "max_tokens": max_tokens} | fields
        self._url = f"{server.url}/v1/completions"
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        wait_until(lambda: self.text.count("data:") > 3, 20, "the stream runs")

    def _read(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=60) as response:
            for text in response.iter_text():
                self.text += text

    def events(self) -> list[str]:
        """The data of all its events, once it has ended."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return [event.removeprefix("data: ") for event in self.text.split("\n\n")[:-1]]
