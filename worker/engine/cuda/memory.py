"""How much of the GPU is free, and how much of it the KV pool gets."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from common.errors import UserError
from worker.config import WorkerSettings
from worker.engine.memory import PoolSize, gpu_defaults, gpu_pool_size, mem_fraction_static
from worker.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Bytes of one GPU at one moment, unused memory that torch holds counted as free."""

    free_bytes: int
    total_bytes: int

    @staticmethod
    def now(device: torch.device) -> GpuMemory:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return GpuMemory(int(free), int(total))


def size_pool(
    settings: WorkerSettings,
    config: ModelConfig,
    before_weights: GpuMemory,
    *,
    device: torch.device,
    page_size: int,
    element_bytes: int,
) -> PoolSize:
    """The KV pool beside the weights, which are loaded by now. Raises UserError if there is no room for one."""
    total = before_weights.total_bytes
    defaults = gpu_defaults(total)
    chunk = settings.chunked_prefill_size
    fraction = settings.mem_fraction_static or mem_fraction_static(
        total,
        chunked_prefill_size=chunk if chunk is not None and chunk > 0 else defaults.chunked_prefill_size,
        max_graph_batch_size=settings.cuda_graph_max_bs or defaults.max_graph_batch_size,
    )
    free = GpuMemory.now(device).free_bytes
    weights = before_weights.free_bytes - free
    if free <= before_weights.free_bytes * (1 - fraction):
        raise UserError(
            f"The weights take {weights / 2**30:.1f} GiB, more than --mem-fraction-static {fraction} leaves of "
            f"{before_weights.free_bytes / 2**30:.1f} GiB; raise it or serve a smaller model."
        )
    return gpu_pool_size(
        config,
        page_size=page_size,
        element_bytes=element_bytes,
        free_before_weights_bytes=before_weights.free_bytes,
        free_after_weights_bytes=free,
        mem_fraction=fraction,
        max_total_tokens=settings.max_total_tokens,
        max_running_requests=settings.max_running_requests,
    )
