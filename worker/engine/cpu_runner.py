"""The CPU runner: SDPA over the paged pool, one pass at a time. Real answers without a GPU, and the tests' oracle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch

from worker.attention.kv_pool import KVPool
from worker.attention.torch_native import TorchNativeAttention
from worker.config import WorkerSettings
from worker.engine import inputs
from worker.engine.batch import NOT_FINITE, ForwardBatch, NewWeights, RunnerInfo, Scores, StepFailed, StepResult
from worker.engine.cpu_tuning import keep_freed_memory
from worker.engine.loading import compute_dtype, load_on_cpu
from worker.engine.logprobs import ScoredTokens, in_order, prompt_requests, sampled_requests, score, score_prompt
from worker.engine.memory import cpu_pool_size, kv_bytes_per_token
from worker.engine.new_weights import NO_ROOM, checkpoint_of_same_model
from worker.engine.next_tokens import NextTokens
from worker.engine.out_of_memory import step_failed, told_to_the_user
from worker.engine.page_table import PageTable
from worker.engine.pooling import Pooler, make_pooler
from worker.engine.sampler import sample
from worker.engine.sampling_table import Masked, SamplingTable
from worker.layers.torch_ops import TorchOps
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder

_CPU = torch.device("cpu")
_DEFAULT_PAGE_SIZE = 1


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A pass that was computed by `launch` already."""

    token_ids: torch.Tensor
    scores: tuple[Scores, ...]
    vectors: torch.Tensor | None = None

    def result(self) -> StepResult:
        return StepResult(
            token_ids=self.token_ids.numpy().astype(np.int32),
            scores=self.scores,
            vectors=None if self.vectors is None else self.vectors.numpy(),
        )


@dataclass(frozen=True, slots=True)
class _SecondModel:
    """`NewWeights` in a model of their own, which takes the place of the one in use."""

    runner: CpuRunner
    model: Decoder

    def use(self) -> None:
        self.runner.take(self.model)


class CpuRunner:
    """`ModelRunner` on the CPU. `launch` returns when the pass is done."""

    def __init__(self, settings: WorkerSettings, config: ModelConfig, path: Path) -> None:
        keep_freed_memory()
        if settings.cpu_threads is not None:
            torch.set_num_threads(settings.cpu_threads)
        dtype = compute_dtype(settings, config, default="float32")
        page_size = settings.page_size or _DEFAULT_PAGE_SIZE
        with torch.inference_mode():
            loaded = load_on_cpu(settings, config, path, TorchOps(), dtype=dtype)
        self._model = loaded.model
        self._another = loaded.another
        self._settings = settings
        self._config = config
        size = cpu_pool_size(
            config,
            page_size=page_size,
            element_bytes=dtype.itemsize,
            free_bytes=psutil.virtual_memory().available,
            max_total_tokens=settings.max_total_tokens,
            max_running_requests=settings.max_running_requests,
        )
        self.pool = KVPool(
            num_layers=config.num_layers,
            num_pages=size.num_pages,
            page_size=page_size,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=dtype,
            device=_CPU,
        )
        self._attention = TorchNativeAttention(self.pool, num_heads=config.num_heads)
        self._table = PageTable(max_rows=size.max_rows, context_len=config.context_len, page_size=page_size)
        self._next_tokens = NextTokens(size.max_rows, _CPU)
        self._sampling = SamplingTable(vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids, device=_CPU)
        self._pooler = make_pooler(config, size.max_rows, _CPU)
        info = RunnerInfo(
            device="cpu",
            dtype=str(dtype).removeprefix("torch."),
            vocab_size=config.vocab_size,
            context_len=config.context_len,
            num_pages=size.num_pages,
            page_size=page_size,
            max_rows=size.max_rows,
            eos_token_ids=config.eos_token_ids,
            architectures=(config.architecture,),
            weight_bytes=loaded.weight_bytes,
            kv_bytes_per_token=kv_bytes_per_token(config, dtype.itemsize),
            available_memory_bytes=psutil.virtual_memory().available,
            overlaps=False,
        )
        self._info = info if self._pooler is None else self._pooler.describe(info)

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @torch.inference_mode()
    def launch(self, batch: ForwardBatch) -> DoneStep:
        self._table.apply(batch.page_writes)
        try:
            self._sampling.admit(batch.admissions)
            return self._run(batch)
        except (MemoryError, RuntimeError) as error:
            raise step_failed(error, batch, where="machine") from error

    def load_weights(self, model_path: str) -> NewWeights:
        path = checkpoint_of_same_model(model_path, self._settings, self._config, self._info.weight_bytes)
        with torch.inference_mode(), told_to_the_user(NO_ROOM):
            return _SecondModel(self, self._another(path))

    def take(self, model: Decoder) -> None:
        """Compute with `model`, of the same configuration, from the next pass on."""
        self._model = model

    def close(self) -> None:
        del self._model, self._another, self._attention, self.pool

    def _run(self, batch: ForwardBatch) -> DoneStep:
        positions = inputs.positions(batch)
        self._attention.plan(inputs.pass_metadata(batch, self._table, positions))
        hidden = self._model.forward(self._input_ids(batch), torch.from_numpy(positions), self._attention)
        token_ids = torch.full((len(batch.rows),), -1, dtype=torch.int64)
        if self._pooler is not None:
            return DoneStep(token_ids, (), self._pool(self._pooler, batch, hidden))
        scored: list[ScoredTokens] = []
        if batch.samples.any():
            token_ids[torch.from_numpy(batch.samples)] = self._sample(batch, hidden, scored)
        if batch.score_requests:
            starts = np.cumsum(batch.query_lens) - batch.query_lens
            for request in prompt_requests(batch):
                first = int(starts[request.index])
                scored.append(score_prompt(request, hidden, self._model.logits, first))
        return DoneStep(token_ids, in_order(batch, scored))

    def _pool(self, pooler: Pooler, batch: ForwardBatch, hidden: torch.Tensor) -> torch.Tensor:
        vectors = pooler.pool(batch, hidden)
        if not bool(vectors.isfinite().all()):
            raise StepFailed(NOT_FINITE)
        return vectors

    def _input_ids(self, batch: ForwardBatch) -> torch.Tensor:
        prefill_ids = torch.from_numpy(batch.prefill_ids).long()
        if not batch.num_decode:
            return prefill_ids
        rows = torch.from_numpy(batch.rows[: batch.num_decode]).long()
        return torch.cat((self._next_tokens.read(rows), prefill_ids))

    def _masked(self, batch: ForwardBatch) -> Masked | None:
        if batch.masks is None:
            return None
        places = (np.cumsum(batch.samples) - 1)[batch.masks.indices].tolist()
        return Masked.of(places, batch.masks.allowed, vocab_size=self._info.vocab_size, device=_CPU)

    def _sample(self, batch: ForwardBatch, hidden: torch.Tensor, scored: list[ScoredTokens]) -> torch.Tensor:
        """Token ids int64 [S]; their log-probabilities, where asked for, go to `scored`."""
        rows = batch.rows[batch.samples]
        logits = self._model.logits(hidden.index_select(0, torch.from_numpy(inputs.sampled_tokens(batch))))
        wishes = sampled_requests(batch)
        places = np.cumsum(batch.samples)[[wish.index for wish in wishes]] - 1
        raw = logits[torch.from_numpy(places)] if wishes else logits  # a copy: sampling changes the logits
        token_ids = sample(logits, self._sampling.batch(rows, self._masked(batch)))
        if bool((token_ids < 0).any()):
            raise StepFailed(NOT_FINITE)
        if wishes:
            scored.append(score(raw, token_ids[torch.from_numpy(places)], wishes))
        self._sampling.record(rows, token_ids)
        self._next_tokens.write(torch.from_numpy(rows).long(), token_ids)
        return token_ids
