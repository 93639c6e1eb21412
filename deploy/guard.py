"""`python -m deploy.guard [--remove DIR] -- COMMAND`: runs a command whose whole tree ends when our parent does.

The parent holds our stdin open and never writes. The replica actor starts its worker through this, the launcher the
gateway: a SIGKILL of any process in between leaves nothing behind.
"""

from __future__ import annotations

import shutil
import sys

from deploy.processes import supervise


def main(argv: list[str]) -> int:
    """Run the command after `--`; afterwards remove the directory named by `--remove`. Returns its exit code."""
    split = argv.index("--")
    options, command = argv[:split], argv[split + 1 :]
    try:
        return supervise(command, lifeline=0)
    finally:
        if options:
            shutil.rmtree(options[1], ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
