"""Pool sizes: worked numbers of the sizing rules, and what they never do."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from worker.engine.memory import (
    CPU_MAX_ROWS,
    GIB,
    MIB,
    GpuDefaults,
    chosen_mem_fraction,
    cpu_pool_size,
    gpu_defaults,
    gpu_pool_size,
    kv_bytes_per_token,
    mem_fraction_static,
)
from worker.layers.rope_config import RopeConfig
from worker.models.config import LlamaConfig

LLAMA_8B = LlamaConfig(
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=5e5),
    tie_word_embeddings=False,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    context_len=8192,
    eos_token_ids=(2,),
    dtype="bfloat16",
)
SMOLLM = dataclasses.replace(LLAMA_8B, num_layers=30, num_kv_heads=3, head_dim=64)


def test_kv_bytes() -> None:
    assert kv_bytes_per_token(LLAMA_8B, 2) == 131072
    assert kv_bytes_per_token(SMOLLM, 4) == 46080


def cpu(**changes: int | None) -> tuple[int, int]:
    arguments = {"page_size": 1, "free_bytes": 16 * GIB, "max_total_tokens": None, "max_running_requests": None}
    size = cpu_pool_size(SMOLLM, element_bytes=4, **(arguments | changes))  # type: ignore[arg-type]
    return size.num_pages, size.max_rows


def test_cpu_pool() -> None:
    assert cpu() == (3 * GIB // 2 // 46080, CPU_MAX_ROWS) == (34952, 64)
    assert cpu(page_size=16) == (34952 // 16, 64)
    assert cpu(free_bytes=GIB) == (GIB // 2 // 46080, 64)
    assert cpu(max_total_tokens=1000, page_size=16) == (62, 62)
    assert cpu(max_running_requests=3) == (3 * 8192, 3)
    assert cpu(max_running_requests=500) == (34952, 500)
    with pytest.raises(UserError, match="would hold 20 tokens, less than two pages of 16"):
        cpu(max_total_tokens=20, page_size=16)


def test_defaults_by_gpu_memory() -> None:
    sizes = {16: (2048, 8), 24: (2048, 24), 48: (4096, 32), 80: (8192, 256), 141: (8192, 256), 192: (16384, 512)}
    assert {gib: gpu_defaults(gib * GIB) for gib in sizes} == {gib: GpuDefaults(*v) for gib, v in sizes.items()}


def test_mem_fraction_of_known_gpus() -> None:
    """Worked by hand from the rule: 512 + 1.5 * chunk + 2 * batch + 128 MiB, at least 10 GiB on large GPUs."""
    known = {143771: 0.907, 81559: 0.835, 40000: 0.829}
    for total_mib, fraction in known.items():
        defaults = gpu_defaults(total_mib * MIB)
        assert fraction == mem_fraction_static(
            total_mib * MIB,
            chunked_prefill_size=defaults.chunked_prefill_size,
            max_graph_batch_size=defaults.max_graph_batch_size,
        )


def test_the_fraction_that_was_asked_for_is_taken_else_the_rule_sees_the_settings() -> None:
    total = 143_771 * MIB
    assert chosen_mem_fraction(total, asked=0.5, chunked_prefill_size=None, cuda_graph_max_bs=None) == 0.5
    assert chosen_mem_fraction(total, asked=None, chunked_prefill_size=-1, cuda_graph_max_bs=None) == (
        mem_fraction_static(total, chunked_prefill_size=8192, max_graph_batch_size=256)
    )
    assert chosen_mem_fraction(total, asked=None, chunked_prefill_size=16384, cuda_graph_max_bs=512) == (
        mem_fraction_static(total, chunked_prefill_size=16384, max_graph_batch_size=512)
    )


def gpu(**changes: float | int | None) -> tuple[int, int]:
    arguments: dict[str, float | int | None] = {
        "free_before_weights_bytes": 140 * GIB,
        "free_after_weights_bytes": 125 * GIB,
        "mem_fraction": 0.9,
        "page_size": 16,
        "max_total_tokens": None,
        "max_running_requests": None,
    }
    size = gpu_pool_size(bytes_per_token=131072, context_len=8192, **(arguments | changes))  # type: ignore[arg-type]
    return size.num_pages, size.max_rows


def test_gpu_pool() -> None:
    tokens = (125 - 14) * GIB // 131072
    assert gpu() == (tokens // 16, 4096)
    assert gpu(max_total_tokens=20000) == (1250, 1250)
    assert gpu(max_total_tokens=20000, page_size=1) == (20000, 2048)
    assert gpu(max_running_requests=100) == (tokens // 16, 100)
    with pytest.raises(UserError, match="--mem-fraction-static"):
        gpu(free_after_weights_bytes=10 * GIB)


@given(
    st.integers(0, 2**40),
    st.integers(1, 128),
    st.one_of(st.none(), st.integers(16, 10**7)),
    st.one_of(st.none(), st.integers(1, 5000)),
)
def test_a_pool_never_exceeds_its_bounds(
    free_bytes: int, page_size: int, max_total_tokens: int | None, max_running_requests: int | None
) -> None:
    try:
        pages, rows = cpu(
            free_bytes=free_bytes,
            page_size=page_size,
            max_total_tokens=max_total_tokens,
            max_running_requests=max_running_requests,
        )
    except UserError:
        return
    assert 1 <= rows <= min(pages, max_running_requests or CPU_MAX_ROWS)
    if max_total_tokens is None:
        assert pages * page_size * 46080 <= min(free_bytes / 2, 1.5 * GIB)
    else:
        assert max_total_tokens - page_size < pages * page_size <= max_total_tokens
