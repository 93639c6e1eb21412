"""Requests that ask for log-probabilities or have a grammar, through scheduler and runner, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.clock import MonotonicClock
from tests.helpers.fake_grammar import FakeGrammarCompiler
from worker.config import WorkerSettings
from worker.engine.factory import create_runner
from worker.ipc.messages import FinishReason, GenerateRequest, SchedulerMessage, StepOutput, TokenScore
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler


@dataclass
class Scored:
    """What one request was told."""

    tokens: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    prompt_scores: list[TokenScore] = field(default_factory=list)
    finish: FinishReason | None = None


def run_scored(
    directory: Path, prompts: Sequence[list[int]], wishes: Sequence[SamplingParams], **settings: Any
) -> list[Scored]:
    """The answers to `prompts`, each with its parameters."""
    chosen = WorkerSettings.model_validate({"model_path": str(directory), "chunked_prefill_size": 256, **settings})
    runner = create_runner(chosen)
    told = [Scored() for _ in prompts]

    def take(message: SchedulerMessage) -> None:
        if not isinstance(message, StepOutput):
            return
        for rid, token in zip(message.rids, message.tokens, strict=True):
            told[int(rid)].tokens.append(token)
        for delta in message.deltas:
            one = told[int(delta.rid)]
            one.tokens += delta.token_ids
            one.scores += delta.scores
            one.prompt_scores += delta.prompt_scores
            one.finish = delta.finish

    grammars = FakeGrammarCompiler(num_words=-(-runner.info.vocab_size // 32))
    scheduler = Scheduler(chosen, runner, MonotonicClock(), take, lambda: 0, grammars)
    for i, (prompt, sampling) in enumerate(zip(prompts, wishes, strict=True)):
        scheduler.handle(GenerateRequest(rid=str(i), input_ids=prompt, sampling=sampling))
    while any(one.finish is None for one in told):
        scheduler.step()
    while scheduler.step():
        pass
    scheduler.on_idle()
    runner.close()
    return told
