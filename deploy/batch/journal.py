"""The batch's files: output, errors, state. After any crash they say what has been answered, and nothing twice.

A line counts when all of it is in the file. Lines are only appended; at the start a torn last line is cut off.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from common.errors import UserError
from deploy.batch.contents import Contents
from deploy.batch.lines import FAULT, LineFault, written_id

_STATE_SUFFIX = ".state"
_BLOCK_BYTES = 1 << 20
_ERROR_LINE_BEGIN = b'{"id":"batch_req_'


class DiskFull(Exception):
    """A line could not be written. What was written before stays whole."""


@dataclass(frozen=True, slots=True)
class Paths:
    """`output`: None for standard output, which cannot be continued."""

    output: Path | None
    errors: Path

    @property
    def state(self) -> Path | None:
        """Says which input the output belongs to; locked while a batch runs."""
        return None if self.output is None else self.output.with_name(self.output.name + _STATE_SUFFIX)

    @property
    def new_errors(self) -> Path:
        """Becomes the error file when it is complete."""
        return self.errors.with_name(self.errors.name + ".new")


class _State(msgspec.Struct, frozen=True):
    input_digest: str
    version: int = 1


class LineFile:
    """A file to which whole lines are appended."""

    def __init__(self, path: Path | None) -> None:
        self._name = str(path) if path is not None else "standard output"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            self._fd = os.open(path, flags, 0o644) if path is not None else os.dup(1)
        except OSError as error:
            raise UserError(f"Cannot write {path}: {error.strerror}; choose another place.") from None
        self._is_file = path is not None

    def append(self, line: bytes) -> None:
        """Raises DiskFull, after which the file ends where it did before."""
        size = os.fstat(self._fd).st_size if self._is_file else 0
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            if self._is_file and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                os.ftruncate(self._fd, size)
            raise DiskFull(f"Cannot write {self._name}: {error.strerror}") from None

    def sync(self) -> None:
        """On the disk when this returns."""
        if self._is_file:
            os.fsync(self._fd)

    def close(self) -> None:
        """The last thing."""
        os.close(self._fd)


@contextlib.contextmanager
def claimed(paths: Paths) -> Iterator[int | None]:
    """While entered the files are ours alone. Yields the state file's number; None for standard output. What did not
    become a batch leaves no file behind. Raises UserError."""
    lock = _lock(paths)
    try:
        paths.new_errors.unlink(missing_ok=True)
        yield lock
    finally:
        paths.new_errors.unlink(missing_ok=True)
        if lock is not None:
            if paths.state is not None and os.fstat(lock).st_size == 0:
                paths.state.unlink(missing_ok=True)
            os.close(lock)


class Journal:
    """Which requests are settled, and the files that say so. Open it after the input was read."""

    def __init__(self, paths: Paths, contents: Contents, claim: int | None, *, retry_failed: bool) -> None:
        """`claim` is that of `claimed`; `paths.new_errors` holds the faults of the input. Raises UserError if the files
        are another batch's."""
        self._contents = contents
        self._lock = claim
        self.settled = bytearray(len(contents.offsets))
        self.answered = self.failed = 0
        self._check_owner(paths)
        if paths.output is not None:
            self._read_answers(paths.output)
        self._keep_errors(paths, retry_failed=retry_failed)
        self._output = LineFile(paths.output)
        self._errors = LineFile(paths.errors)

    def answer(self, index: int, line: bytes) -> None:
        """A request is answered. Raises DiskFull."""
        self._output.append(line)
        self.settled[index] = 1
        self.answered += 1

    def fail(self, index: int, line: bytes) -> None:
        """A request has failed for good. Raises DiskFull."""
        self._errors.append(line)
        self.settled[index] = 1
        self.failed += 1

    def sync(self) -> None:
        """What was written survives a power cut."""
        self._output.sync()
        self._errors.sync()

    def close(self) -> None:
        """No more lines."""
        self._output.close()
        self._errors.close()

    def _check_owner(self, paths: Paths) -> None:
        if paths.output is None or self._lock is None:
            return
        mine = _State(input_digest=self._contents.digest)
        found = os.pread(self._lock, 4096, 0)
        if not found:
            if paths.output.exists() and paths.output.stat().st_size > 0:
                raise UserError(f"{paths.output} exists and is no batch's output; choose another name or remove it.")
            os.pwrite(self._lock, msgspec.json.encode(mine), 0)
            os.fsync(self._lock)
            return
        try:
            same = msgspec.json.decode(found, type=_State) == mine
        except (msgspec.DecodeError, msgspec.ValidationError):
            raise UserError(f"{paths.state} is damaged; remove it and {paths.output} to begin anew.") from None
        if not same:
            raise UserError(
                f"{paths.output} belongs to a batch with other requests; choose another output, or remove it and "
                f"{paths.state} to begin anew."
            )

    def _read_answers(self, output: Path) -> None:
        for line in _whole_lines(output):
            index = self._index(line, output)
            if index is not None and not self.settled[index]:
                self.settled[index] = 1
                self.answered += 1

    def _keep_errors(self, paths: Paths, *, retry_failed: bool) -> None:
        """The new error file: faults of the input, and of the old one the failures that are not tried again."""
        fresh = LineFile(paths.new_errors)
        try:
            for line in _error_lines(paths.errors):
                if paths.output is not None and not retry_failed:
                    self._keep_error(line, fresh, paths.errors)
            fresh.sync()
        except DiskFull as error:
            raise UserError(f"{error}; free some space and run the command again.") from None
        finally:
            fresh.close()
        os.replace(paths.new_errors, paths.errors)

    def _keep_error(self, line: bytes, fresh: LineFile, path: Path) -> None:
        if _code(line) == FAULT:
            return  # the input still has it, and so has the new file
        index = self._index(line, path)
        if index is not None and not self.settled[index]:
            fresh.append(line)
            self.settled[index] = 1
            self.failed += 1

    def _index(self, line: bytes, path: Path) -> int | None:
        try:
            custom_id = written_id(line)
        except LineFault:
            raise UserError(f"{path} has a line that no batch wrote; choose another output.") from None
        if custom_id is None:
            return None
        index = self._contents.index_of(custom_id)
        if index is None:
            raise UserError(f"{path} answers {custom_id!r}, which is not in the input; choose another output.")
        return index


class _Error(msgspec.Struct):
    code: str = ""


class _ErrorLine(msgspec.Struct):
    error: _Error


def _lock(paths: Paths) -> int | None:
    if paths.state is None:
        return None
    if paths.output is not None and paths.output.exists() and not paths.output.is_file():
        raise UserError(f"{paths.output} is no regular file; give the name of one, or - for standard output.")
    try:
        fd = os.open(paths.state, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"Cannot write {paths.state}: {error.strerror}; choose another place.") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise UserError(
            f"Another canopy batch writes {paths.output} now; wait for it or choose another output."
        ) from None
    return fd


def _error_lines(path: Path) -> Iterator[bytes]:
    """Whole lines of an error file that may not be there. Raises UserError, and changes nothing, if it is no such."""
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            for line in file:
                ours = line.startswith(_ERROR_LINE_BEGIN) or _ERROR_LINE_BEGIN.startswith(line)
                if not ours or (line.endswith(b"\n") and _code(line) is None):
                    raise UserError(f"{path} has a line that no batch wrote; choose another --error-file.")
                if line.endswith(b"\n"):
                    yield line
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}; choose another --error-file.") from None


def _code(line: bytes) -> str | None:
    """Of an error line; None if it is none."""
    try:
        return msgspec.json.decode(line, type=_ErrorLine).error.code
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _whole_lines(path: Path) -> Iterator[bytes]:
    """All lines of a file that may not be there; a torn last one is cut off."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = _end_of_last_line(file.fileno())
        if end < os.fstat(file.fileno()).st_size:
            file.truncate(end)
        yield from file


def _end_of_last_line(fd: int) -> int:
    position = os.fstat(fd).st_size
    while position > 0:
        begin = max(0, position - _BLOCK_BYTES)
        found = os.pread(fd, position - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        position = begin
    return 0
