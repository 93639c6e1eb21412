"""The program: from options to runs, their figures, and where they go."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import uvloop

from benchmarks.serve import schedule
from benchmarks.serve.backends import generates
from benchmarks.serve.connection import connected, flush_cache, server_info, wait_ready, warm_up
from benchmarks.serve.display import shown
from benchmarks.serve.load import Load, Run
from benchmarks.serve.options import parse
from benchmarks.serve.results import details, notes, summary
from benchmarks.serve.selection import Loaded, loaded
from benchmarks.serve.table import levels, table
from benchmarks.serve.workloads import Session
from common.errors import UserError

_DESCRIBED = (
    *("tag", "backend", "dataset_name", "dataset_path", "num_prompts", "seed", "disable_stream"),
    *("random_input_len", "random_output_len", "random_range_ratio", "sharegpt_output_len"),
    *("burstiness", "trace_speed", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps"),
)
_GROUPS = {"generated-shared-prefix": "gsp_", "conversation": "conv_"}


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """Run it. Returns the exit code: 1 if a request failed. Raises UserError for a fault of the user."""
    options = parse(argv, prog)
    _check_output(options)
    records = uvloop.run(_all(options))
    if len(records) > 1 and not options.json:
        print(levels(records))
    return 1 if any(record["failed"] for record in records) else 0


async def _all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of all levels, each printed and kept as soon as it is there."""
    content, records = loaded(options), []
    async with connected(options) as target:
        await wait_ready(target, options.ready_check_timeout_sec)
        client = await target.client(options)
        info = await server_info(target)
        for number, (rate, bound) in enumerate(_levels(options)):
            sessions = content.sessions(options.seed + number)
            if number == 0:
                await warm_up(client, sessions[: options.warmup_requests])
            if options.flush_cache:
                await flush_cache(target)
            load = Load(client, sessions, _due(options, sessions, rate, options.seed + number), bound)
            async with shown(load.tally, _title(rate, bound), client.clock, disable=options.disable_tqdm):
                run = await load.run()
            record = _record(options, rate, bound, run, content) | {"server_info": info, "model": client.wishes.model}
            _publish(options, record, run)
            records.append(record)
    return records


def _levels(options: argparse.Namespace) -> list[tuple[float, int | None]]:
    """Rate and bound of each run."""
    bounds = options.max_concurrency or [None]
    return [(rate, bound) for rate in options.request_rate for bound in bounds]


def _due(options: argparse.Namespace, sessions: Sequence[Session], rate: float, seed: int) -> Sequence[float]:
    rng = np.random.default_rng(seed + 1_000_003)  # apart from the prompts' numbers
    if options.use_trace_timestamps:
        return [(session.due_s or 0.0) / options.trace_speed for session in sessions]
    if options.ramp is not None:
        return list(schedule.ramped(rng, len(sessions), options.ramp, options.burstiness))
    if rate == float("inf"):
        return list(schedule.all_at_once(len(sessions)))
    return list(schedule.at_rate(rng, len(sessions), rate, options.burstiness))


def _title(rate: float, bound: int | None) -> str:
    """Of the progress bar."""
    parts = [f"{rate:g}/s"] if rate != float("inf") else []
    return " ".join([*parts, *([f"c={bound}"] if bound else [])]) or "requests"


def _record(options: argparse.Namespace, rate: float, bound: int | None, run: Run, content: Loaded) -> dict[str, Any]:
    """One line of the output file, without details."""
    paced = rate != float("inf") or options.use_trace_timestamps or options.ramp is not None
    found = {name: getattr(options, name) for name in _DESCRIBED} | {"num_prompts": run.planned}
    prefix = _GROUPS.get(options.dataset_name)
    found |= {name: value for name, value in vars(options).items() if prefix and name.startswith(prefix)}
    found |= {"request_rate": rate if rate != float("inf") else _pace(options), "max_concurrency": bound}
    found |= {"time": datetime.now(UTC).isoformat(), "client": f"canopy {metadata.version('canopy-serve')}"}
    found |= {"client_host": f"{platform.machine()}, Python {platform.python_version()}"}
    figures = summary(run, options.goal, content.count_tokens, generates=generates(options.backend))
    if not paced:
        figures |= {"mean_send_delay_ms": None, "p99_send_delay_ms": None}
    return found | figures | {"notes": notes(run, paced=paced, max_concurrency=bound)}


def _pace(options: argparse.Namespace) -> str:
    """What stands in the place of a rate."""
    if options.use_trace_timestamps:
        return "trace"
    return "ramp" if options.ramp is not None else "inf"


def _publish(options: argparse.Namespace, record: dict[str, Any], run: Run) -> None:
    if options.output_file:
        line = orjson.dumps(record | (details(run) if options.output_details else {}))
        try:
            with Path(options.output_file).open("ab") as file:
                file.write(line + b"\n")
        except OSError as error:
            raise _unwritable(options.output_file, error) from None
    print(json.dumps(record) if options.json else table(record), flush=True)
    if not options.json:
        for fault in sorted({outcome.error for outcome in run.outcomes if not outcome.success})[:5]:
            print(f"failed: {fault}")


def _check_output(options: argparse.Namespace) -> None:
    """Before the load, not after it."""
    if options.output_file:
        try:
            Path(options.output_file).open("ab").close()
        except OSError as error:
            raise _unwritable(options.output_file, error) from None


def _unwritable(path: str, error: OSError) -> UserError:
    return UserError(f"--output-file: cannot write {path}: {error.strerror}.")
