"""What is sent: prompts as token ids with the length of their answers, and when each is due."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.errors import UserError

Ints = npt.NDArray[np.int64]

_HASH_BLOCK_TOKENS = 512  # of a Mooncake trace: one hash id stands for as many tokens


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `due_s` counts from the start of the run; None = the arrival process decides."""

    input_ids: Sequence[int]
    output_tokens: int
    due_s: float | None = None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids that random prompts are made of: low <= id < high."""

    low: int
    high: int


def random_ids(
    rng: np.random.Generator, count: int, input_tokens: int, output_tokens: int, range_ratio: float, ids: Vocabulary
) -> list[Ask]:
    """Independent prompts. Lengths are uniform in [range_ratio * length, length]; a ratio of 1 makes them all equal."""
    inputs = _lengths(rng, input_tokens, range_ratio, count)
    outputs = _lengths(rng, output_tokens, range_ratio, count)
    return [Ask(_ids(rng, int(n), ids), int(m)) for n, m in zip(inputs, outputs, strict=True)]


def shared_prefixes(
    rng: np.random.Generator, groups: int, members: int, shared: int, own: int, output_tokens: int, ids: Vocabulary
) -> list[Ask]:
    """`groups` system prompts of `shared` tokens, each with `members` questions of `own` tokens, in random order."""
    prefixes = [_ids(rng, shared, ids) for _ in range(groups)]
    asks = [Ask([*prefix, *_ids(rng, own, ids)], output_tokens) for prefix in prefixes for _ in range(members)]
    return [asks[i] for i in rng.permutation(len(asks))]


def mooncake(path: Path, count: int, ids: Vocabulary) -> list[Ask]:
    """The first `count` requests of a Mooncake trace (JSON lines: timestamp in ms, input_length, output_length,
    hash_ids of 512-token blocks). Equal hash ids give equal tokens."""
    asks = []
    for line in _lines(path, count):
        try:
            entry = json.loads(line)
            blocks = [_block(int(block), ids) for block in entry["hash_ids"]]
            tokens = np.concatenate(blocks)[: int(entry["input_length"])].tolist()
            asks.append(Ask(tokens, max(1, int(entry["output_length"])), float(entry["timestamp"]) / 1000))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"--dataset-path: {path} is not a Mooncake trace ({type(error).__name__}: {error})."
            ) from None
    return _from_zero(asks)


def azure(rng: np.random.Generator, path: Path, count: int, ids: Vocabulary) -> list[Ask]:
    """The first `count` requests of an Azure LLM trace (CSV: TIMESTAMP, ContextTokens, GeneratedTokens)."""
    asks = []
    for row in csv.DictReader(_lines(path, count + 1)):
        try:
            due = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            inputs, outputs = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"--dataset-path: {path} is not an Azure trace ({type(error).__name__}: {error})."
            ) from None
        asks.append(Ask(_ids(rng, max(1, inputs), ids), max(1, outputs), due))
    return _from_zero(asks)


def arrivals(rng: np.random.Generator, asks: Sequence[Ask], rate_per_s: float | None, burstiness: float) -> list[float]:
    """When each request is due, in seconds. Without a rate all at once; else gaps are gamma distributed with shape
    `burstiness`: 1 makes a Poisson process, less comes in bursts, more evenly."""
    if rate_per_s is None:
        return [0.0] * len(asks)
    gaps = rng.gamma(burstiness, 1.0 / (rate_per_s * burstiness), len(asks))
    return list(np.cumsum(gaps) - gaps[0]) if len(gaps) else []


def _lengths(rng: np.random.Generator, longest: int, ratio: float, count: int) -> Ints:
    return rng.integers(max(1, int(longest * ratio)), longest + 1, count)


def _ids(rng: np.random.Generator, count: int, ids: Vocabulary) -> list[int]:
    return [int(token) for token in rng.integers(ids.low, ids.high, count)]


def _block(number: int, ids: Vocabulary) -> Ints:
    return np.random.default_rng(number).integers(ids.low, ids.high, _HASH_BLOCK_TOKENS)


def _not_a_trace(kind: str, path: Path, error: Exception) -> UserError:
    return UserError(f"--dataset-path: {path} is not {kind} trace ({type(error).__name__}: {error}).")


def _from_zero(asks: Sequence[Ask]) -> list[Ask]:
    first = min((ask.due_s or 0.0 for ask in asks), default=0.0)
    return [Ask(ask.input_ids, ask.output_tokens, (ask.due_s or 0.0) - first) for ask in asks]


def _lines(path: Path, count: int) -> Iterator[str]:
    """The first `count` lines of a text file, also a gzipped one."""
    try:
        raw = gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # noqa: SIM115 closed below
        with raw, io.TextIOWrapper(raw, encoding="utf-8") as text:
            for _, line in zip(range(count), text, strict=False):
                yield line
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--dataset-path: cannot read {path}: {error}.") from None
