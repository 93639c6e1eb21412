"""The loop of the scheduler process: take what has arrived, step, wait when there is nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from worker.ipc.messages import FrontendMessage
from worker.scheduler.core import Scheduler


def run(scheduler: Scheduler, receive: Callable[[], Iterable[FrontendMessage]], wait: Callable[[], None]) -> None:
    """Run until Shutdown. `receive` gives the messages that have arrived, without waiting; `wait` returns when there is
    one. Raises AssertionError if the KV pool has leaked when the replica falls idle."""
    while True:
        for message in receive():
            scheduler.handle(message)
        if scheduler.shut_down:
            return
        if not scheduler.step():
            scheduler.on_idle()
            wait()
