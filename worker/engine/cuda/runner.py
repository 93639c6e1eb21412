"""`ModelRunner` on a CUDA GPU. `launch` returns as soon as the pass is in the stream; results follow by an event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch

from common.errors import UserError
from worker.attention.flashinfer_kernels import HEAD_DIMS
from worker.attention.kv_pool import KVPool
from worker.config import WorkerSettings
from worker.engine.batch import ForwardBatch, NewWeights, RunnerInfo
from worker.engine.cuda.attention import CudaAttention
from worker.engine.cuda.cascade import CASCADE_COST, MAX_GROUPS, MIN_CASCADE_ROWS, Grouping, alone
from worker.engine.cuda.graph_sizes import cascade_sizes, pass_sizes
from worker.engine.cuda.graphs import DecodeGraphs, GraphKey, obstacle_to_capture
from worker.engine.cuda.launched import LaunchedStep
from worker.engine.cuda.memory import NO_ROOM_FOR_BUFFERS, GpuMemory, no_room_for_weights, size_pool
from worker.engine.cuda.passes import DevicePass, Passes, PassShape
from worker.engine.cuda.prefix_groups import PrefixGroups
from worker.engine.cuda.sampling import CudaSampling
from worker.engine.cuda.staging import ResultSlots, Staging
from worker.engine.loading import compute_dtype, load_on_gpu
from worker.engine.logprobs import ScoredTokens, pinned, prompt_requests, sampled_requests, score, score_prompt
from worker.engine.memory import kv_bytes_per_token
from worker.engine.new_weights import NO_ROOM, InPlace, checkpoint_of_same_model
from worker.engine.out_of_memory import step_failed, told_to_the_user
from worker.engine.page_table import PageTable
from worker.engine.pooling import Pooler, make_pooler
from worker.layers.cuda.ops import CudaOps
from worker.layers.rotary import cos_sin_table
from worker.models.config import LlamaConfig, ModelConfig
from worker.models.llama import LlamaModel
from worker.models.progress import console_progress
from worker.models.transformers_config import TransformersConfig

log = logging.getLogger(__name__)

DEFAULT_PAGE_SIZE = 16
_STAGED_INTS = 1 << 18  # grows if a pass needs more
_MIN_LOGIT_ROWS = 64
_DTYPES = (torch.bfloat16, torch.float16)
_GPU_DTYPE = {"float32": "bfloat16"}  # compute type for checkpoints whose own is not one


class CudaRunner:
    """One GPU, one stream: passes run in launch order, and whatever they share is safe by that order."""

    def __init__(self, settings: WorkerSettings, config: ModelConfig, path: Path) -> None:
        with torch.inference_mode(), told_to_the_user(NO_ROOM_FOR_BUFFERS):
            self._load(settings, config, path)

    def _load(self, settings: WorkerSettings, config: ModelConfig, path: Path) -> None:
        device = _gpu()
        dtype = compute_dtype(settings, config, default=_GPU_DTYPE.get(config.dtype))
        if dtype not in _DTYPES:
            raise UserError(f"A GPU computes in bfloat16 or float16, not {settings.dtype}; choose --dtype bfloat16.")
        memory = GpuMemory.now(device)
        ops = CudaOps()
        self._settings, self._config = settings, config
        if isinstance(config, TransformersConfig):
            config = config.padded_to(HEAD_DIMS)
        with told_to_the_user(no_room_for_weights(memory)):
            loaded = load_on_gpu(settings, config, path, ops, dtype=dtype, device=device)
        self._model, self._successors = loaded.model, loaded.successors
        page_size = settings.page_size or DEFAULT_PAGE_SIZE
        size = size_pool(settings, config, memory, device=device, page_size=page_size, element_bytes=dtype.itemsize)
        attention = self._make_attention(config, size.num_pages, page_size, dtype, device)
        self._table = PageTable(max_rows=size.max_rows, context_len=config.context_len, page_size=page_size)
        self._passes = Passes(self._model, attention, self._table, device=device)
        self._groups = PrefixGroups(self._table, cost=CASCADE_COST, max_groups=MAX_GROUPS, min_rows=MIN_CASCADE_ROWS)
        self._cascade = not settings.disable_cascade_attention
        self._staging = Staging(_STAGED_INTS, device)
        self._results = ResultSlots(size.max_rows)
        self._pooler = make_pooler(config, size.max_rows, device)
        sizes = pass_sizes(settings, total_bytes=memory.total_bytes, max_rows=size.max_rows)
        if self._pooler is not None:
            sizes = ()  # nothing is ever decoded
        self._graph_staging = Staging(self._passes.max_graph_staging(max((*sizes, 1))), device)
        self._head = ops.heads[-1]
        self._head.reserve(max((*sizes, _MIN_LOGIT_ROWS)))
        self._sampling = CudaSampling(config, size.max_rows, self._head, self._passes.next_tokens, device)
        self._graphs = self._make_graphs(settings, sizes)
        info = RunnerInfo(
            device="cuda",
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
            available_memory_bytes=GpuMemory.now(device).free_bytes,
            overlaps=True,
        )
        self._info = info if self._pooler is None else self._pooler.describe(info)

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @torch.inference_mode()
    def launch(self, batch: ForwardBatch) -> LaunchedStep:
        self._table.apply(batch.page_writes)
        try:
            if self._pooler is not None:
                return self._launch_pooled(self._pooler, batch)
            self._sampling.admit(batch.admissions)
            work, captured, hidden = self._launch_pass(batch)
            outcome = self._sampling.choose(batch, work)
            scored = self._score(batch, work, hidden) if batch.score_requests else ()
            return LaunchedStep(self._results.fetch(outcome), scored, work.sequences, batch, captured)
        except (MemoryError, RuntimeError) as error:
            failed = step_failed(error, batch, where="GPU")
        # The traceback, and with it the pass's tensors, is gone here. What was launched of the pass may still be
        # writing to them from the second stream.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        raise failed

    def latest_logits(self, num_sampled: int) -> torch.Tensor:
        """fp32 [num_sampled, vocab]: what the last launched pass, which sampled as many, chose from. For tests."""
        return self._head.latest(num_sampled)

    def load_weights(self, model_path: str) -> NewWeights:
        path = checkpoint_of_same_model(model_path, self._settings, self._config, self._info.weight_bytes)
        with torch.inference_mode(), told_to_the_user(NO_ROOM):
            return InPlace(self._successors(path))

    def close(self) -> None:
        torch.cuda.synchronize()
        self._graphs.clear()
        del self._model, self._successors, self._passes

    def _launch_pooled(self, pooler: Pooler, batch: ForwardBatch) -> LaunchedStep:
        """A pass of which only hidden states are wanted: nothing is sampled in it, so no logits are computed."""
        silent = msgspec.structs.replace(batch, samples=np.zeros_like(batch.samples))
        work, captured, hidden = self._launch_pass(silent)
        assert hidden is not None
        vectors = pinned(pooler.pool(batch, hidden))
        return LaunchedStep(self._results.fetch(work.token_ids), (), work.sequences, batch, captured, vectors)

    def _launch_pass(self, batch: ForwardBatch) -> tuple[DevicePass, bool, torch.Tensor | None]:
        """Also: whether a graph computes it, and the final hidden states, which passes with prompts always have."""
        grouping = self._groups.find(batch) if self._cascade else alone(batch.seq_lens[: batch.num_decode])
        cascade = bool(grouping.groups)
        key = None
        if len(batch.rows) == batch.num_decode:
            key = self._graphs.find(batch.num_decode, cascade=cascade)
        if key is None or self._passes.staging_size(batch, grouping, key.size) > self._graph_staging.size:
            shape = PassShape(batch.num_decode, fixed=False, cascade=cascade)
        else:
            shape = PassShape(key.size, fixed=True, cascade=cascade)
        work = self._build(batch, grouping, shape)
        self._passes.enter_pages(work)
        if shape.fixed and key is not None and self._graphs.replay(key):
            return work, True, None
        return work, False, self._passes.compute(work)

    def _score(self, batch: ForwardBatch, work: DevicePass, hidden: torch.Tensor | None) -> list[ScoredTokens]:
        """Log-probabilities, on their way to the host. Those of the prompt come last: their logits take the place of
        the sampled ones."""
        scored = []
        if wishes := sampled_requests(batch):
            place_of = {sequence: place for place, sequence in enumerate(work.sequences.tolist())}
            places = torch.tensor([place_of[wish.index] for wish in wishes], device=work.token_ids.device)
            logits = self._head.latest(len(work.sampled_rows)).index_select(0, places)
            scored.append(score(logits, work.token_ids.index_select(0, places).long(), wishes))
        starts = np.cumsum(batch.query_lens) - batch.query_lens
        for request in prompt_requests(batch):
            assert hidden is not None
            scored.append(score_prompt(request, hidden, self._model.logits, int(starts[request.index])))
        return [each.fetch() for each in scored]

    def _build(self, batch: ForwardBatch, grouping: Grouping, shape: PassShape) -> DevicePass:
        staging = self._graph_staging if shape.fixed else self._staging
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
            _cos_sin(config, device),
            num_heads=config.num_heads,
            prefill_backend="fa3" if torch.cuda.get_device_capability(device)[0] == 9 else "fa2",
            device=device,
        )

    def _make_graphs(self, settings: WorkerSettings, sizes: tuple[int, ...]) -> DecodeGraphs:
        graphs = DecodeGraphs(sizes, cascade_sizes(sizes, MIN_CASCADE_ROWS) if self._cascade else ())
        self._passes.compute(self._build(_TRIAL, alone(_TRIAL.seq_lens[:1]), PassShape(1, fixed=False, cascade=False)))
        torch.cuda.synchronize()
        if sizes and not settings.disable_cuda_graph and self._can_capture(GraphKey(sizes[0], cascade=False)):
            with console_progress("Capturing CUDA graphs") as progress:
                graphs.capture(self._padding, progress)
        return graphs

    def _can_capture(self, key: GraphKey) -> bool:
        """Whether graphs can hold this model's decodes. Our own code never waits for the GPU; others' may."""
        if isinstance(self._model, LlamaModel):
            return True
        obstacle = obstacle_to_capture(self._padding(key))
        if obstacle is not None:
            log.warning("Decodes run without CUDA graphs: the model's code waits for the GPU (%s).", obstacle)
        return obstacle is None

    def _padding(self, key: GraphKey) -> Callable[[], object]:
        """A pass of `key.size` paddings, in the memory that later passes of this key will fill."""
        work = self._build(_NOTHING, alone(_NOTHING.seq_lens), PassShape(key.size, fixed=True, cascade=key.cascade))
        return lambda: self._passes.compute(work)


def _cos_sin(config: ModelConfig, device: torch.device) -> torch.Tensor | None:
    """The table that attention rotates by; None for models that rotate by themselves."""
    if not isinstance(config, LlamaConfig):
        return None
    return cos_sin_table(config.rope, config.head_dim, config.context_len).to(device)


def _gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


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
