"""Embeddings of the CPU runner, through the scheduler, against Transformers: alone, together, in chunks, cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from common.clock import MonotonicClock
from common.errors import UserError
from tests.helpers.embedding_models import LAST, MEAN, TinyEmbedder, save_tiny_embedder
from worker.config import WorkerSettings
from worker.engine.factory import create_runner
from worker.ipc.messages import AbortRequest, GenerateRequest, SchedulerMessage, StepOutput, TokenDelta
from worker.sampling_params import SamplingParams
from worker.scheduler.core import Scheduler

TOLERANCE = 1e-5
CONTEXT = 256
Embedder = Callable[[str], TinyEmbedder]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """By pooling; both have the same weights."""
    made = {pooling: save_tiny_embedder(tmp_path_factory.mktemp(pooling), pooling=pooling) for pooling in (LAST, MEAN)}
    return made.__getitem__


class Bench:
    """A scheduler over the CPU runner."""

    def __init__(self, path: Path, **settings: Any) -> None:
        values: dict[str, Any] = {"model_path": str(path), "device": "cpu", "cpu_threads": 1, "max_total_tokens": 2048}
        chosen = WorkerSettings(**values | settings)
        self._deltas: dict[str, TokenDelta] = {}
        self.scheduler = Scheduler(chosen, create_runner(chosen), MonotonicClock(), self._take, lambda: 0)

    def embed(self, prompts: Sequence[Sequence[int]], *, dropped: int | None = None) -> list[TokenDelta]:
        """News of the end of each; the client of one leaves after three steps."""
        for i, prompt in enumerate(prompts):
            sampling = SamplingParams(max_new_tokens=0)
            self.scheduler.handle(GenerateRequest(rid=str(i), input_ids=list(prompt), sampling=sampling))
        if dropped is not None:
            for _ in range(3):
                self.scheduler.step()
            self.scheduler.handle(AbortRequest(rid=str(dropped)))
        while self.scheduler.step():
            pass
        self.scheduler.on_idle()
        return [self._deltas.pop(str(i)) for i in range(len(prompts))]

    def _take(self, message: SchedulerMessage) -> None:
        assert isinstance(message, StepOutput) and not message.tokens
        self._deltas |= {delta.rid: delta for delta in message.deltas}


def unit(delta: TokenDelta) -> npt.NDArray[np.float32]:
    assert delta.finish is not None and delta.finish.kind == "stop" and not delta.token_ids
    vector = np.frombuffer(delta.vector, np.float32)
    made: npt.NDArray[np.float32] = vector / np.linalg.norm(vector)
    return made


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(1)
    head = rng.integers(3, 260, 20).tolist()
    alike = [head + rng.integers(3, 260, length).tolist() for length in (1, 5, 40)]
    return [*alike, [5], [7, 8], rng.integers(3, 260, CONTEXT).tolist()]


@pytest.mark.parametrize("pooling", [LAST, MEAN])
@pytest.mark.parametrize(("page_size", "chunk"), [(1, -1), (4, 32)], ids=["whole", "in chunks"])
def test_as_transformers_computes_it(embedder: Embedder, pooling: str, page_size: int, chunk: int) -> None:
    model = embedder(pooling)
    bench = Bench(model.path, page_size=page_size, chunked_prefill_size=chunk)
    expected = [model.vector(prompt) for prompt in prompts()]
    for number in range(2):  # the second time out of the prefix cache, as far as the pooling lets it
        told = bench.embed(prompts())
        for delta, vector in zip(told, expected, strict=True):
            np.testing.assert_allclose(unit(delta), vector, rtol=0, atol=TOLERANCE)
        longest = told[-1].cached_tokens
        assert longest == ((CONTEXT - 1) // page_size * page_size if number and pooling == LAST else 0)
    report = bench.scheduler.load_report(0)
    assert (report.finished_requests_total, report.generation_tokens_total) == (2 * len(prompts()), 0)
    assert report.num_evictable_tokens > 0 if pooling == LAST else report.num_evictable_tokens == 0


@pytest.mark.parametrize("pooling", [LAST, MEAN])
def test_alone_equals_together(embedder: Embedder, pooling: str) -> None:
    bench = Bench(embedder(pooling).path, disable_radix_cache=True)
    together = bench.embed(prompts())
    for prompt, delta in zip(prompts(), together, strict=True):
        np.testing.assert_allclose(unit(bench.embed([prompt])[0]), unit(delta), rtol=0, atol=TOLERANCE)


def test_a_row_that_others_had_before_starts_its_sum_anew(embedder: Embedder) -> None:
    model = embedder(MEAN)
    bench = Bench(model.path, max_running_requests=1, chunked_prefill_size=16)
    for prompt, delta in zip(prompts(), bench.embed(prompts()), strict=True):
        np.testing.assert_allclose(unit(delta), model.vector(prompt), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("pooling", [LAST, MEAN])
def test_a_small_pool_and_a_client_that_leaves(embedder: Embedder, pooling: str) -> None:
    """`on_idle` sees to it that no page is lost."""
    model = embedder(pooling)
    bench = Bench(model.path, max_total_tokens=CONTEXT + 4, chunked_prefill_size=32)
    longest_first = prompts()[::-1]
    told = bench.embed(longest_first, dropped=0)
    assert told[0].finish is not None and told[0].finish.kind == "abort" and not told[0].vector
    for prompt, delta in zip(longest_first[1:], told[1:], strict=True):
        np.testing.assert_allclose(unit(delta), model.vector(prompt), rtol=0, atol=TOLERANCE)


def test_what_the_frontend_is_told(embedder: Embedder) -> None:
    ready = Bench(embedder(LAST).path).scheduler.ready_message()
    assert (ready.embedding_size, ready.has_logits, ready.max_req_input_len) == (64, False, CONTEXT)


def test_a_generating_model_pools_its_last_token_if_asked_to(tmp_path: Path) -> None:
    from tests.helpers.tiny_models import build_tiny

    tiny = build_tiny("llama-bias", tmp_path)
    delta = Bench(tmp_path, is_embedding=True).embed([[5, 6, 7]])[0]
    reference = TinyEmbedder(tmp_path, tiny.reference.model, LAST)
    np.testing.assert_allclose(unit(delta), reference.vector([5, 6, 7]), rtol=0, atol=TOLERANCE)


def test_other_families_by_transformers_code(embedder: Embedder) -> None:
    """Their final hidden states are those of the same norm."""
    model = embedder(LAST)
    bench = Bench(model.path, model_impl="transformers")
    for prompt, delta in zip(prompts(), bench.embed(prompts()), strict=True):
        np.testing.assert_allclose(unit(delta), model.vector(prompt), rtol=0, atol=TOLERANCE)


def test_a_simulated_device_has_none(embedder: Embedder) -> None:
    with pytest.raises(UserError, match="--device sim computes none; use --device cpu or cuda"):
        create_runner(WorkerSettings(model_path=str(embedder(LAST).path), device="sim"))


def test_numbers_that_are_not_finite_fail_the_step(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = save_tiny_embedder(tmp_path)
    weights = load_file(model.path / "model.safetensors")
    weights["norm.weight"][0] = float("nan")
    save_file(weights, model.path / "model.safetensors", {"format": "pt"})
    finish = Bench(model.path).embed([[5, 6]])[0].finish
    assert finish is not None and finish.status == 503 and "not finite" in finish.message
