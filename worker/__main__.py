"""`python -m worker`, the same as `canopy worker`: serves one replica."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Sequence

import uvloop

from common import logs
from common.errors import UserError
from common.process import bind_port, set_title
from common.settings import load
from worker.config import WorkerSettings
from worker.preflight import check_before_loading


def main(argv: Sequence[str] | None = None) -> int:
    """Run one replica; its exit code is 0 after a stop, 1 after a failure, 2 if the user is at fault."""
    try:
        settings = load(
            WorkerSettings, sys.argv[1:] if argv is None else argv, os.environ, prog="canopy worker"
        ).settings
        return serve(settings)
    except UserError as error:
        print(f"canopy worker: {error}", file=sys.stderr)
        return 2


def serve(settings: WorkerSettings) -> int:
    """Take the port, then start the replica in this process, which from now on cannot import torch: the frontend does
    not need it, and Transformers would spend seconds and a quarter of a gigabyte on it."""
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # how Python says "not importable"
    from worker.launch.replica import Replica

    check_before_loading(settings)
    set_title("canopy-frontend")
    logs.setup(settings.log_level, settings.log_format, process="frontend", http_level=settings.log_level_http)
    if settings.gc_threshold is not None:
        gc.set_threshold(*settings.gc_threshold)
    with bind_port(settings.host, settings.port) as listener:

        async def run() -> int:
            return await Replica(settings, listener).run()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run())


if __name__ == "__main__":
    sys.exit(main())
