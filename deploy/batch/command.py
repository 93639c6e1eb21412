"""`canopy batch IN OUT`: from arguments to exit code."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.clock import MonotonicClock
from common.errors import UserError
from common.process import raise_file_limit, sigterm_as_ctrl_c
from common.settings import load
from deploy.batch.connection import Connection
from deploy.batch.contents import Contents, read_contents
from deploy.batch.display import Display
from deploy.batch.fleet import own_fleet
from deploy.batch.journal import DiskFull, Journal, LineFile, Paths, claimed
from deploy.batch.lines import FAULT, error_line
from deploy.batch.run import BatchRun, GivenUp, Rules
from deploy.batch.settings import BatchSettings
from deploy.batch.steering import Steering

_SHOWN_FAULTS = 10
_STOPPED = 130  # as a shell reports what Ctrl-C has ended
STDIO = "-"


@dataclass(slots=True)
class Faults:
    """Takes the bad lines of the input: all into the error file, the first few to the screen."""

    file: LineFile
    count: int = 0

    def __call__(self, number: int, custom_id: str | None, sentence: str) -> None:
        self.count += 1
        text = f"line {number}: {sentence}"
        self.file.append(error_line(custom_id, FAULT, text, line=number))
        if self.count <= _SHOWN_FAULTS:
            print(f"canopy batch: {text}", file=sys.stderr)


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run one batch. Returns the exit code. Raises UserError."""
    settings = load(BatchSettings, _with_flags(argv), env, prog="canopy batch").settings
    if not settings.input or not settings.output:
        raise UserError(
            "canopy batch needs two files: canopy batch IN.jsonl OUT.jsonl; - stands for the standard streams."
        )
    raise_file_limit()
    paths = _paths(settings)
    try:
        with sigterm_as_ctrl_c():
            return _batch(settings, paths)
    except KeyboardInterrupt:
        print(f"canopy batch: stopped; {_again(settings)}", file=sys.stderr)
        return _STOPPED


def _batch(settings: BatchSettings, paths: Paths) -> int:
    with _input(settings.input) as path, claimed(paths) as claim:
        contents, faults = _read(path, paths)
        journal = Journal(paths, contents, claim, retry_failed=settings.retry_failed)
        try:
            code = _run(settings, contents, journal)
        finally:
            journal.close()
    if faults:
        print(f"canopy batch: {faults} bad lines; see {paths.errors}.", file=sys.stderr)
    if journal.failed:
        print(
            f"canopy batch: {journal.failed} of the requests failed; see {paths.errors}"
            + ("; --retry-failed sends them again." if paths.output is not None else "."),
            file=sys.stderr,
        )
    if not faults and not journal.failed:
        paths.errors.unlink(missing_ok=True)
    return code or int(bool(faults or journal.failed))


def _with_flags(argv: Sequence[str]) -> list[str]:
    """The two positional arguments, in front of the flags or behind them, as flags."""
    names = iter(("--input", "--output"))
    flags, left = [], list(argv)
    if len(left) > 2 and all(map(_is_file, left[-2:])) and not _is_file(left[0]):
        left = [*left[-2:], *left[:-2]]
    while left and _is_file(left[0]):
        name = next(names, None)
        if name is None:
            raise UserError(f"canopy batch takes two files, and {left[0]!r} is a third.")
        flags.append(f"{name}={left.pop(0)}")
    return flags + left


def _is_file(word: str) -> bool:
    return word == STDIO or not word.startswith("-")


def _paths(settings: BatchSettings) -> Paths:
    """Raises UserError if two of the files are one."""
    output = None if settings.output == STDIO else Path(settings.output)
    if settings.error_file is not None:
        errors = Path(settings.error_file)
    elif output is None:
        errors = Path("canopy-batch.errors.jsonl")
    else:
        errors = output.with_name(f"{output.name.removesuffix('.jsonl')}.errors.jsonl")
    files = [errors.resolve(), *(Path(name).resolve() for name in (settings.input, settings.output) if name != STDIO)]
    if len(set(files)) < len(files):
        raise UserError("IN, OUT and the error file must be different files.")
    return Paths(output, errors)


@contextlib.contextmanager
def _input(name: str) -> Iterator[Path]:
    """A file that can be read twice; standard input and pipes are copied to one first. Raises UserError."""
    path = Path(name)
    if name != STDIO and path.is_file():
        yield path
        return
    if name != STDIO and not path.is_fifo():
        raise UserError(f"There is no file {name}; give a file with one JSON request a line.")
    with tempfile.NamedTemporaryFile(prefix="canopy-batch-", suffix=".jsonl") as copy:
        with contextlib.nullcontext(sys.stdin.buffer) if name == STDIO else path.open("rb") as source:
            shutil.copyfileobj(source, copy)
        copy.flush()
        yield Path(copy.name)


def _read(path: Path, paths: Paths) -> tuple[Contents, int]:
    """The requests, and the number of bad lines, which are in the coming error file."""
    file = LineFile(paths.new_errors)
    faults = Faults(file)
    try:
        contents = read_contents(path, faults)
    except DiskFull as error:
        raise UserError(f"{error}; free some space and run the command again.") from None
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    finally:
        file.close()
    if not len(contents.order) and not faults.count:
        raise UserError(f"{path} holds no requests.")
    return contents, faults.count


def _again(settings: BatchSettings) -> str:
    return "run it again from the start." if settings.output == STDIO else "run the same command to go on."


def _run(settings: BatchSettings, contents: Contents, journal: Journal) -> int:
    total, settled = len(contents.order), journal.answered + journal.failed
    if settled:
        print(f"canopy batch: {settled} of {total} were settled before.", file=sys.stderr)
    if settled == total:
        return 0
    clock = MonotonicClock()
    with own_fleet(settings.serve) as started:
        display = Display(clock, total=total, settled=settled, shown=settings.progress)
        try:
            return asyncio.run(_send(settings, contents, journal, display, started or settings.base_url, clock))
        except (GivenUp, DiskFull) as error:
            print(f"canopy batch: {error}; {_again(settings)}", file=sys.stderr)
            return 1
        finally:
            display.close()


async def _send(
    settings: BatchSettings, contents: Contents, journal: Journal, display: Display, url: str, clock: MonotonicClock
) -> int:
    steering = Steering(
        target_waiting=settings.target_waiting,
        without_report=settings.without_report if settings.steer else settings.max_concurrency,
        max_in_flight=settings.max_concurrency,
    )
    rules = Rules(steer=settings.steer, patience_s=settings.patience_s)
    async with Connection(url, settings.api_key, answer_timeout_s=settings.answer_timeout_s) as connection:
        run = BatchRun(contents, journal, connection, steering, display, clock, rules)
        await run.run()
    display.update(run.tally, (), 0)
    display.close()
    display.line(display.summary(run.tally))
    return 0
