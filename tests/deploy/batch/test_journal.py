"""The batch's files: what is settled, after any crash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.errors import UserError
from deploy.batch.contents import Contents, read_contents
from deploy.batch.journal import DiskFull, Journal, LineFile, Paths
from deploy.batch.lines import FAULT, answer_line, error_line
from tests.deploy.batch.small_disk import files_no_longer_than


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "out.jsonl", tmp_path / "out.errors.jsonl")


@pytest.fixture
def contents(tmp_path: Path) -> Contents:
    return make_contents(tmp_path / "in.jsonl", 6)


def make_contents(path: Path, count: int) -> Contents:
    path.write_text("".join(request(str(i)) for i in range(count)))
    return read_contents(path, lambda *fault: None)


def request(custom_id: str) -> str:
    return json.dumps({"custom_id": custom_id, "url": "/v1/completions", "body": {"prompt": custom_id}}) + "\n"


def opened(paths: Paths, contents: Contents, *, retry_failed: bool = False) -> Journal:
    paths.new_errors.write_bytes(error_line(None, FAULT, "line 9: no", line=9))
    return Journal(paths, contents, retry_failed=retry_failed)


def test_answers_and_failures_survive(paths: Paths, contents: Contents) -> None:
    journal = opened(paths, contents)
    journal.answer(2, answer_line("2", "", 200, b"{}"))
    journal.fail(4, error_line("4", "http_400", "no"))
    journal.close()
    again = opened(paths, contents)
    assert (list(again.settled), again.answered, again.failed) == ([0, 0, 1, 0, 1, 0], 1, 1)
    again.close()
    assert [json.loads(line)["custom_id"] for line in paths.errors.read_text().splitlines()] == [None, "4"]


def test_failures_are_tried_again_when_asked(paths: Paths, contents: Contents) -> None:
    journal = opened(paths, contents)
    journal.answer(2, answer_line("2", "", 200, b"{}"))
    journal.fail(4, error_line("4", "http_400", "no"))
    journal.close()
    again = opened(paths, contents, retry_failed=True)
    assert list(again.settled) == [0, 0, 1, 0, 0, 0]
    again.answer(4, answer_line("4", "", 200, b"{}"))
    again.close()
    last = opened(paths, contents)
    assert (last.answered, last.failed) == (2, 0)
    last.close()


@pytest.mark.parametrize("kept", range(0, 120, 7))
def test_a_torn_last_line_is_cut_off(paths: Paths, contents: Contents, kept: int) -> None:
    journal = opened(paths, contents)
    whole, torn = answer_line("0", "", 200, b"{}"), answer_line("1", "", 200, b'{"text": "some words and more"}')
    journal.answer(0, whole)
    journal.close()
    assert paths.output is not None
    with paths.output.open("ab") as file:
        file.write(torn[: min(kept, len(torn) - 1)])
    again = opened(paths, contents)
    assert list(again.settled) == [1, 0, 0, 0, 0, 0]
    again.answer(1, torn)
    again.close()
    assert paths.output.read_bytes() == whole + torn


def test_the_output_of_another_batch_is_refused(paths: Paths, contents: Contents, tmp_path: Path) -> None:
    opened(paths, contents).close()
    with pytest.raises(UserError, match="belongs to a batch with other requests"):
        opened(paths, make_contents(tmp_path / "other.jsonl", 3))


def test_a_file_that_is_no_output_is_refused(paths: Paths, contents: Contents) -> None:
    assert paths.output is not None
    paths.output.write_text("a letter\n")
    with pytest.raises(UserError, match="exists and is no batch's output"):
        opened(paths, contents)
    assert paths.output.read_text() == "a letter\n"


def test_a_damaged_state_is_told(paths: Paths, contents: Contents) -> None:
    opened(paths, contents).close()
    assert paths.state is not None
    paths.state.write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        opened(paths, contents)


def test_two_batches_do_not_share_an_output(paths: Paths, contents: Contents) -> None:
    journal = opened(paths, contents)
    with pytest.raises(UserError, match="Another canopy batch writes"):
        opened(paths, contents)
    journal.close()
    opened(paths, contents).close()


def test_a_strangers_line_in_the_output_is_told(paths: Paths, contents: Contents) -> None:
    opened(paths, contents).close()
    assert paths.output is not None
    paths.output.write_bytes(answer_line("77", "", 200, b"{}"))
    with pytest.raises(UserError, match="answers '77', which is not in the input"):
        opened(paths, contents)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "out"
    file = LineFile(path)
    file.append(b"a" * 79 + b"\n")
    with files_no_longer_than(100), pytest.raises(DiskFull, match="Cannot write"):
        file.append(b"b" * 79 + b"\n")
    file.close()
    assert path.read_bytes() == b"a" * 79 + b"\n"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose another place"):
        LineFile(tmp_path / "none" / "out")
