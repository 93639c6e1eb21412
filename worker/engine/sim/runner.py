"""`ModelRunner` on a simulated device: passes take the time that a profile predicts, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from common.errors import UserError
from worker.config import WorkerSettings
from worker.engine.batch import ForwardBatch, Int32s, NewWeights, RunnerInfo, StepResult
from worker.engine.cuda.graph_sizes import pass_sizes
from worker.engine.memory import PoolSize, chosen_mem_fraction, gpu_pool_size
from worker.engine.page_table import PageTable
from worker.engine.sim.answers import Answers, AnswerSource, OneToken
from worker.engine.sim.clock import DeviceClock
from worker.engine.sim.profile import DeviceMemory, SimProfile
from worker.engine.sim.shape import ShapeReader
from worker.engine.sim.step_time import StepShape, decode_times_s, step_time_s
from worker.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class SimStep:
    """A pass that is done at `done_s`."""

    clock: DeviceClock
    done_s: float
    outcome: StepResult

    def result(self) -> StepResult:
        self.clock.wait_until(self.done_s)
        return self.outcome


class SimRunner:
    """Vocabulary, context and EOS are the model's, all else the profile's. `ids` are the tokens answers are made of; a
    single one spares the hashing of what came before, and no answer ends by itself then."""

    def __init__(
        self, settings: WorkerSettings, config: ModelConfig, profile: SimProfile, ids: Int32s, clock: DeviceClock
    ) -> None:
        self._clock = clock
        self._costs = profile.costs
        self._speed = settings.sim_speed
        self._busy_until_s = clock.now_s()
        page_size = settings.page_size or profile.page_size
        memory = profile.memory
        size = _pool_size(settings, config, memory, page_size)
        self._table = table = PageTable(max_rows=size.max_rows, context_len=config.context_len, page_size=page_size)
        self._shapes = ShapeReader(
            table,
            sizes=pass_sizes(settings, total_bytes=memory.total_bytes, max_rows=size.max_rows),
            captured=not settings.disable_cuda_graph,
            cascade=not settings.disable_cascade_attention,
        )
        self._answers: AnswerSource = (
            OneToken(int(ids[0]))
            if len(ids) == 1
            else Answers(
                table,
                num_pages=size.num_pages,
                ids=ids,
                eos_id=config.eos_token_ids[0] if config.eos_token_ids else None,
                answer_tokens=profile.answer_tokens,
            )
        )
        self._shape: StepShape | None = None  # of the last pass
        self._info = RunnerInfo(
            device="sim",
            dtype=profile.dtype,
            vocab_size=config.vocab_size,
            context_len=config.context_len,
            num_pages=size.num_pages,
            page_size=page_size,
            max_rows=size.max_rows,
            eos_token_ids=config.eos_token_ids,
            architectures=(config.architecture,),
            weight_bytes=memory.weight_bytes,
            kv_bytes_per_token=memory.kv_bytes_per_token,
            available_memory_bytes=_left_bytes(memory, size.num_pages * page_size),
            overlaps=True,
            has_logits=False,
        )

    @property
    def info(self) -> RunnerInfo:
        return self._info

    def launch(self, batch: ForwardBatch) -> SimStep:
        self._table.apply(batch.page_writes)
        shape = self._shape = self._shapes.read(batch)
        outcome = StepResult(token_ids=self._answers.step(batch), cuda_graph=shape.graph)
        start_s = max(self._clock.now_s(), self._busy_until_s)
        self._busy_until_s = start_s + step_time_s(shape, self._costs) / self._speed
        return SimStep(self._clock, self._busy_until_s, outcome)

    @property
    def busy_until_s(self) -> float:
        """When the last pass launched is done."""
        return self._busy_until_s

    def repeat_ends_s(self, steps: int) -> npt.NDArray[np.float64]:
        """[steps], when the next passes are done if all they do is decode the rows of the last one, as it did."""
        assert self._shape is not None and not self._shape.num_chunks
        times_s = decode_times_s(self._shape, self._costs, steps) / self._speed
        return np.cumsum(np.concatenate(([self._busy_until_s], times_s)))[1:]

    def repeat(self, batch: ForwardBatch, steps: int, done_s: float) -> SimStep:
        """Launch so many passes at once, as `repeat_ends_s` foresaw them, the last of which is done then. `batch` is
        that last one, with the page writes of all."""
        assert self._shape is not None
        grown = self._shape.context_tokens + steps * self._shape.num_decode
        self._shape = msgspec.structs.replace(self._shape, context_tokens=grown)
        self._table.apply(batch.page_writes)
        self._busy_until_s = done_s
        return SimStep(self._clock, done_s, StepResult(self._answers.step(batch), cuda_graph=self._shape.graph))

    def load_weights(self, model_path: str) -> NewWeights:
        raise UserError("A simulated device has no weights to replace.")

    def close(self) -> None:
        pass


def _pool_size(settings: WorkerSettings, config: ModelConfig, memory: DeviceMemory, page_size: int) -> PoolSize:
    fraction = chosen_mem_fraction(
        memory.total_bytes,
        asked=settings.mem_fraction_static,
        chunked_prefill_size=settings.chunked_prefill_size,
        cuda_graph_max_bs=settings.cuda_graph_max_bs,
    )
    if memory.weight_bytes >= memory.free_bytes * fraction:
        raise UserError(
            f"The weights take {memory.weight_bytes / 2**30:.1f} GiB, more than --mem-fraction-static {fraction} "
            f"leaves of {memory.free_bytes / 2**30:.1f} GiB; raise it or choose another --sim-profile."
        )
    return gpu_pool_size(
        bytes_per_token=memory.kv_bytes_per_token,
        context_len=config.context_len,
        page_size=page_size,
        free_before_weights_bytes=memory.free_bytes,
        free_after_weights_bytes=memory.free_bytes - memory.weight_bytes,
        mem_fraction=fraction,
        max_total_tokens=settings.max_total_tokens,
        max_running_requests=settings.max_running_requests,
    )


def _left_bytes(memory: DeviceMemory, pool_tokens: int) -> int:
    """Bytes free beside weights, pool and buffers. Raises UserError if the device would have run out of memory."""
    left = memory.free_bytes - memory.weight_bytes - memory.workspace_bytes - pool_tokens * memory.kv_bytes_per_token
    if left < 0:
        raise UserError(
            f"Weights and KV pool leave {-left / 2**30:.1f} GiB too little of the simulated memory for the "
            "buffers that passes need; lower --mem-fraction-static or --max-total-tokens."
        )
    return left
