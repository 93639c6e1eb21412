"""`python -m benchmarks.serve`."""

from __future__ import annotations

import sys

from benchmarks.serve.program import main
from common.errors import UserError

if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as fault:
        print(f"benchmarks.serve: {fault}", file=sys.stderr)
        sys.exit(2)
