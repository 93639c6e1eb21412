"""What grammars cost whole decode steps: `python -m benchmarks.grammar_decode --model-path DIR`, with worker flags.

Eight requests decode side by side in the scheduler of one replica, without a server: all of them free; all in a grammar
whose masks are cheap; and free ones beside one, or four, whose masks are slow to fill (benchmarks/grammar_masks.py),
with these filled beside the loop as served, and on it. Printed: milliseconds between two tokens of a request, of the
free and of the others, by wall clock and medians over all requests and rounds, and CPU time of the process a step.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.arguments import Arguments, run
from common.errors import UserError
from common.settings import load
from worker.assembly import running_scheduler
from worker.config import WorkerSettings
from worker.grammar import compiler
from worker.ipc.messages import GenerateRequest, SchedulerMessage, StepOutput
from worker.sampling_params import GrammarAsked, SamplingParams
from worker.scheduler.core import Scheduler

RUNNING = 8
PROMPT_TOKENS = 32
CHEAP = GrammarAsked(kind="regex", text="[a-z ]+", param="regex")
SLOW = GrammarAsked(kind="regex", text="([a-z]{1,12} ){200}", param="regex")
SLOW_ON_LOOP = GrammarAsked(kind="regex", text="(?:([a-z]{1,12} ){200})", param="regex")  # compiled by itself


_SLOW_FILL_S = compiler.SLOW_FILL_S


@dataclass(frozen=True, slots=True)
class Case:
    """So many of the requests have a grammar. `on_loop`: its masks are filled on the scheduler's loop, however slow."""

    name: str
    grammar: GrammarAsked
    count: int
    on_loop: bool = False


CASES = (
    Case("all free", CHEAP, 0),
    Case("all in [a-z ]+", CHEAP, RUNNING),
    Case("1 in ([a-z]{1,12} ){200}", SLOW, 1),
    Case("  the same on the loop", SLOW_ON_LOOP, 1, on_loop=True),
    Case("4 in ([a-z]{1,12} ){200}", SLOW, 4),
    Case("  the same on the loop", SLOW_ON_LOOP, 4, on_loop=True),
)


@dataclass
class Heard:
    """When each request got its tokens, in seconds."""

    times_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    num_ended: int = 0

    def take(self, message: SchedulerMessage) -> None:
        """What the scheduler tells."""
        if not isinstance(message, StepOutput):
            return
        now_s = time.perf_counter()
        for rid in [*message.rids, *(delta.rid for delta in message.deltas if delta.token_ids)]:
            self.times_s[rid].append(now_s)
        for delta in message.deltas:
            if delta.finish is not None:
                self.num_ended += 1
                if delta.finish.kind == "abort":
                    raise UserError(delta.finish.message)


@dataclass
class Figures:
    """Of one case: gaps between tokens, and CPU time of steps, in milliseconds."""

    free_ms: list[float] = field(default_factory=list)
    held_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def line(self, name: str) -> str:
        values = [f"{np.median(part):>10.2f}" if part else f"{'-':>10}" for part in (self.free_ms, self.held_ms)]
        return f"{name:<28}{''.join(values)}{np.median(self.cpu_ms):>10.2f}"


def measure(scheduler: Scheduler, heard: Heard, case: Case, tokens: int, figures: Figures) -> None:
    """One round: all requests from their first token to their last."""
    compiler.SLOW_FILL_S = math.inf if case.on_loop else _SLOW_FILL_S
    heard.times_s.clear()
    heard.num_ended = 0
    random = np.random.default_rng(0)
    for number in range(RUNNING):
        asked = case.grammar if number < case.count else None
        sampling = SamplingParams(max_new_tokens=tokens, min_new_tokens=tokens, seed=number, grammar=asked)
        ids = random.integers(1000, 4000, PROMPT_TOKENS).tolist()
        rid = f"{'held' if asked else 'free'}{number}"
        scheduler.handle(GenerateRequest(rid=rid, input_ids=ids, sampling=sampling))
    while heard.num_ended < RUNNING:
        everybody = len(heard.times_s) == RUNNING
        start_s = time.process_time()
        scheduler.step()
        if everybody:
            figures.cpu_ms.append((time.process_time() - start_s) * 1e3)
    begun_s = max(times[0] for times in heard.times_s.values())
    ended_s = min(times[-1] for times in heard.times_s.values())
    for rid, times in heard.times_s.items():
        steady = [each for each in times if begun_s <= each <= ended_s]
        (figures.held_ms if rid.startswith("held") else figures.free_ms).extend(np.diff(steady) * 1e3)


def main(argv: Sequence[str] | None = None) -> int:
    """Cases by turns, so that all of them meet the machine's good and bad moments."""
    parser = Arguments(prog="benchmarks.grammar_decode", description=__doc__)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    own, flags = parser.parse_known_args(argv)
    settings = load(WorkerSettings, flags, {}, prog="benchmarks.grammar_decode").settings
    heard = Heard()
    figures = [Figures() for _ in CASES]
    with running_scheduler(settings, heard.take) as scheduler:
        for round_number in range(own.rounds + 1):  # the first one warms up
            for case, kept in zip(CASES, figures, strict=True):
                measure(scheduler, heard, case, own.tokens, kept if round_number else Figures())
    print(f"{RUNNING} requests, {own.tokens} tokens each, {own.rounds} rounds")
    print(f"{'':<28}{'free ms':>10}{'held ms':>10}{'CPU ms':>10}")
    for case, kept in zip(CASES, figures, strict=True):
        print(kept.line(case.name))
    return 0


if __name__ == "__main__":
    run(main)
