"""Architectures beside Llama on the CUDA runner, against Transformers in fp32: the other families of our own code, and
decoders by Transformers' code. Cases named head64 need kernels for heads of 64, which take a minute to build."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from tests.gpu.reference import SMALL, Agreement, Run, compare, compare_transformers, make_checkpoint, run

NUM_TOKENS = 24
SETTINGS: dict[str, Any] = {"cuda_graph_bs": [1, 8, 24], "max_total_tokens": 20_000, "max_running_requests": 24}

_TINY = SMALL | {"vocab_size": 1000, "num_hidden_layers": 2}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 256}


def _config(architecture: str, model_type: str, **values: Any) -> dict[str, Any]:
    return _TINY | {"architectures": [architecture], "model_type": model_type} | values


OWN: dict[str, dict[str, Any]] = {
    "mistral": _config("MistralForCausalLM", "mistral", sliding_window=None),
    "qwen2": _config("Qwen2ForCausalLM", "qwen2", use_sliding_window=False),
    "qwen3": _config("Qwen3ForCausalLM", "qwen3"),
}
DENSE: dict[str, dict[str, Any]] = {
    "gemma": _config("GemmaForCausalLM", "gemma", hidden_activation="gelu_pytorch_tanh"),
    # 4 heads of 128
    "phi3": _config("Phi3ForCausalLM", "phi3", num_attention_heads=4, pad_token_id=0),
    # 4 heads of 96, padded to 128; scores and logits of another scale
    "granite-96": _config(
        "GraniteForCausalLM",
        "granite",
        hidden_size=384,
        num_attention_heads=4,
        head_dim=96,
        attention_multiplier=0.15,
        logits_scaling=3.0,
    ),
    "phi3-head64": _config("Phi3ForCausalLM", "phi3", num_attention_heads=8, pad_token_id=0, head_dim=64),
}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": _config("MixtralForCausalLM", "mixtral", num_local_experts=8, num_experts_per_tok=2),
    "qwen3_moe": _config("Qwen3MoeForCausalLM", "qwen3_moe", num_experts=8, norm_topk_prob=True, **_EXPERTS),
}


def prompts(seed: int) -> list[list[int]]:
    """20 prompts, 12 of them with 150 shared tokens; some longer than a chunk."""
    random = np.random.default_rng(seed)
    shared = random.integers(3, 1000, 150).tolist()
    tails = [random.integers(3, 1000, int(random.integers(1, 60))).tolist() for _ in range(12)]
    alone = [random.integers(3, 1000, int(random.integers(1, 400))).tolist() for _ in range(8)]
    return [*(shared + tail for tail in tails), *alone]


def answer(directory: Path, config: dict[str, Any], **settings: Any) -> tuple[list[list[int]], Run, Agreement]:
    make_checkpoint(directory, config, seed=int(time.time()))
    asked = prompts(seed=1)
    result = run(directory, asked, NUM_TOKENS, **SETTINGS | settings)
    agreement = compare(directory, asked, result)
    print(f"\n{config['architectures'][0]}: {agreement}, CUDA graphs: {result.cuda_graphs}")
    return asked, result, agreement


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", OWN)
def test_own_code_of_other_families(name: str, tmp_path: Path) -> None:
    _, result, agreement = answer(tmp_path, OWN[name])
    assert result.cuda_graphs
    assert agreement.relative_error < 2e-2
    assert agreement.same_top >= 0.98


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", DENSE)
def test_dense_decoders_by_transformers_code(name: str, tmp_path: Path) -> None:
    """As near to fp32 as Transformers' own bf16 is. Without graphs the answers are the same, but for one near tie."""
    asked, result, agreement = answer(tmp_path, DENSE[name])
    theirs = compare_transformers(tmp_path, asked, result)
    print(f"Transformers in bf16: {theirs}")
    assert result.cuda_graphs
    assert agreement.relative_error < max(1.25 * theirs.relative_error, 1e-2)
    assert agreement.same_top >= min(theirs.same_top, 0.99) - 0.01
    eager = run(tmp_path, asked, NUM_TOKENS, **SETTINGS, disable_cuda_graph=True)
    assert sum(a == b for a, b in zip(eager.tokens, result.tokens, strict=True)) >= len(asked) - 1


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_of_experts(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rounding may send a token to another expert, for us as for Transformers in bf16: errors are of its size. Decodes
    are captured, or a log line says why they are not."""
    with caplog.at_level(logging.WARNING):
        asked, result, agreement = answer(tmp_path, MIXTURES[name])
    theirs = compare_transformers(tmp_path, asked, result)
    print(f"Transformers in bf16: {theirs}")
    assert result.cuda_graphs != ("Decodes run without CUDA graphs" in caplog.text)
    assert agreement.relative_error < 1.5 * theirs.relative_error + 1e-2
    assert agreement.same_top >= theirs.same_top - 0.03


@pytest.mark.timeout(120)
def test_llama_by_transformers_code(tmp_path: Path) -> None:
    config = _config("LlamaForCausalLM", "llama")
    _, result, agreement = answer(tmp_path, config, model_impl="transformers")
    assert result.cuda_graphs
    assert agreement.relative_error < 3e-2
    assert agreement.same_top >= 0.97
