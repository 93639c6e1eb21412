"""The demo model through scheduler, cache and runner answers as Transformers' `generate` does, token for token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parity.harness import Harness, SmallPool
from tests.parity.prompts import prompt_ids
from tests.parity.reference import Answer, compare, reference_answers
from worker.config import WorkerSettings
from worker.engine.batch import ModelRunner
from worker.engine.factory import create_runner

NUM_TOKENS = 64

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.long, id="all"), pytest.param(4, id="some")])
def prompts(request: pytest.FixtureRequest, demo_model_dir: Path) -> list[list[int]]:
    """All, or every fourth."""
    from transformers import AutoTokenizer

    return prompt_ids(AutoTokenizer.from_pretrained(demo_model_dir))[:: request.param]


@pytest.fixture(scope="module")
def expected(demo_model_dir: Path, prompts: list[list[int]]) -> list[Answer]:
    return reference_answers(demo_model_dir, prompts, NUM_TOKENS)


@pytest.fixture(scope="module")
def runner(demo_model_dir: Path) -> Iterator[ModelRunner]:
    settings = WorkerSettings(model_path=str(demo_model_dir), device="cpu", cpu_threads=1)
    runner = create_runner(settings)
    yield runner
    runner.close()


def check(expected: list[Answer], actual: list[list[int]]) -> None:
    """All equal, but for near ties, which are counted and printed."""
    result = compare(expected, actual)
    print(f"{result.equal} equal, {result.excused} excused by a near tie, {len(result.different)} different")
    assert not result.different, result.different


def harness(runner: ModelRunner, model_dir: Path, **settings: object) -> Harness:
    return Harness(runner, str(model_dir), **settings)


@pytest.mark.long
def test_alone(runner: ModelRunner, demo_model_dir: Path, prompts: list[list[int]], expected: list[Answer]) -> None:
    engine = harness(runner, demo_model_dir, disable_radix_cache=True)
    check(expected, [engine.run([prompt], NUM_TOKENS)[0] for prompt in prompts])


def test_together_then_from_cache_then_after_a_flush(
    runner: ModelRunner, demo_model_dir: Path, prompts: list[list[int]], expected: list[Answer]
) -> None:
    engine = harness(runner, demo_model_dir)
    check(expected, engine.run(prompts, NUM_TOKENS))
    first = dict(engine.cached_tokens)

    check(expected, engine.run(prompts, NUM_TOKENS))
    again = [engine.cached_tokens[rid] for rid in engine.cached_tokens if rid not in first]
    assert again == [len(prompt) - 1 for prompt in prompts]

    engine.flush()
    fewer = len(prompts) // 4
    before = set(engine.cached_tokens)
    check(expected, engine.run(prompts[:fewer], NUM_TOKENS) + engine.run(prompts[fewer:], NUM_TOKENS))
    assert engine.cached_tokens[next(rid for rid in engine.cached_tokens if rid not in before)] == 0


@pytest.mark.long
def test_prefill_in_chunks(
    runner: ModelRunner, demo_model_dir: Path, prompts: list[list[int]], expected: list[Answer]
) -> None:
    engine = harness(runner, demo_model_dir, chunked_prefill_size=64)
    assert max(map(len, prompts)) > 3 * 64
    check(expected, engine.run(prompts, NUM_TOKENS))


def test_retraction(
    runner: ModelRunner, demo_model_dir: Path, prompts: list[list[int]], expected: list[Answer]
) -> None:
    pool_tokens = max(map(len, prompts)) + 8 * NUM_TOKENS
    small = SmallPool(runner, pool_tokens // runner.info.page_size)
    engine = harness(small, demo_model_dir, schedule_conservativeness=0.0)
    rids = []
    for prompt in prompts:  # one after the other, so that the later ones find pages the earlier ones will need
        rids.append(engine.submit(prompt, NUM_TOKENS))
        engine.scheduler.step()
    engine.drain()
    check(expected, [engine.tokens[rid] for rid in rids])
    retracted = engine.scheduler.load_report(0).retracted_requests_total
    print(f"{retracted} retractions")
    assert retracted > 0


@pytest.mark.long
def test_neighbours_aborted(
    runner: ModelRunner, demo_model_dir: Path, prompts: list[list[int]], expected: list[Answer]
) -> None:
    engine = harness(runner, demo_model_dir)
    kept, doomed = [], []
    for index, prompt in enumerate(prompts):
        kept.append(engine.submit(prompt, NUM_TOKENS))
        if index % 2:
            doomed.append(engine.submit([*prompt[: len(prompt) // 2], 7 + index], NUM_TOKENS))

    def abort_one_that_runs() -> None:
        running = [rid for rid in doomed if 0 < len(engine.tokens[rid]) < NUM_TOKENS]
        if running:
            engine.abort(running[0])
            doomed.remove(running[0])

    engine.drain(abort_one_that_runs)
    assert not doomed and any(finish.kind == "abort" for finish in engine.finishes.values())
    check(expected, [engine.tokens[rid] for rid in kept])
