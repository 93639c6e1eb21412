"""Weights replaced on a GPU: graphs captured before compute with the new ones, to the last bit as a fresh engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from common.clock import MonotonicClock
from tests.gpu.reference import SMALL, RecordingRunner, Run, compare, make_checkpoint, random_prompts
from tests.helpers.step_news import tokens_of
from worker.config import WorkerSettings
from worker.engine.factory import create_runner
from worker.ipc.messages import GenerateRequest, SchedulerMessage, StepOutput, UpdateWeights, WeightsUpdated
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler

NUM_TOKENS = 40
SETTINGS: dict[str, Any] = {
    "max_total_tokens": 40_000,
    "max_running_requests": 24,
    "cuda_graph_bs": [1, 8, 24],
    "chunked_prefill_size": 256,
    "mem_fraction_static": 0.4,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "tied": SMALL | {"tie_word_embeddings": True},
    "biases": SMALL | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False},
    "norms of heads": SMALL | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "others' code": SMALL
    | {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"},
}


class Engine:
    """Scheduler and CUDA runner, with the logits of all that is sampled."""

    def __init__(self, directory: Path) -> None:
        settings = WorkerSettings(model_path=str(directory), **SETTINGS)
        self.runner = RecordingRunner(create_runner(settings))
        self.tokens: dict[int, list[int]] = {}
        self.sides: dict[int, set[int]] = {}  # how many updates there had been when a request was told something
        self._live: set[int] = set()
        self.updated = 0
        self.scheduler = Scheduler(settings, self.runner, MonotonicClock(), self._take, lambda: 0)

    def _take(self, message: SchedulerMessage) -> None:
        if isinstance(message, WeightsUpdated):
            self.updated += 1
        if isinstance(message, StepOutput):
            for rid, new in tokens_of(message):
                self.tokens[int(rid)].extend(new)
                self.sides[int(rid)].add(self.updated)
            self._live -= {int(delta.rid) for delta in message.deltas if delta.finish is not None}

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def submit(self, prompts: list[list[int]], first: int = 0) -> None:
        """Greedy requests, numbered from `first` on."""
        for number, prompt in enumerate(prompts, first):
            self.tokens[number], self.sides[number] = [], set()
            self._live.add(number)
            sampling = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True, seed=number)
            self.scheduler.handle(GenerateRequest(rid=str(number), input_ids=prompt, sampling=sampling))

    def finish(self) -> None:
        """Until all have ended and nothing is left to do."""
        while self._live:
            self.scheduler.step()
        while self.scheduler.step():
            pass
        self.scheduler.on_idle()

    def run(self, prompts: list[list[int]]) -> Run:
        """All at once, as on a fresh engine."""
        self.runner.logits, self.runner.cuda_graphs = {}, False
        self.submit(prompts)
        self.finish()
        return self.result(range(len(prompts)))

    def result(self, numbers: Sequence[int]) -> Run:
        """Of these requests, numbered anew from 0 on."""
        index = {number: i for i, number in enumerate(numbers)}
        logits = {(index[n], at): x for (n, at), x in self.runner.logits.items() if n in index}
        return Run([self.tokens[number] for number in numbers], logits, 0, self.runner.cuda_graphs)

    def update(self, directory: Path) -> None:
        """Ask for other weights."""
        self.scheduler.handle(UpdateWeights(call_id=1, model_path=str(directory)))


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, Path]:
    """Two checkpoints of one model."""
    config, seed = CONFIGS[request.param], int(time.time())
    directories = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    for number, directory in enumerate(directories):
        make_checkpoint(directory, config, seed + number)
    return config, directories[0], directories[1]


@pytest.fixture(scope="module")
def engine(pair: tuple[dict[str, Any], Path, Path]) -> Iterator[Engine]:
    """Started with the first one."""
    made = Engine(pair[1])
    yield made
    made.runner.close()


def check_same(one: Run, other: Run) -> None:
    assert one.tokens == other.tokens
    assert one.logits.keys() == other.logits.keys()
    assert all(torch.equal(one.logits[at], other.logits[at]) for at in one.logits)
    assert one.cuda_graphs and other.cuda_graphs


@pytest.mark.timeout(300)
def test_graphs_compute_with_the_new_weights(pair: tuple[dict[str, Any], Path, Path], engine: Engine) -> None:
    config, first, second = pair
    prompts = random_prompts(config, seed=1)[:20]
    alone = prompts[:1]
    before = engine.run(prompts), engine.run(alone)
    begun_s = time.monotonic()
    engine.update(second)
    engine.finish()
    print(f"\nreplaced in {time.monotonic() - begun_s:.2f} s")
    after = engine.run(prompts), engine.run(alone)
    fresh = Engine(second)
    for mine, other in zip(after, (fresh.run(prompts), fresh.run(alone)), strict=True):
        check_same(mine, other)
    fresh.runner.close()
    assert not any(torch.equal(before[0].logits[at], after[0].logits[at]) for at in before[0].logits)
    assert compare(second, prompts, after[0]).relative_error < 0.1
    engine.update(first)
    engine.finish()
    for mine, other in zip((engine.run(prompts), engine.run(alone)), before, strict=True):
        check_same(mine, other)


@pytest.mark.timeout(300)
def test_under_load_answers_are_by_one_checkpoint_each(pair: tuple[dict[str, Any], Path, Path], engine: Engine) -> None:
    config, first, second = pair
    prompts = random_prompts(config, seed=2)[:20]
    engine.runner.logits = {}
    engine.submit(prompts)
    for _ in range(6):
        engine.scheduler.step()
    updates, count = engine.updated, len(prompts)
    engine.update(second)
    while engine.updated == updates:
        if engine.num_live < len(prompts):
            engine.submit(prompts, first=count)
            count += len(prompts)
        engine.scheduler.step()
    engine.submit(prompts, first=count)
    count += len(prompts)
    engine.finish()
    assert all(len(engine.sides[number]) == 1 for number in range(count))
    for directory, side in ((first, updates), (second, updates + 1)):
        numbers = [number for number in range(count) if engine.sides[number] == {side}][-40:]
        agreement = compare(directory, [prompts[n % len(prompts)] for n in numbers], engine.result(numbers))
        print(f"\n{count} requests; {len(numbers)} answers of {directory.name}: {agreement}")
        assert len(numbers) >= 5  # those that had begun
        assert agreement.relative_error < 0.1 and agreement.same_top > 0.95  # by both it would be near 1 and 0
    engine.update(first)
    engine.finish()
