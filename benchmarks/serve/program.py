"""The program: options, one run, its report."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.serve import workloads
from benchmarks.serve.client import BACKENDS, Client, Outcome
from benchmarks.serve.results import Goal, summary, table
from benchmarks.serve.workloads import Ask, Vocabulary
from common.clock import MonotonicClock
from common.errors import UserError

DATASETS = ("random-ids", "generated-shared-prefix", "mooncake", "azure")
_GOALS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e_latency"}


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """Run it. Returns the exit code: 1 if a request failed. Raises UserError for a fault of the user."""
    options = parser(prog).parse_args(argv)
    _check(options)
    outcomes, duration_s = asyncio.run(_run(options))
    figures = _described(options) | summary(outcomes, duration_s, _goal(options.goodput))
    print(json.dumps(figures) if options.json else table(figures))
    for error in sorted({outcome.error for outcome in outcomes if not outcome.success})[:5]:
        print(f"failed: {error}")
    if options.output_file:
        _append(Path(options.output_file), figures, outcomes if options.output_details else None)
    return 1 if figures["failed"] else 0


def parser(prog: str | None = None) -> argparse.ArgumentParser:
    """Flags as other serving benchmarks have them."""
    made = argparse.ArgumentParser(prog=prog, description=__doc__, allow_abbrev=False)
    target = made.add_argument_group("target")
    target.add_argument("--backend", choices=BACKENDS, default="canopy", help="whose fields and paths")
    target.add_argument("--base-url", help="http://host:port; without it from --host and --port")
    target.add_argument("--host", default="127.0.0.1")
    target.add_argument("--port", type=int, default=8000)
    target.add_argument("--model", help="without it the first that /v1/models lists")
    load = made.add_argument_group("load")
    load.add_argument("--dataset-name", choices=DATASETS, default="random-ids")
    load.add_argument("--dataset-path", help="trace file of mooncake and azure; .gz is read too")
    load.add_argument("--num-prompts", type=int, default=1000)
    load.add_argument("--random-input-len", type=int, default=1024)
    load.add_argument("--random-output-len", type=int, default=1024)
    load.add_argument("--random-range-ratio", type=float, default=0.0, help="shortest length / longest")
    load.add_argument("--gsp-num-groups", type=int, default=64)
    load.add_argument("--gsp-prompts-per-group", type=int, default=16)
    load.add_argument("--gsp-system-prompt-len", type=int, default=2048)
    load.add_argument("--gsp-question-len", type=int, default=128)
    load.add_argument("--gsp-output-len", type=int, default=256)
    load.add_argument("--token-ids", type=int, nargs=2, default=(1000, 30_000), metavar=("LOW", "HIGH"))
    load.add_argument("--request-rate", type=float, default=float("inf"), help="a second; inf = all at once")
    load.add_argument("--burstiness", type=float, default=1.0, help="1 = Poisson, less = bursts, more = even")
    load.add_argument("--use-trace-timestamps", action="store_true", help="requests come when the trace has them")
    load.add_argument("--trace-speed", type=float, default=1.0, help="times faster than the trace")
    load.add_argument("--max-concurrency", type=int, help="requests in flight at most")
    load.add_argument("--warmup-requests", type=int, default=1)
    load.add_argument("--flush-cache", action="store_true", help="POST /flush_cache after the warm-up")
    load.add_argument("--disable-stream", action="store_true")
    load.add_argument("--disable-ignore-eos", action="store_true")
    load.add_argument("--temperature", type=float, default=0.0)
    load.add_argument("--extra-request-body", type=json.loads, default={}, help="JSON object of sampling fields")
    load.add_argument("--seed", type=int, default=42)
    report = made.add_argument_group("report")
    report.add_argument("--goodput", nargs="+", metavar="NAME:MS", help="limits, e.g. ttft:500 tpot:50")
    report.add_argument("--output-file", help="append a JSON line")
    report.add_argument("--output-details", action="store_true", help="with each request's figures")
    report.add_argument("--tag", help="kept in the JSON")
    report.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    report.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
    report.add_argument("--timeout-s", type=float, default=3600, help="a request may take")
    return made


def _check(options: argparse.Namespace) -> None:
    if options.dataset_name in ("mooncake", "azure") and not options.dataset_path:
        raise UserError(f"--dataset-name {options.dataset_name} needs --dataset-path.")
    if options.use_trace_timestamps and options.dataset_name not in ("mooncake", "azure"):
        raise UserError("--use-trace-timestamps needs a trace: --dataset-name mooncake or azure.")
    for name in ("num_prompts", "random_input_len", "random_output_len", "request_rate", "burstiness", "trace_speed"):
        if getattr(options, name) <= 0:
            raise UserError(f"--{name.replace('_', '-')} must be greater than 0.")
    if not 0 <= options.random_range_ratio <= 1:
        raise UserError("--random-range-ratio must lie between 0 and 1.")
    if not isinstance(options.extra_request_body, dict):
        raise UserError("--extra-request-body must be a JSON object.")
    _goal(options.goodput)


def _goal(words: Sequence[str] | None) -> Goal | None:
    if not words:
        return None
    limits = {}
    for word in words:
        name, _, limit = word.partition(":")
        try:
            limits[_GOALS[name]] = float(limit)
        except (KeyError, ValueError):
            raise UserError(f"--goodput: {word!r} is not one of {', '.join(_GOALS)} with a limit in ms.") from None
    return Goal(limits)


def asks_of(options: argparse.Namespace) -> list[Ask]:
    """The workload that the options describe."""
    rng, ids = np.random.default_rng(options.seed), Vocabulary(*options.token_ids)
    count = options.num_prompts
    if options.dataset_name == "random-ids":
        lengths = options.random_input_len, options.random_output_len, options.random_range_ratio
        return workloads.random_ids(rng, count, *lengths, ids)
    if options.dataset_name == "generated-shared-prefix":
        groups = options.gsp_num_groups, options.gsp_prompts_per_group
        lengths = options.gsp_system_prompt_len, options.gsp_question_len, options.gsp_output_len
        return workloads.shared_prefixes(rng, *groups, *lengths, ids)
    path = Path(options.dataset_path)
    if options.dataset_name == "mooncake":
        return workloads.mooncake(path, count, ids)
    return workloads.azure(rng, path, count, ids)


async def _run(options: argparse.Namespace) -> tuple[list[Outcome], float]:
    """All outcomes, and seconds from the first request to the last answer."""
    asks = asks_of(options)
    rng = np.random.default_rng(options.seed + 1)
    rate = None if options.request_rate == float("inf") else options.request_rate
    due = workloads.arrivals(rng, asks, rate, options.burstiness)
    if options.use_trace_timestamps:
        due = [(ask.due_s or 0.0) / options.trace_speed for ask in asks]
    clock = MonotonicClock()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=options.timeout_s, connect=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=_key()) as session:
        client = await _client(options, session, clock)
        for ask in asks[: options.warmup_requests]:
            _must_succeed(await client.send(Ask(ask.input_ids[:8], min(8, ask.output_tokens))))
        if options.flush_cache:
            await _flush(session, client.base_url)
        return await _timed(client, asks, due, options)


async def _timed(
    client: Client, asks: Sequence[Ask], due: Sequence[float], options: argparse.Namespace
) -> tuple[list[Outcome], float]:
    gate = asyncio.Semaphore(options.max_concurrency or len(asks) or 1)
    begin = client.clock.now_s()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=options.disable_tqdm) as progress:
        task = progress.add_task("requests", total=len(asks))

        async def one(ask: Ask, due_s: float) -> Outcome:
            await asyncio.sleep(begin + due_s - client.clock.now_s())
            async with gate:
                outcome = await client.send(ask)
            progress.advance(task)
            return outcome

        outcomes = await asyncio.gather(*(one(ask, due_s) for ask, due_s in zip(asks, due, strict=True)))
    return outcomes, client.clock.now_s() - begin


async def _client(options: argparse.Namespace, session: aiohttp.ClientSession, clock: MonotonicClock) -> Client:
    base_url = (options.base_url or f"http://{options.host}:{options.port}").rstrip("/")
    extra = {"temperature": options.temperature, "ignore_eos": not options.disable_ignore_eos}
    return Client(
        session=session,
        base_url=base_url,
        api=BACKENDS[options.backend],
        model=options.model or await _first_model(session, base_url),
        stream=not options.disable_stream,
        extra=extra | options.extra_request_body,
        clock=clock,
    )


async def _first_model(session: aiohttp.ClientSession, base_url: str) -> str:
    try:
        async with session.get(f"{base_url}/v1/models") as response:
            response.raise_for_status()
            return str((await response.json())["data"][0]["id"])
    except (aiohttp.ClientError, OSError, KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"{base_url}/v1/models names no model ({error}); is the server up? Else give --model."
        ) from None


async def _flush(session: aiohttp.ClientSession, base_url: str) -> None:
    async with session.post(f"{base_url}/flush_cache") as response:
        if response.status != 200:
            raise UserError(f"--flush-cache: the server answered {response.status}.")


def _must_succeed(outcome: Outcome) -> None:
    if not outcome.success:
        raise UserError(f"The warm-up request failed: {outcome.error}")


def _key() -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    return {"authorization": f"Bearer {key}"} if key else {}


def _described(options: argparse.Namespace) -> dict[str, Any]:
    kept = ("tag", "backend", "dataset_name", "num_prompts", "max_concurrency", "random_input_len", "random_output_len")
    rate = None if options.request_rate == float("inf") else options.request_rate
    found = {name: getattr(options, name) for name in kept}
    return found | {"request_rate": rate if rate is not None else "inf", "time": datetime.now(UTC).isoformat()}


def _append(path: Path, figures: dict[str, Any], details: Sequence[Outcome] | None) -> None:
    if details is not None:
        figures = figures | {
            "input_lens": [o.input_tokens for o in details],
            "output_lens": [o.output_tokens for o in details],
            "ttfts": [o.ttft_s for o in details],
            "itls": [o.itls_s for o in details],
            "errors": [o.error for o in details],
        }
    try:
        with path.open("a") as file:
            file.write(json.dumps(figures) + "\n")
    except OSError as error:
        raise UserError(f"--output-file: cannot write {path}: {error.strerror}.") from None
