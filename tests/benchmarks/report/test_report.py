"""Reports: which run is set against which, what is drawn, a page that stands alone, faults."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.report.page import COLUMNS, cell
from benchmarks.report.program import main
from benchmarks.report.runs import RunRecord, baseline, drawn, level_of, read_runs
from benchmarks.serve.load import Run
from benchmarks.serve.outcomes import Outcome
from benchmarks.serve.own_cost import OwnCost
from benchmarks.serve.results import summary
from common.errors import UserError

TTFT = next(column for column in COLUMNS if column.key == "mean_ttft_ms")


def record(tag: str | None, ttft_s: float, rate: float | str = "inf", bound: int | None = None) -> dict[str, Any]:
    """The line of a run whose requests all took the same."""
    outcomes = [
        Outcome(True, begin_s=0.2 * i, ttft_s=ttft_s, latency_s=ttft_s + 0.3, itls_s=[0.1] * 3, output_tokens=4)
        for i in range(20)
    ]
    figures = summary(Run(outcomes, 20, 0.0, 4.0 + ttft_s + 0.3, OwnCost(0.1, 1.0, 0.0)))
    return {"tag": tag, "request_rate": rate, "max_concurrency": bound, "notes": ["Mind <this>."], **figures}


def written(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def test_runs_of_one_tag_are_levels_of_a_series(tmp_path: Path) -> None:
    first = written(tmp_path / "a.jsonl", record("old", 0.1, 2.0), record("old", 0.2, 4.0))
    second = written(tmp_path / "b.runs.jsonl", record(None, 0.05, 4.0, 8))
    runs = read_runs([first, second])
    assert [run.name for run in runs] == ["old 2/s", "old 4/s", "b"]
    assert level_of({"request_rate": "inf", "max_concurrency": 3}) == "c=3"


def test_a_run_is_set_against_the_first_series_at_its_level() -> None:
    runs = [
        RunRecord("old", "2/s", record(None, 0.1)),
        RunRecord("old", "4/s", record(None, 0.2)),
        RunRecord("new", "4/s", record(None, 0.1)),
        RunRecord("new", "9/s", record(None, 0.1)),
    ]
    assert [baseline(runs, run) for run in runs] == [None, None, runs[1], None]
    better = cell(runs, runs[2], TTFT)
    assert (better.text, better.change, better.verdict, better.best) == ("100.0", "-50%", 1, True)
    assert not cell(runs, runs[1], TTFT).best
    plain = [RunRecord("a", "", record(None, 0.1)), RunRecord("b", "", record(None, 3.0))]
    worse = cell(plain, plain[1], TTFT)
    assert (worse.change, worse.verdict, worse.best) == ("×30", -1, False)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_no_more_runs_are_drawn_than_there_are_colours(sizes: list[int]) -> None:
    runs = [RunRecord(f"s{i}", f"{level}/s", {}) for i, size in enumerate(sizes) for level in range(size)]
    found = drawn(runs, 8)
    assert len(found) <= 8 and len({run.name for run in found}) == len(found)
    assert (
        found == runs if len(runs) <= 8 else {run.series for run in found} == {f"s{i}" for i in range(len(sizes))[:8]}
    )


class Addresses(HTMLParser):
    """Collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.pictures = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.pictures += tag == "svg"
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_a_page_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    runs = [record(tag, ttft_s, rate) for tag in ("old & slow", "new") for ttft_s, rate in ((0.1, 2.0), (0.9, 4.0))]
    path, out = written(tmp_path / "a.jsonl", *runs), tmp_path / "report.html"
    assert main([str(path), "-o", str(out), "--title", "A <b> title"]) == 0
    assert "4 runs" in capsys.readouterr().out
    page = Addresses()
    text = out.read_text()
    page.feed(text)
    assert page.pictures == 3 + 4 + 1 and all(address.startswith("#") for address in page.found)
    assert "A &lt;b&gt; title" in text and "old &amp; slow 2/s" in text and "Mind &lt;this&gt;." in text
    assert "var(--s1)" in text and "#0a0" not in text
    assert "(latency - TTFT) / (output tokens - 1)" in text


def test_failures_and_only_what_a_run_was_made_of_are_told(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = record("a", 0.1) | {"failed": 5, "dataset_name": "conversation", "random_input_len": 1024}
    run |= {"conv_turns": [2, 5], "time": "2026-11-30T12:09:40.123456+00:00", "mean_itl_ms": None}
    out = tmp_path / "report.html"
    assert main([str(written(tmp_path / "a.jsonl", run)), "-o", str(out)]) == 0
    text = out.read_text()
    assert "5 of 25 requests failed." in text and "2026-11-30 12:09:40<" in text and "conv_turns" in text
    assert "random_input_len" not in text


def test_runs_of_other_benchmarks_have_a_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bare = {key: value for key, value in record(None, 0.1).items() if key not in ("quantiles", "timeline", "notes")}
    out = tmp_path / "report.html"
    assert main([str(written(tmp_path / "a.jsonl", bare)), "-o", str(out)]) == 0
    assert "<svg" not in out.read_text() and "400.0" in out.read_text()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no runs in there"),
        ("{", "Line 1 of .* is not JSON"),
        ('{"completed": 3}', "it lacks duration"),
        ("3", "lacks"),
    ],
)
def test_another_file_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        main([str(path), "-o", str(tmp_path / "report.html")])
    with pytest.raises(UserError, match="cannot read"):
        main([str(tmp_path / "none")])
