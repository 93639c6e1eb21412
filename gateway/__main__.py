"""`python -m gateway` and `canopy gateway`: serve many workers behind one address."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from common.errors import UserError
from common.settings import load
from gateway.config import GatewaySettings
from gateway.server import run

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a gateway until it is told to stop. Returns the exit code: 0, or 2 for a fault of the user."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        settings = load(GatewaySettings, arguments, os.environ, prog="canopy gateway").settings
        logging.basicConfig(level=settings.log_level.upper(), format=_LOG_FORMAT)
        run(settings)
    except UserError as error:
        print(f"canopy gateway: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
