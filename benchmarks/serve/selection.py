"""Which workload the options describe."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.serve import workloads
from benchmarks.serve.backends import generates, is_chat
from benchmarks.serve.datasets import Reader, from_file
from benchmarks.serve.options import FILES, TRACES
from benchmarks.serve.prompts import Form, as_chat, as_ids, as_text
from benchmarks.serve.workloads import Conversations, Material, Session
from benchmarks.traces import Trace, read_trace
from common.errors import UserError
from common.model_tokenizer import ModelTokenizer


@dataclass(frozen=True, slots=True)
class Loaded:
    """Sessions from a seed, and a count of an answer's tokens by its text where there is a tokenizer."""

    sessions: Callable[[int], list[Session]]
    count_tokens: Callable[[str], int] | None


def loaded(options: argparse.Namespace) -> Loaded:
    """Reads tokenizer and file. Raises UserError."""
    tokenizer = ModelTokenizer.load(options.tokenizer) if options.tokenizer else None
    count = None if tokenizer is None else lambda text: len(tokenizer.encode(text, add_special_tokens=False))
    if options.dataset_name in FILES:
        found = _of_file(options, tokenizer)
        return Loaded(lambda seed: found, count)
    low, high = options.token_ids
    if tokenizer is not None:
        high = min(high, tokenizer.backend.get_vocab_size(with_added_tokens=False))
        if low >= high:
            raise UserError(f"--token-ids begin at {low}, but the tokenizer has {high} ids.")
    form = _form(options, tokenizer)
    trace = _trace(options) if options.dataset_name in TRACES else None
    return Loaded(
        lambda seed: _made(options, Material(np.random.default_rng(seed), (low, high), form), trace),
        count,
    )


def _form(options: argparse.Namespace, tokenizer: ModelTokenizer | None) -> Form:
    if tokenizer is None or options.tokenize_prompt:
        return as_ids
    return as_chat(tokenizer) if is_chat(options.backend) else as_text(tokenizer)


def _trace(options: argparse.Namespace) -> Trace:
    found = read_trace(Path(options.dataset_path), flag="--dataset-path", limit=options.num_prompts)
    wanted = {"mooncake": True, "azure": False}.get(options.dataset_name)
    if wanted is not None and wanted != (found.block_tokens is not None):
        raise UserError(
            f"--dataset-path: {options.dataset_path} is not a trace of --dataset-name {options.dataset_name}; "
            "--dataset-name trace takes either kind."
        )
    return found


def _made(options: argparse.Namespace, material: Material, trace: Trace | None) -> list[Session]:
    if trace is not None:
        return workloads.recorded(material, trace)
    if options.dataset_name == "generated-shared-prefix":
        groups, members = options.gsp_num_groups, options.gsp_prompts_per_group
        sizes = workloads.group_sizes(material.rng, groups, members, zipf=options.gsp_group_distribution == "zipf")
        lengths = options.gsp_system_prompt_len, options.gsp_question_len, options.gsp_output_len
        return workloads.shared_prefixes(material, sizes, *lengths)
    if options.dataset_name == "conversation":
        return workloads.conversations(material, _conversations(options))
    lengths = options.random_input_len, options.random_output_len, options.random_range_ratio
    return workloads.independent(material, options.num_prompts, *lengths)


def _conversations(options: argparse.Namespace) -> Conversations:
    return Conversations(
        sessions=options.conv_num_sessions,
        turns=tuple(options.conv_turns),
        system_prompts=options.conv_num_system_prompts,
        system_tokens=options.conv_system_prompt_len,
        user_tokens=tuple(options.conv_user_len),
        output_tokens=tuple(options.conv_output_len),
        mean_pause_s=options.conv_pause_s,
    )


def _of_file(options: argparse.Namespace, tokenizer: ModelTokenizer | None) -> list[Session]:
    embeds = not generates(options.backend)
    lengths = options.sharegpt_output_len, options.sharegpt_context_len
    reader = Reader(is_chat(options.backend), tokenizer, *lengths, embeds)
    read = reader.openai if options.dataset_name == "openai" else reader.custom
    found = from_file(Path(options.dataset_path), read, options.num_prompts)
    told = embeds or options.dataset_name == "openai"
    if not told and any(turn.output_tokens is None for one in found for turn in one.turns):
        raise UserError(
            f"{options.dataset_path} does not tell how long answers are: give --sharegpt-output-len, or --tokenizer "
            "if it holds recorded answers."
        )
    return found
