"""Progress on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest

from worker.models.progress import console_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(stream: io.StringIO) -> str:
    with console_progress("Converting", stream) as progress:
        progress("reading", 0.0)
        for percent in range(20, 101, 10):
            progress("weights", percent / 100)
    return stream.getvalue()


def test_plain_lines_at_each_stage_and_quarter() -> None:
    assert report(io.StringIO()).splitlines() == [
        "Converting: reading (0%)",
        "Converting: weights (20%)",
        "Converting: weights (30%)",
        "Converting: weights (50%)",
        "Converting: weights (80%)",
        "Converting: weights (100%)",
    ]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    shown = report(Terminal())
    assert "Converting: weights" in shown and "100%" in shown and "\x1b[" in shown


def test_where_logs_are_json_they_are_log_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worker.models.progress.json_is_set_up", lambda: True)
    caplog.set_level("INFO")
    assert report(Terminal()) == ""
    assert caplog.messages[:2] == ["Converting: reading (0%)", "Converting: weights (20%)"]
