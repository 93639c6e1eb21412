"""`python -m gateway` and `canopy gateway`: serve many workers behind one address."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from common import logs
from common.errors import UserError
from common.process import set_title
from common.settings import load
from gateway.allocator import use_jemalloc
from gateway.config import GatewaySettings
from gateway.server import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run a gateway until it is told to stop. Returns the exit code: 0, 1 if it broke, 2 for a fault of the user."""
    if argv is None:
        use_jemalloc()
    arguments = sys.argv[1:] if argv is None else argv
    try:
        settings = load(GatewaySettings, arguments, os.environ, prog="canopy gateway").settings
        set_title("canopy-gateway")
        logs.setup(settings.log_level, settings.log_format, process="gateway")
        return run(settings)
    except UserError as error:
        print(f"canopy gateway: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
