"""Command-line arguments of the benchmarks that `canopy bench` runs: a fault in them is one sentence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from common.errors import UserError
from common.process import sigterm_as_ctrl_c

STOPPED = 130  # as a shell reports what Ctrl-C has ended


class Arguments(argparse.ArgumentParser):
    """An argument parser that raises UserError. `description` is shown as it is written."""

    def __init__(self, *, prog: str | None, description: str | None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; see {self.prog} --help.")


def run(main: Callable[[], int]) -> NoReturn:
    """Run a program and exit with its code: 2, with the sentence on standard error, for a fault of the user; 130 after
    Ctrl-C or SIGTERM, when all that it started has been ended."""
    try:
        with sigterm_as_ctrl_c():
            sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(STOPPED)
