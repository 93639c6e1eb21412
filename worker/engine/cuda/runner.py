"""`ModelRunner` on a CUDA GPU. `launch` returns as soon as the pass is in the stream; results follow by an event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from common.errors import UserError
from worker.attention.kv_pool import KVPool
from worker.config import WorkerSettings
from worker.engine.batch import ForwardBatch, Int32s, RunnerInfo, StepFailed, StepResult
from worker.engine.cuda.attention import CudaAttention
from worker.engine.cuda.cascade import CascadeCost, Grouping, alone
from worker.engine.cuda.graph_sizes import cascade_sizes, graph_sizes
from worker.engine.cuda.graphs import DecodeGraphs, GraphKey
from worker.engine.cuda.memory import GpuMemory, size_pool
from worker.engine.cuda.passes import MAX_GROUPS, DevicePass, Int64s, Passes, PassShape
from worker.engine.cuda.prefix_groups import PrefixGroups
from worker.engine.cuda.sampling import CudaSampling
from worker.engine.cuda.staging import ResultSlots, Staging
from worker.engine.loading import build_model, compute_dtype, open_weights
from worker.engine.memory import gpu_defaults, kv_bytes_per_token
from worker.engine.page_table import PageTable
from worker.layers.cuda.ops import CudaOps
from worker.layers.rotary import cos_sin_table
from worker.models.config import ModelConfig
from worker.models.progress import console_progress

log = logging.getLogger(__name__)

DEFAULT_PAGE_SIZE = 16
# Measured on an H200 with 8 KV heads of 128 (docs/performance.md).
CASCADE_COST = CascadeCost(fixed_tokens=16_000, per_prefix_token=30)
MIN_CASCADE_ROWS = 16
_STAGED_INTS = 1 << 18  # grows if a pass needs more
_MIN_LOGIT_ROWS = 64
_DTYPES = (torch.bfloat16, torch.float16)
_GPU_DTYPE = {"float32": "bfloat16"}  # compute type for checkpoints whose own is not one


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A pass in the stream. Outcome i of `fetch` belongs to sequence `sequences[i]` of `num_sequences`."""

    fetch: Callable[[], Int32s]
    sequences: Int64s
    num_sequences: int
    cuda_graph: bool

    def result(self) -> StepResult:
        outcomes = self.fetch()[: len(self.sequences)]
        if len(outcomes) and int(outcomes.min()) < 0:
            raise StepFailed("The model computed numbers that are not finite.")
        token_ids = np.full(self.num_sequences, -1, np.int32)
        token_ids[self.sequences] = outcomes
        return StepResult(token_ids=token_ids, cuda_graph=self.cuda_graph)


class CudaRunner:
    """One GPU, one stream: passes run in launch order, and whatever they share is safe by that order."""

    def __init__(self, settings: WorkerSettings, config: ModelConfig, path: Path) -> None:
        try:
            with torch.inference_mode():
                self._load(settings, config, path)
        except torch.cuda.OutOfMemoryError as error:
            raise UserError(
                f"The GPU has too little memory for the model and its buffers ({str(error).split('. ')[0]}); lower "
                "--mem-fraction-static, or serve a smaller model."
            ) from None

    def _load(self, settings: WorkerSettings, config: ModelConfig, path: Path) -> None:
        device = _gpu()
        dtype = compute_dtype(settings, config, default=_GPU_DTYPE.get(config.dtype))
        if dtype not in _DTYPES:
            raise UserError(f"A GPU computes in bfloat16 or float16, not {settings.dtype}; choose --dtype bfloat16.")
        memory = GpuMemory.now(device)
        max_graph_size = settings.cuda_graph_max_bs or gpu_defaults(memory.total_bytes).max_graph_batch_size
        ops = CudaOps()
        weights = open_weights(settings, path, dtype=dtype, device=device)
        self._model = build_model(config, weights, ops)
        page_size = settings.page_size or DEFAULT_PAGE_SIZE
        size = size_pool(settings, config, memory, device=device, page_size=page_size, element_bytes=dtype.itemsize)
        attention = self._make_attention(config, size.num_pages, page_size, dtype, device)
        self._table = PageTable(max_rows=size.max_rows, context_len=config.context_len, page_size=page_size)
        self._passes = Passes(self._model, attention, self._table, device=device)
        self._groups = PrefixGroups(self._table, cost=CASCADE_COST, max_groups=MAX_GROUPS, min_rows=MIN_CASCADE_ROWS)
        self._cascade = not settings.disable_cascade_attention
        self._staging = Staging(_STAGED_INTS, device)
        self._results = ResultSlots(size.max_rows)
        sizes = _sizes(settings, max_graph_size, size.max_rows)
        self._graph_staging = Staging(self._passes.max_graph_staging(max((*sizes, 1))), device)
        self._head = ops.heads[-1]
        self._head.reserve(max((*sizes, _MIN_LOGIT_ROWS)))
        self._sampling = CudaSampling(config, size.max_rows, self._head, self._passes.next_tokens, device)
        self._graphs = self._capture(sizes)
        self._info = RunnerInfo(
            device="cuda",
            dtype=str(dtype).removeprefix("torch."),
            vocab_size=config.vocab_size,
            context_len=config.context_len,
            num_pages=size.num_pages,
            page_size=page_size,
            max_rows=size.max_rows,
            eos_token_ids=config.eos_token_ids,
            architectures=(config.architecture,),
            weight_bytes=weights.bytes_loaded,
            kv_bytes_per_token=kv_bytes_per_token(config, dtype.itemsize),
            available_memory_bytes=GpuMemory.now(device).free_bytes,
            overlaps=True,
        )

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @torch.inference_mode()
    def launch(self, batch: ForwardBatch) -> LaunchedStep:
        self._table.apply(batch.page_writes)
        self._sampling.admit(batch.admissions)
        try:
            work, captured = self._launch_pass(batch)
            outcome = self._sampling.choose(batch, work)
            return LaunchedStep(self._results.fetch(outcome), work.sequences, len(batch.rows), captured)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise StepFailed("The GPU has no memory left for this pass.") from None

    def latest_logits(self, num_sampled: int) -> torch.Tensor:
        """fp32 [num_sampled, vocab]: what the last launched pass, which sampled as many, chose from. For tests."""
        return self._head.latest(num_sampled)

    def close(self) -> None:
        torch.cuda.synchronize()
        self._graphs.clear()
        del self._model, self._passes

    def _launch_pass(self, batch: ForwardBatch) -> tuple[DevicePass, bool]:
        """Also: whether a graph computes it."""
        grouping = self._groups.find(batch) if self._cascade else alone(batch.seq_lens[: batch.num_decode])
        cascade = bool(grouping.groups)
        graph = None
        if len(batch.rows) == batch.num_decode:
            graph = self._graphs.find(batch.num_decode, cascade=cascade)
        if graph is not None and self._passes.staging_size(batch, grouping, graph.size) <= self._graph_staging.size:
            work = self._build(batch, grouping, PassShape(graph.size, captured=True, cascade=cascade))
            self._passes.enter_pages(work)
            self._graphs.replay(graph)
            return work, True
        work = self._build(batch, grouping, PassShape(batch.num_decode, captured=False, cascade=cascade))
        self._passes.enter_pages(work)
        self._passes.compute(work)
        return work, False

    def _build(self, batch: ForwardBatch, grouping: Grouping, shape: PassShape) -> DevicePass:
        staging = self._graph_staging if shape.captured else self._staging
        upload = staging.begin(self._passes.staging_size(batch, grouping, shape.size))
        try:
            return self._passes.build(batch, grouping, shape, upload)
        finally:
            staging.end()

    def _make_attention(
        self, config: ModelConfig, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> CudaAttention:
        pool = KVPool(
            num_layers=config.num_layers,
            num_pages=num_pages,
            page_size=page_size,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=dtype,
            device=device,
        )
        return CudaAttention(
            pool,
            cos_sin_table(config.rope, config.head_dim, config.context_len).to(device),
            num_heads=config.num_heads,
            prefill_backend="fa3" if torch.cuda.get_device_capability(device)[0] == 9 else "fa2",
            device=device,
        )

    def _capture(self, sizes: tuple[int, ...]) -> DecodeGraphs:
        graphs = DecodeGraphs(sizes, cascade_sizes(sizes, MIN_CASCADE_ROWS) if self._cascade else ())
        self._passes.compute(
            self._build(_TRIAL, alone(_TRIAL.seq_lens[:1]), PassShape(1, captured=False, cascade=False))
        )
        torch.cuda.synchronize()
        if sizes:
            with console_progress("Capturing CUDA graphs") as progress:
                graphs.capture(self._padding, progress)
        return graphs

    def _padding(self, key: GraphKey) -> Callable[[], None]:
        """A pass of `key.size` paddings, in the memory that later passes of this key will fill."""
        work = self._build(_NOTHING, alone(_NOTHING.seq_lens), PassShape(key.size, captured=True, cascade=key.cascade))
        return lambda: self._passes.compute(work)


def _gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def _sizes(settings: WorkerSettings, max_size: int, max_rows: int) -> tuple[int, ...]:
    if settings.disable_cuda_graph:
        return ()
    return graph_sizes(
        max_size=max_size,
        asked=settings.cuda_graph_bs,
        padding=not settings.disable_cuda_graph_padding,
        max_rows=max_rows,
    )


def _batch(num_decode: int, chunk: int) -> ForwardBatch:
    """`num_decode` decodes and a prefill chunk of row 0, as long as its pages are page 0."""
    lens = np.array([1] * num_decode + [chunk] * bool(chunk), np.int32)
    return ForwardBatch(
        step_id=-1,
        rows=np.zeros(len(lens), np.int32),
        query_lens=lens,
        seq_lens=lens,
        num_decode=num_decode,
        prefill_ids=np.zeros(chunk, np.int32),
        samples=np.ones(len(lens), np.bool_),
        page_writes=np.empty((0, 3), np.int32),
        admissions=(),
    )


_NOTHING = _batch(0, 0)
_TRIAL = _batch(1, 16)  # has kernels compiled and libraries loaded before the first request
