"""The flags of `canopy bench serve`, named as other serving benchmarks name theirs, and their checks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from benchmarks.arguments import Arguments
from benchmarks.serve.backends import BACKENDS, generates, is_chat, is_native
from benchmarks.serve.results import Goal
from benchmarks.serve.schedule import Ramp, RampStrategy
from common.errors import UserError

TRACES = ("trace", "mooncake", "azure")
FILES = ("custom", "sharegpt", "openai")
DATASETS = ("random-ids", "random", "generated-shared-prefix", "conversation", *TRACES, *FILES)
_GOALS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e_latency"}
_POSITIVE = (
    *("num_prompts", "random_input_len", "random_output_len", "burstiness", "trace_speed", "timeout_s"),
    *("gsp_num_groups", "gsp_prompts_per_group", "gsp_system_prompt_len", "gsp_question_len", "gsp_output_len"),
    *("conv_num_sessions", "conv_num_system_prompts", "conv_system_prompt_len"),
)
_REFUSED = {
    "--profile": "take a trace of the server itself",
    "--lora-name": "Canopy serves no adapters",
    "--plot-throughput": "append runs by --output-file and draw them by `canopy bench report`",
    "--pd-separated": "Canopy does not separate prefill and decode",
    "--apply-chat-template": "use a backend that takes chats, such as --backend canopy-chat",
    "--return-logprob": "give the field by --extra-request-body",
    "--endpoint": "the path is that of --backend",
    "--save-result": "give --output-file FILE",
    "--result-dir": "give --output-file FILE",
    "--result-filename": "give --output-file FILE",
    "--percentile-metrics": "all latencies have p90, p95 and p99, and more among `quantiles` of --output-file",
    "--metric-percentiles": "all latencies have p90, p95 and p99, and more among `quantiles` of --output-file",
    "--num-warmups": "give --warmup-requests",
    "--random-prefix-len": "give --dataset-name generated-shared-prefix",
}


def parse(argv: Sequence[str] | None, prog: str | None) -> argparse.Namespace:
    """The options, checked. Raises UserError."""
    options = _parser(prog).parse_args(argv)
    for flag, advice in _REFUSED.items():
        if getattr(options, flag[2:].replace("-", "_")) is not None:
            raise UserError(f"canopy bench serve has no {flag}: {advice}.")
    _check_numbers(options)
    _check_load(options)
    _check_prompts(options)
    options.goal = _goal(options.goodput, generates(options.backend))
    options.ramp = _ramp(options)
    return options


def _parser(prog: str | None) -> Arguments:
    made = Arguments(
        prog=prog,
        description="Load on a running server or gateway, and its figures; docs/benchmarking.md explains them.",
    )
    made.usage = "%(prog)s [flags]"
    _add_target(made)
    _add_datasets(made)
    _add_load(made)
    _add_requests(made)
    _add_report(made)
    for flag in _REFUSED:
        made.add_argument(flag, nargs="?", const="", help=argparse.SUPPRESS)
    return made


def _add_target(made: Arguments) -> None:
    group = made.add_argument_group("target")
    group.add_argument("--backend", choices=BACKENDS, default="canopy", help="whose paths and fields")
    group.add_argument("--base-url", help="http://host:port; without it from --host and --port")
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--model", help="without it the first that /v1/models lists")
    group.add_argument("--served-model-name", help="what requests call the model, if not --model")
    group.add_argument("--tokenizer", help="directory or hub id: prompts are sent as text, answers counted anew")
    group.add_argument("--tokenize-prompt", action="store_true", help="token ids in spite of --tokenizer")
    group.add_argument("--ready-check-timeout-sec", type=float, default=60, help="waits so long for the server")


def _add_datasets(made: Arguments) -> None:
    group = made.add_argument_group("dataset")
    group.add_argument(
        "--dataset-name", choices=DATASETS, default="random-ids", metavar="NAME", help=", ".join(DATASETS)
    )
    group.add_argument("--dataset-path", help="file of a trace or dataset; .gz and .xz are read too")
    group.add_argument("--num-prompts", type=int, default=1000, help="requests; of conversations see below")
    group.add_argument("--random-input-len", type=int, default=1024)
    group.add_argument("--random-output-len", type=int, default=1024)
    group.add_argument("--random-range-ratio", type=float, default=0.0, help="shortest length / longest")
    group.add_argument("--gsp-num-groups", type=int, default=64)
    group.add_argument("--gsp-prompts-per-group", type=int, default=16)
    group.add_argument("--gsp-system-prompt-len", type=int, default=2048)
    group.add_argument("--gsp-question-len", type=int, default=128)
    group.add_argument("--gsp-output-len", type=int, default=256)
    group.add_argument("--gsp-group-distribution", choices=("uniform", "zipf"), default="uniform")
    group.add_argument("--conv-num-sessions", type=int, default=64)
    between: dict[str, Any] = {"type": int, "nargs": 2, "metavar": ("LEAST", "MOST")}
    group.add_argument("--conv-turns", default=(2, 5), **between)
    group.add_argument("--conv-num-system-prompts", type=int, default=8, help="each session begins with one of them")
    group.add_argument("--conv-system-prompt-len", type=int, default=1024)
    group.add_argument("--conv-user-len", default=(64, 192), **between)
    group.add_argument("--conv-output-len", default=(64, 192), **between)
    group.add_argument("--conv-pause-s", type=float, default=1.0, help="mean, from an answer to the next turn")
    group.add_argument(
        "--sharegpt-output-len", "--custom-output-len", type=int, help="of all answers to a file's prompts"
    )
    group.add_argument("--sharegpt-context-len", type=int, help="longer ones of a file are left out; needs --tokenizer")
    group.add_argument(
        "--token-ids", type=int, nargs=2, default=(1000, 30_000), metavar=("LOW", "HIGH"), help="of prompts"
    )
    group.add_argument("--seed", type=int, default=42)


def _add_load(made: Arguments) -> None:
    group = made.add_argument_group("load")
    group.add_argument(
        "--request-rate",
        type=float,
        nargs="+",
        default=[float("inf")],
        help="a second; inf = all at once; several: a sweep",
    )
    group.add_argument("--burstiness", type=float, default=1.0, help="1 = Poisson, less = bursts, more = even")
    group.add_argument("--max-concurrency", type=int, nargs="+", help="requests in flight at most; several: a sweep")
    group.add_argument("--ramp-up-strategy", choices=[strategy.value for strategy in RampStrategy])
    group.add_argument("--ramp-up-start-rps", type=float)
    group.add_argument("--ramp-up-end-rps", type=float)
    group.add_argument("--use-trace-timestamps", action="store_true", help="requests come when the trace has them")
    group.add_argument("--trace-speed", type=float, default=1.0, help="times faster than the trace")
    group.add_argument("--warmup-requests", type=int, default=1)
    group.add_argument("--flush-cache", action="store_true", help="POST /flush_cache before each run")


def _add_requests(made: Arguments) -> None:
    group = made.add_argument_group("requests")
    group.add_argument("--disable-stream", action="store_true")
    group.add_argument("--disable-ignore-eos", action="store_true", help="answers may end before their length")
    group.add_argument("--temperature", type=float, default=0.0)
    group.add_argument("--top-p", type=float, default=1.0)
    group.add_argument("--extra-request-body", type=_object, default={}, metavar="JSON", help="merged into every body")
    group.add_argument("--timeout-s", type=float, default=3600, help="a request may take")


def _add_report(made: Arguments) -> None:
    group = made.add_argument_group("report")
    group.add_argument(
        "--goodput", nargs="+", metavar="NAME:MS", help="limits of ttft, tpot, itl, e2el: ttft:500 tpot:50"
    )
    group.add_argument("--output-file", help="append a JSON line for each run; `canopy bench report` compares them")
    group.add_argument("--output-details", action="store_true", help="with each request's figures")
    group.add_argument("--tag", help="kept in the JSON; the name of the run in reports")
    group.add_argument("--json", action="store_true", help="JSON objects on standard output instead of the table")
    group.add_argument("--cache-report", action="store_true", help="taken and not needed: hits are always shown")
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text}")
    return found


def _check_numbers(options: argparse.Namespace) -> None:
    for name in _POSITIVE:
        if getattr(options, name) <= 0:
            raise UserError(f"--{name.replace('_', '-')} must be greater than 0.")
    for name in ("request_rate", "max_concurrency"):
        if min(getattr(options, name) or [1]) <= 0:
            raise UserError(f"--{name.replace('_', '-')} must be greater than 0.")
    for name in ("conv_turns", "conv_user_len", "conv_output_len", "token_ids"):
        low, high = getattr(options, name)
        if not 0 <= low <= high or high == 0 or (low == 0 and name != "token_ids"):
            raise UserError(f"--{name.replace('_', '-')} takes two numbers above 0, the smaller one first.")
    if options.token_ids[0] == options.token_ids[1]:
        raise UserError("--token-ids must hold more than no id: LOW is the first, HIGH the one after the last.")
    if not 0 <= options.random_range_ratio <= 1:
        raise UserError("--random-range-ratio must lie between 0 and 1.")
    if min(options.conv_pause_s, options.warmup_requests, options.ready_check_timeout_sec) < 0:
        raise UserError("--conv-pause-s, --warmup-requests and --ready-check-timeout-sec must not be below 0.")


def _check_load(options: argparse.Namespace) -> None:
    rates, bounds = options.request_rate, options.max_concurrency or [None]
    if len(rates) > 1 and len(bounds) > 1:
        raise UserError(
            "A sweep goes over rates or over concurrencies: give several --request-rate or --max-concurrency."
        )
    paced = options.use_trace_timestamps or options.ramp_up_strategy is not None
    if paced and rates != [float("inf")]:
        raise UserError("--request-rate does not go with --use-trace-timestamps or --ramp-up-strategy.")
    if options.use_trace_timestamps and options.ramp_up_strategy is not None:
        raise UserError("--use-trace-timestamps and --ramp-up-strategy exclude each other.")
    if options.use_trace_timestamps and options.dataset_name not in TRACES:
        raise UserError(f"--use-trace-timestamps needs a trace: --dataset-name {', '.join(TRACES)}.")


def _check_prompts(options: argparse.Namespace) -> None:
    name, backend = options.dataset_name, options.backend
    if name in (*TRACES, *FILES) and not options.dataset_path:
        raise UserError(f"--dataset-name {name} needs --dataset-path.")
    if name == "random" and not options.tokenizer:
        raise UserError("--dataset-name random sends text and needs --tokenizer; random-ids does without.")
    if is_chat(backend) and name not in FILES and not options.tokenizer:
        raise UserError(f"--backend {backend} sends text, and {name} makes it of tokens: give --tokenizer.")
    ids = not options.tokenizer or options.tokenize_prompt
    if is_chat(backend) and options.tokenize_prompt:
        raise UserError(f"--tokenize-prompt: --backend {backend} takes no token ids.")
    if name == "conversation" and not generates(backend):
        raise UserError(f"--backend {backend} has no answers that conversations could go on with.")
    if name == "conversation" and ids and not is_native(backend):
        raise UserError(
            f"--backend {backend} does not answer with token ids, which conversations of token ids go on with: give "
            "--tokenizer."
        )
    if options.sharegpt_context_len is not None and not options.tokenizer:
        raise UserError("--sharegpt-context-len counts tokens and needs --tokenizer.")


def _ramp(options: argparse.Namespace) -> Ramp | None:
    ends = options.ramp_up_start_rps, options.ramp_up_end_rps
    if options.ramp_up_strategy is None:
        if ends != (None, None):
            raise UserError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy.")
        return None
    if None in ends or min(ends) <= 0:
        raise UserError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps, both above 0.")
    return Ramp(RampStrategy(options.ramp_up_strategy), *ends)


def _goal(words: Sequence[str] | None, of_answers: bool) -> Goal | None:
    if not words:
        return None
    limits = {}
    for word in words:
        name, _, limit = word.partition(":")
        try:
            limits[_GOALS[name]] = float(limit)
        except (KeyError, ValueError):
            raise UserError(f"--goodput: {word!r} is not one of {', '.join(_GOALS)} with a limit in ms.") from None
    if not of_answers and set(limits) != {_GOALS["e2el"]}:
        raise UserError("--goodput: embeddings come at once, so e2el is their only limit.")
    return Goal(limits)
