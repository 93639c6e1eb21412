"""How much of the GPU is free, and how much of it the KV pool gets."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from common.errors import UserError
from worker.config import WorkerSettings
from worker.engine.memory import PoolSize, chosen_mem_fraction, gpu_pool_size, kv_bytes_per_token
from worker.models.config import ModelConfig

NO_ROOM_FOR_BUFFERS = (
    "Weights and KV pool leave too little GPU memory for the buffers that passes need; lower --mem-fraction-static or "
    "--max-running-requests."
)


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


def no_room_for_weights(memory: GpuMemory) -> str:
    """What to say if the weights do not fit."""
    return (
        f"--model-path: the weights do not fit into the {memory.free_bytes / 2**30:.1f} GiB that are free of the GPU's "
        f"{memory.total_bytes / 2**30:.1f} GiB; serve a smaller model, or end what else runs on this GPU."
    )


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
    fraction = chosen_mem_fraction(
        before_weights.total_bytes,
        asked=settings.mem_fraction_static,
        chunked_prefill_size=settings.chunked_prefill_size,
        cuda_graph_max_bs=settings.cuda_graph_max_bs,
    )
    free = GpuMemory.now(device).free_bytes
    weights = before_weights.free_bytes - free
    if free <= before_weights.free_bytes * (1 - fraction):
        raise UserError(
            f"The weights take {weights / 2**30:.1f} GiB, more than --mem-fraction-static {fraction} leaves of "
            f"{before_weights.free_bytes / 2**30:.1f} GiB; raise it or serve a smaller model."
        )
    return gpu_pool_size(
        bytes_per_token=kv_bytes_per_token(config, element_bytes),
        context_len=config.context_len,
        page_size=page_size,
        free_before_weights_bytes=before_weights.free_bytes,
        free_after_weights_bytes=free,
        mem_fraction=fraction,
        max_total_tokens=settings.max_total_tokens,
        max_running_requests=settings.max_running_requests,
    )
