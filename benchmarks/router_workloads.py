"""Workloads for router benchmarks: synthetic sessions from a seed, and recorded traces by path.

Sessions: 24 applications, each with its own 8,000-character system prompt, chosen by Zipf weights (exponent 0.8);
sessions start as a Poisson stream of 8 a second for 40 s; 2 to 5 turns of 600 characters; answers of 20 tokens (200
characters); exponential pauses of mean 0.5 s. Four characters are a token.

Of a recorded trace with blocks (traces.py), a block id becomes 256 characters of text, the same for the same id,
whatever its number of tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.traces import read_trace
from common.errors import UserError

TRACE_BLOCK_CHARS = 256
ANSWER_CHARS = 200  # of a session's answer, fed back into its next prompt
_MEAN_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says next, how long the answer is, and the pause after it."""

    text: str
    answer_tokens: int
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation. `system` is empty in traces, whose prompts are whole."""

    arrival_s: float
    system: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions, and what a simulated worker must know about their text."""

    name: str
    sessions: tuple[Session, ...]
    block_chars: int  # of a worker's cache block
    block_tokens: int

    @property
    def requests(self) -> int:
        """Of all sessions together."""
        return sum(len(session.turns) for session in self.sessions)


def synthetic(
    seed: int, *, apps: int = 24, rate_per_s: float = 8, duration_s: float = 40, prompt_chars: int = 8000
) -> Workload:
    """The session workload; see above."""
    rng = random.Random(seed)
    prompts = [_words(rng, prompt_chars) for _ in range(apps)]
    weights = [1 / (rank + 1) ** 0.8 for rank in range(apps)]
    found, now_s = [], rng.expovariate(rate_per_s)
    while now_s < duration_s:
        turns = [Turn(_words(rng, 600), 20, rng.expovariate(1 / _MEAN_PAUSE_S)) for _ in range(rng.randint(2, 5))]
        found.append(Session(now_s, rng.choices(prompts, weights)[0], tuple(turns)))
        now_s += rng.expovariate(rate_per_s)
    return Workload("sessions", tuple(found), block_chars=64, block_tokens=16)


def trace(path: Path, *, block_tokens: int, limit: int | None = None) -> Workload:
    """A recorded trace: each request by itself, at its time. `limit`: of the first so many requests."""
    recorded = read_trace(path, flag="--workload", limit=limit)
    if recorded.block_tokens is None:
        raise UserError(f"--workload: {path} has no hash_ids; a router needs to see which prompts share blocks.")
    found = [
        Session(request.arrival_s, "", (Turn("".join(map(block_text, request.blocks)), request.output_tokens),))
        for request in recorded.requests
    ]
    return Workload(recorded.name, tuple(found), TRACE_BLOCK_CHARS, block_tokens)


def block_text(block_id: int) -> str:
    """The text that stands for a block of a trace."""
    return random.Random(block_id).randbytes(TRACE_BLOCK_CHARS // 2).hex()


def _words(rng: random.Random, length: int) -> str:
    """Random text of that many characters."""
    return rng.randbytes(length // 2).hex()
