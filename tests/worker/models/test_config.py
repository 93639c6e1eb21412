"""What is read from config.json, generation_config.json and the tokenizer's files, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from tests.helpers.tiny_models import TINY_CONFIGS
from worker.layers.rope_config import RopeConfig
from worker.models.config import LlamaConfig, load_model_config

# As published for Llama 3.1 8B, before Transformers 5.
LLAMA_31: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}


def write(folder: Path, name: str = "config.json", **values: Any) -> Path:
    (folder / name).write_text(json.dumps(values))
    return folder


def load(folder: Path, base: dict[str, Any] = LLAMA_31, **changes: Any) -> LlamaConfig:
    return llama_config(write(folder, **(base | changes)))


def llama_config(folder: Path, **options: Any) -> LlamaConfig:
    config = load_model_config(folder, **options)
    assert isinstance(config, LlamaConfig)
    return config


def test_llama_31(tmp_path: Path) -> None:
    assert load(tmp_path) == LlamaConfig(
        architecture="LlamaForCausalLM",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
        rope=RopeConfig(
            theta=500000.0,
            kind="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_context_len=8192,
        ),
        tie_word_embeddings=False,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        context_len=131072,
        eos_token_ids=(128001, 128008, 128009),
        dtype="bfloat16",
    )


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_what_transformers_writes(name: str, tmp_path: Path) -> None:
    """The same reading of a configuration as Transformers' own, for every family."""
    theirs = TINY_CONFIGS[name]
    theirs.architectures = [f"{type(theirs).__name__.removesuffix('Config')}ForCausalLM"]
    theirs.save_pretrained(tmp_path)
    ours = load_model_config(tmp_path)
    assert (ours.num_heads, ours.num_kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert (ours.hidden_size, ours.head_dim) == (theirs.hidden_size, 16)
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.rope.kind == theirs.rope_parameters["rope_type"]
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.qkv_bias == (name in ("qwen2", "llama-bias", "llama-bias-llama3"))
    assert ours.o_bias == name.startswith("llama-bias")
    assert ours.mlp_bias == (name == "llama-bias-llama3")
    assert ours.qk_norm == (name == "qwen3")


def test_rope_of_transformers_5(tmp_path: Path) -> None:
    config = load(tmp_path, rope_scaling=None, rope_parameters={"rope_theta": 7.0, "rope_type": "linear", "factor": 2})
    assert config.rope == RopeConfig(theta=7.0, kind="linear", factor=2.0)


def test_head_dim_and_kv_heads_may_be_left_out(tmp_path: Path) -> None:
    config = load(tmp_path, num_key_value_heads=None, head_dim=None)
    assert (config.num_kv_heads, config.head_dim, config.q_size, config.kv_size) == (32, 128, 4096, 4096)


def test_eos_ids_of_all_files_without_repeats(tmp_path: Path) -> None:
    write(tmp_path, "generation_config.json", eos_token_id=[9, 7])
    write(tmp_path, "tokenizer_config.json", eos_token={"content": "<end>"})
    write(tmp_path, "tokenizer.json", added_tokens=[{"id": 4, "content": "<s>"}, {"id": 5, "content": "<end>"}])
    assert load(tmp_path, eos_token_id=7).eos_token_ids == (7, 9, 5)
    write(
        tmp_path,
        "tokenizer_config.json",
        eos_token="<end>",
        added_tokens_decoder={"6": {"content": "<end>"}, "8": {"content": "x"}},
    )
    assert load(tmp_path, eos_token_id=None).eos_token_ids == (9, 7, 6)


def test_eos_ids_outside_the_vocabulary_are_left_out(tmp_path: Path) -> None:
    assert load(tmp_path, eos_token_id=[7, 10**6, -1]).eos_token_ids == (7,)


def test_overrides_and_context_length(tmp_path: Path) -> None:
    write(tmp_path, **LLAMA_31)
    config = llama_config(tmp_path, context_length=1000, overrides={"rms_norm_eps": 0.5})
    assert (config.context_len, config.rms_norm_eps) == (1000, 0.5)
    with pytest.raises(UserError, match="--context-length 131073 exceeds the 131072 tokens"):
        load_model_config(tmp_path, context_length=131073)


MISTRAL = LLAMA_31 | {"architectures": ["MistralForCausalLM"], "rope_scaling": None, "sliding_window": 4096}
QWEN2 = MISTRAL | {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False}


def test_sliding_windows_are_refused_unless_they_cannot_matter(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="window of 4096 tokens.* --context-length 4096"):
        load(tmp_path, MISTRAL)
    assert load_model_config(tmp_path, context_length=4096).context_len == 4096
    assert load(tmp_path, MISTRAL, sliding_window=None).context_len == 131072
    with pytest.raises(UserError, match="window of 4096 tokens"):
        load(tmp_path, {k: v for k, v in MISTRAL.items() if k != "sliding_window"})
    assert load(tmp_path, QWEN2).qkv_bias
    with pytest.raises(UserError, match="window of 4096"):
        load(tmp_path, QWEN2, use_sliding_window=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": None}, "lacks the key 'architectures'"),
        ({"hidden_act": "gelu"}, "activation gelu is not supported.* use --model-impl transformers"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling yarn is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks the key 'factor'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": "wide"}, "value of the wrong type"),
    ],
)
def test_what_is_not_built_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load(tmp_path, **changes)


def test_canopys_own_code_can_be_asked_for(tmp_path: Path) -> None:
    write(tmp_path, **(LLAMA_31 | {"architectures": ["GemmaForCausalLM"]}))
    with pytest.raises(UserError, match="--model-impl canopy knows the architectures LlamaF.*, not GemmaForCausalLM"):
        load_model_config(tmp_path, model_impl="canopy")


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.json in .*; is it a model directory"):
        load_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        load_model_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserError, match="must hold a JSON object"):
        load_model_config(tmp_path)
    without = {k: v for k, v in LLAMA_31.items() if k != "vocab_size"}
    with pytest.raises(UserError, match="lacks the key 'vocab_size'"):
        load_model_config(write(tmp_path, **without))


def test_the_frontend_can_read_models_without_torch() -> None:
    code = (
        "import sys, worker.models.config, worker.models.paths, worker.models.gguf, worker.engine.factory; "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
