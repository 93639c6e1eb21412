"""The file that tells whoever started this replica where it is and what it can hold."""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from common.errors import UserError
from worker.ipc.messages import SchedulerReady


def write_ready_file(
    path: Path, *, url: str, scheduler_pid: int, incarnation: str, model: str, ready: SchedulerReady
) -> None:
    """Write it in one piece: it is complete as soon as it exists. Raises UserError."""
    content = {
        "url": url,
        "pid": os.getpid(),
        "scheduler_pid": scheduler_pid,
        "incarnation": incarnation,
        "model": model,
        "max_total_num_tokens": ready.max_total_num_tokens,
        "max_running_requests": ready.max_running_requests,
    }
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(orjson.dumps(content) + b"\n")
        part.replace(path)
    except OSError as error:
        raise UserError(f"--ready-file: cannot write {path}: {error.strerror}.") from None
