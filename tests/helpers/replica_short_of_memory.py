"""`python -m worker` over the scheduler process of tests/helpers/scheduler_short_of_memory.py."""

from __future__ import annotations

import sys

from worker.__main__ import main
from worker.launch import child

if __name__ == "__main__":
    child._MODULE = "tests.helpers.scheduler_short_of_memory"
    sys.exit(main())
