"""The scheduler process: `python -m worker.launch.scheduler_process IPC_DIRECTORY PARENT_PID`, settings JSON on stdin.

It leaves its loop when told to, and dies with its parent. Signals of the terminal are the parent's business.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from common import logs
from common.errors import UserError
from common.paths import cache_root
from common.process import die_with_parent, set_title
from worker.config import WorkerSettings
from worker.ipc.channel import SchedulerChannel
from worker.ipc.messages import FrontendMessage, ModelFound, SchedulerFailed
from worker.launch.child import EXIT_FAILED, EXIT_USER_FAULT
from worker.launch.watchdog import Watchdog

log = logging.getLogger(__name__)

GC_THRESHOLD = 50_000  # new objects between two collections: a step makes thousands, nearly all freed by count
_FOREVER_S = 3600.0  # an idle scheduler looks at its socket this often


def main(argv: Sequence[str]) -> int:
    """Run until told to stop, or something is wrong: that is reported first, then the exit code says it too."""
    directory, parent_pid = argv
    die_with_parent(int(parent_pid))
    set_title("canopy-scheduler")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    settings = WorkerSettings.model_validate_json(sys.stdin.read())
    logs.setup(settings.log_level, settings.log_format, process="scheduler")
    channel = SchedulerChannel(Path(directory))
    try:
        serve(settings, channel)
        return 0
    except UserError as error:
        channel.send(SchedulerFailed(message=str(error), user_fault=True))
        return EXIT_USER_FAULT
    except Exception as error:
        log.exception("The scheduler hit an exception")
        text = f"The scheduler failed: {type(error).__name__}: {error}"
        channel.send(SchedulerFailed(message=text, user_fault=False))
        return EXIT_FAILED
    finally:
        channel.close()


def serve(settings: WorkerSettings, channel: SchedulerChannel) -> None:
    """Find and load the model, say so, and run the scheduler's loop until Shutdown."""
    from worker.models.paths import resolve_model_path

    path = resolve_model_path(settings.model_path, cache_root(os.environ), settings.revision, settings.download_dir)
    channel.send(ModelFound(path=str(path)))

    from worker.assembly import running_scheduler  # imports torch: not before the path is known to be good
    from worker.scheduler.loop import run

    with running_scheduler(
        settings.model_copy(update={"model_path": str(path), "revision": None}), channel.send
    ) as scheduler:
        watchdog = Watchdog(settings.watchdog_timeout_s)

        def receive() -> list[FrontendMessage]:
            watchdog.alive()
            return channel.drain()

        def wait() -> None:
            watchdog.rest()
            channel.wait(_FOREVER_S)

        gc.freeze()  # the model's objects stay; looking at them again and again would cost every step
        gc.set_threshold(*(settings.gc_threshold or [GC_THRESHOLD]))
        channel.send(scheduler.ready_message())
        run(scheduler, receive, wait)
        watchdog.rest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
