"""`python -m deploy.guard [--remove DIR] [--offer PATH] -- COMMAND`: runs a command whose whole tree ends when our
parent does; with `--offer` it first waits a while for a successor (deploy/handover.py).

The parent holds our stdin open and never writes. The replica actor starts its worker through this, the launcher the
gateway: a SIGKILL of any process in between leaves nothing behind.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from common.process import listening_fds
from deploy.handover import Offer
from deploy.processes import supervise


def guarded(command: list[str], *, remove: list[Path], offer: Path | None = None) -> list[str]:
    """The command line that runs `command` under a guard, which afterwards removes those files and directories. With
    `offer` the command's listening socket is offered at that Unix socket."""
    options = [word for path in remove for word in ("--remove", str(path))]
    if offer is not None:
        options += ["--offer", str(offer)]
    # -P: the caller's directory may hold packages called like ours
    return [sys.executable, "-P", "-m", "deploy.guard", *options, "--", *command]


def main(argv: list[str]) -> int:
    """Run the command after `--`, then remove what `--remove` names. Returns the command's exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.guard")
    parser.add_argument("--remove", type=Path, action="append", default=[])
    parser.add_argument("--offer", type=Path)
    split = argv.index("--")
    options = parser.parse_args(argv[:split])
    fds = listening_fds(os.environ)
    try:
        offer = Offer(options.offer, fds[0] if fds else None) if options.offer else None
        return supervise(argv[split + 1 :], lifeline=0, pass_fds=fds, offer=offer).code
    finally:
        for path in options.remove:
            remove_all(path)


def remove_all(path: Path) -> None:
    """Remove a file or a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
