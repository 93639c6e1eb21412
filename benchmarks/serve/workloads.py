"""What is sent: sessions of one request or more, made of random tokens or of a recorded trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.serve.prompts import Form, Ids, Prompt, random_ids
from benchmarks.traces import Trace


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session. `prompt` is what is new in it: what was said and answered before stands in front of it.
    `output_tokens` None: the server decides. `pause_s`: from the answer before to this request."""

    prompt: Prompt
    output_tokens: int | None
    pause_s: float = 0.0
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Session:
    """Requests that wait for each other's answers. `due_s` counts from the start of the run, for the first of them;
    None = the schedule decides."""

    turns: tuple[Turn, ...]
    due_s: float | None = None


@dataclass(frozen=True, slots=True)
class Material:
    """What random prompts are made of: ids low <= id < high, and the form they are sent in."""

    rng: np.random.Generator
    vocabulary: tuple[int, int]
    form: Form

    def ids(self, count: int) -> Ids:
        """So many random tokens."""
        return random_ids(self.rng, count, self.vocabulary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """The shape of conversations. Turns and tokens as (least, most), both included; pauses are exponential."""

    sessions: int
    turns: tuple[int, int]
    system_prompts: int
    system_tokens: int
    user_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    mean_pause_s: float


def single(prompt: Prompt, output_tokens: int | None, due_s: float | None = None) -> Session:
    """A session of one request."""
    return Session((Turn(prompt, output_tokens),), due_s)


def independent(
    material: Material, count: int, input_tokens: int, output_tokens: int, range_ratio: float
) -> list[Session]:
    """Independent prompts. Lengths are uniform in [range_ratio * length, length]; a ratio of 1 makes them all equal."""
    inputs = _lengths(material.rng, input_tokens, range_ratio, count)
    outputs = _lengths(material.rng, output_tokens, range_ratio, count)
    return [single(material.form(material.ids(int(n))), int(m)) for n, m in zip(inputs, outputs, strict=True)]


def shared_prefixes(
    material: Material, members: Sequence[int], shared: int, own: int, output_tokens: int
) -> list[Session]:
    """One system prompt of `shared` tokens for each entry of `members`, which says how many questions of `own` tokens
    follow it; all in random order."""
    found = []
    for count in members:
        prefix = material.ids(shared)
        for _ in range(count):
            found.append(single(material.form(np.concatenate([prefix, material.ids(own)])), output_tokens))
    return [found[i] for i in material.rng.permutation(len(found))]


def group_sizes(rng: np.random.Generator, groups: int, members: int, *, zipf: bool) -> list[int]:
    """How many questions each group has: all the same, or drawn with weights 1, 1/2, 1/3, ... and the same sum."""
    if not zipf:
        return [members] * groups
    weights = 1 / np.arange(1, groups + 1)
    return [int(size) for size in rng.multinomial(groups * members, weights / weights.sum())]


def conversations(material: Material, shape: Conversations) -> list[Session]:
    """Sessions whose prompts grow by each answer and the user's next words; each begins with a system prompt."""
    rng = material.rng
    systems = [material.ids(shape.system_tokens) for _ in range(shape.system_prompts)]

    def turn(number: int, system: Ids) -> Turn:
        ids = material.ids(_between(rng, shape.user_tokens))
        words = ids if number else np.concatenate([system, ids])
        pause_s = float(rng.exponential(shape.mean_pause_s)) if number else 0.0
        return Turn(material.form(words), _between(rng, shape.output_tokens), pause_s)

    made = []
    for _ in range(shape.sessions):
        system = systems[int(rng.integers(len(systems)))]
        made.append(Session(tuple(turn(number, system) for number in range(_between(rng, shape.turns)))))
    return made


def recorded(material: Material, trace: Trace) -> list[Session]:
    """The requests of a trace, each by itself, at its time. Equal blocks give equal tokens; without blocks prompts are
    random."""
    block = _blocks(material.vocabulary, trace.block_tokens or 1)
    found = []
    for request in trace.requests:
        if request.blocks:
            ids = np.concatenate([block(number) for number in request.blocks])[: request.prompt_tokens]
        else:
            ids = material.ids(request.prompt_tokens)
        found.append(single(material.form(ids), request.output_tokens, request.arrival_s))
    return found


def _blocks(vocabulary: tuple[int, int], tokens: int) -> Callable[[int], Ids]:
    @cache
    def block(number: int) -> Ids:
        return random_ids(np.random.default_rng(abs(number)), tokens, vocabulary)

    return block


def _between(rng: np.random.Generator, bounds: tuple[int, int]) -> int:
    return int(rng.integers(bounds[0], bounds[1] + 1))


def _lengths(rng: np.random.Generator, longest: int, ratio: float, count: int) -> npt.NDArray[np.int64]:
    return rng.integers(max(1, int(longest * ratio)), longest + 1, count)
