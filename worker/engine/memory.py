"""How large the KV pool is and what follows from it. Pure functions; bytes unless a name says otherwise.

The GPU rules are those behind SGLang's --mem-fraction-static, so that its tuning guide holds here.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import UserError
from worker.models.config import ModelConfig

MIB = 2**20
GIB = 2**30

CPU_POOL_BYTES = 3 * GIB // 2
CPU_MAX_ROWS = 64  # a step's time grows in proportion to its requests beyond this; more only wait for each other
FALLBACK_MEM_FRACTION = 0.88
GPU_MAX_ROWS_RANGE = (2048, 4096)


@dataclass(frozen=True, slots=True)
class GpuDefaults:
    """What a GPU of some size starts with."""

    chunked_prefill_size: int  # tokens
    max_graph_batch_size: int  # requests


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The KV pool and the request table."""

    num_pages: int
    max_rows: int


def kv_bytes_per_token(config: ModelConfig, element_bytes: int) -> int:
    """Keys and values of all layers for one token."""
    return 2 * config.num_layers * config.kv_size * element_bytes


def cpu_pool_size(
    config: ModelConfig,
    *,
    page_size: int,
    element_bytes: int,
    free_bytes: int,
    max_total_tokens: int | None,
    max_running_requests: int | None,
) -> PoolSize:
    """A constant amount of memory, at most half of what is free, and no more than all rows could fill."""
    max_rows = max_running_requests or CPU_MAX_ROWS
    tokens = max_total_tokens
    if tokens is None:
        budget = min(CPU_POOL_BYTES, free_bytes // 2)
        tokens = min(budget // kv_bytes_per_token(config, element_bytes), max_rows * config.context_len)
    return _pool_size(tokens, page_size, max_rows)


def gpu_defaults(total_bytes: int) -> GpuDefaults:
    """Starting values by GPU memory."""
    table = ((20, 2048, 8), (35, 2048, 24), (60, 4096, 32), (90, 8192, 256), (160, 8192, 256))
    for below_gib, chunk, graph in table:
        if total_bytes < below_gib * GIB:
            return GpuDefaults(chunk, graph)
    return GpuDefaults(16384, 512)


def mem_fraction_static(total_bytes: int, *, chunked_prefill_size: int, max_graph_batch_size: int) -> float:
    """(weights + KV pool) / GPU memory: what activations and CUDA graphs do not need, by rule of thumb in MiB."""
    total_mib = total_bytes / MIB
    reserved_mib = 512 + 1.5 * max(chunked_prefill_size, 2048) + 2 * max_graph_batch_size + 1024 / 8
    if total_mib > 60 * 1024:
        reserved_mib = max(reserved_mib, 10 * 1024)
    fraction = round((total_mib - reserved_mib) / total_mib, 3)
    return fraction if fraction > 0 else FALLBACK_MEM_FRACTION


def chosen_mem_fraction(
    total_bytes: int, *, asked: float | None, chunked_prefill_size: int | None, cuda_graph_max_bs: int | None
) -> float:
    """`asked` (--mem-fraction-static), or the rule of thumb with the other settings or their defaults."""
    if asked is not None:
        return asked
    defaults = gpu_defaults(total_bytes)
    chunk = chunked_prefill_size
    return mem_fraction_static(
        total_bytes,
        chunked_prefill_size=chunk if chunk is not None and chunk > 0 else defaults.chunked_prefill_size,
        max_graph_batch_size=cuda_graph_max_bs or defaults.max_graph_batch_size,
    )


def gpu_pool_size(
    *,
    bytes_per_token: int,
    context_len: int,
    page_size: int,
    free_before_weights_bytes: int,
    free_after_weights_bytes: int,
    mem_fraction: float,
    max_total_tokens: int | None,
    max_running_requests: int | None,
) -> PoolSize:
    """What `mem_fraction` of the memory that was free at the start leaves beside the weights."""
    budget = free_after_weights_bytes - int(free_before_weights_bytes * (1 - mem_fraction))
    tokens = max(0, budget) // bytes_per_token
    if max_total_tokens is not None:
        tokens = min(tokens, max_total_tokens)
    low, high = GPU_MAX_ROWS_RANGE
    table_rows = min(max(int(tokens / context_len * 512), low), high)
    return _pool_size(tokens, page_size, min(max_running_requests or tokens // 2, table_rows))


def _pool_size(tokens: int, page_size: int, max_rows: int) -> PoolSize:
    num_pages = tokens // page_size
    if num_pages < 2:
        raise UserError(
            f"The KV pool would hold {tokens} tokens, less than two pages of {page_size}; free memory, raise "
            "--max-total-tokens or --mem-fraction-static, or lower --page-size."
        )
    return PoolSize(num_pages=num_pages, max_rows=max(1, min(max_rows, num_pages)))
