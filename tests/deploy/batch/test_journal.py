"""The batch's files: what is settled, after any crash."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import UserError
from deploy.batch.contents import Contents, read_contents
from deploy.batch.journal import DiskFull, Journal, LineFile, Paths, claimed
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


@contextlib.contextmanager
def opened(paths: Paths, contents: Contents, *, retry_failed: bool = False) -> Iterator[Journal]:
    with claimed(paths) as claim:
        paths.new_errors.write_bytes(error_line(None, FAULT, "line 9: no", line=9))
        journal = Journal(paths, contents, claim, retry_failed=retry_failed)
        try:
            yield journal
        finally:
            journal.close()


def open_once(paths: Paths, contents: Contents, *, retry_failed: bool = False) -> None:
    with opened(paths, contents, retry_failed=retry_failed):
        pass


def test_answers_and_failures_survive(paths: Paths, contents: Contents) -> None:
    with opened(paths, contents) as journal:
        journal.answer(2, answer_line("2", "", 200, b"{}"))
        journal.fail(4, error_line("4", "http_400", "no"))
    with opened(paths, contents) as again:
        assert (list(again.settled), again.answered, again.failed) == ([0, 0, 1, 0, 1, 0], 1, 1)
    assert [json.loads(line)["custom_id"] for line in paths.errors.read_text().splitlines()] == [None, "4"]


def test_failures_are_tried_again_when_asked(paths: Paths, contents: Contents) -> None:
    with opened(paths, contents) as journal:
        journal.answer(2, answer_line("2", "", 200, b"{}"))
        journal.fail(4, error_line("4", "http_400", "no"))
    with opened(paths, contents, retry_failed=True) as again:
        assert list(again.settled) == [0, 0, 1, 0, 0, 0]
        again.answer(4, answer_line("4", "", 200, b"{}"))
    with opened(paths, contents) as last:
        assert (last.answered, last.failed) == (2, 0)


@pytest.mark.parametrize("kept", range(0, 120, 7))
def test_a_torn_last_line_is_cut_off(paths: Paths, contents: Contents, kept: int) -> None:
    whole, torn = answer_line("0", "", 200, b"{}"), answer_line("1", "", 200, b'{"text": "some words and more"}')
    with opened(paths, contents) as journal:
        journal.answer(0, whole)
    assert paths.output is not None
    with paths.output.open("ab") as file:
        file.write(torn[: min(kept, len(torn) - 1)])
    with opened(paths, contents) as again:
        assert list(again.settled) == [1, 0, 0, 0, 0, 0]
        again.answer(1, torn)
    assert paths.output.read_bytes() == whole + torn


@pytest.mark.parametrize("kept", range(1, 120, 13))
def test_a_torn_last_line_of_errors_is_left_out(paths: Paths, contents: Contents, kept: int) -> None:
    whole, torn = error_line("0", "http_400", "no"), error_line("1", "http_400", "a longer sentence")
    with opened(paths, contents) as journal:
        journal.fail(0, whole)
    with paths.errors.open("ab") as file:
        file.write(torn[: min(kept, len(torn) - 1)])
    with opened(paths, contents) as again:
        assert list(again.settled) == [1, 0, 0, 0, 0, 0]
    assert paths.errors.read_bytes().endswith(whole)


def test_the_output_of_another_batch_is_refused(paths: Paths, contents: Contents, tmp_path: Path) -> None:
    open_once(paths, contents)
    with pytest.raises(UserError, match="belongs to a batch with other requests"):
        open_once(paths, make_contents(tmp_path / "other.jsonl", 3))


def test_a_file_that_is_no_output_is_refused_and_nothing_is_left_beside_it(paths: Paths, contents: Contents) -> None:
    assert paths.output is not None and paths.state is not None
    paths.output.write_text("a letter\n")
    with pytest.raises(UserError, match="exists and is no batch's output"):
        open_once(paths, contents)
    assert paths.output.read_text() == "a letter\n"
    assert not paths.state.exists() and not paths.new_errors.exists()


@pytest.mark.parametrize("foreign", ["a letter", "a letter\n", '{"id":"batch_req_7","error":1}\n', "\x00\xff\n"])
@pytest.mark.parametrize("retry_failed", [False, True])
@pytest.mark.parametrize("output", ["out.jsonl", None])
def test_an_error_file_that_is_none_is_refused_and_kept(
    contents: Contents, tmp_path: Path, foreign: str, retry_failed: bool, output: str | None
) -> None:
    paths = Paths(tmp_path / output if output else None, tmp_path / "letters")
    paths.errors.write_text(foreign)
    with pytest.raises(UserError, match="has a line that no batch wrote; choose another --error-file"):
        open_once(paths, contents, retry_failed=retry_failed)
    assert paths.errors.read_text() == foreign and not paths.new_errors.exists()


def test_an_output_that_is_no_regular_file_is_refused(tmp_path: Path, contents: Contents) -> None:
    for path in (tmp_path, Path("/dev/null")):
        with pytest.raises(UserError, match="is no regular file"):
            open_once(Paths(path, tmp_path / "errors"), contents)


def test_a_damaged_state_is_told(paths: Paths, contents: Contents) -> None:
    open_once(paths, contents)
    assert paths.state is not None
    paths.state.write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        open_once(paths, contents)


def test_two_batches_do_not_share_an_output(paths: Paths, contents: Contents) -> None:
    with opened(paths, contents), pytest.raises(UserError, match="Another canopy batch writes"):
        open_once(paths, contents)
    open_once(paths, contents)


def test_a_strangers_line_in_the_output_is_told(paths: Paths, contents: Contents) -> None:
    open_once(paths, contents)
    assert paths.output is not None
    paths.output.write_bytes(answer_line("77", "", 200, b"{}"))
    with pytest.raises(UserError, match="answers '77', which is not in the input"):
        open_once(paths, contents)


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
