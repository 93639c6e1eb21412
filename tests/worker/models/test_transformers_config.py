"""What is read from the configuration of a model that Transformers' code computes, and which models are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from common.errors import UserError
from tests.helpers.other_models import OTHER_CONFIGS
from tests.helpers.tiny_models import SIZES
from worker.models.config import load_model_config
from worker.models.transformers_config import TransformersConfig

PURE = "it is not a pure attention decoder"
NO_HEAD_DIM = {key: value for key, value in SIZES.items() if key != "head_dim"}


def load(folder: Path, config: Any, architecture: str, **options: Any) -> TransformersConfig:
    (folder / "config.json").write_text(json.dumps(config.to_dict() | {"architectures": [architecture]}))
    loaded = load_model_config(folder, **options)
    assert isinstance(loaded, TransformersConfig)
    return loaded


def test_geometry_is_that_of_the_attention_calls(tmp_path: Path) -> None:
    config = load(tmp_path, OTHER_CONFIGS["gpt_bigcode"], "GPTBigCodeForCausalLM")
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (2, 4, 1, 16)
    assert (config.vocab_size, config.context_len, config.eos_token_ids) == (131, 256, (2,))
    assert config.attention_modules == ("transformer.h.0.attn", "transformer.h.1.attn")
    assert config.body == "transformer"


def test_heads_are_as_wide_as_the_widest_part(tmp_path: Path) -> None:
    config = load(tmp_path, OTHER_CONFIGS["deepseek_v3"], "DeepseekV3ForCausalLM")
    assert config.head_dim == 24  # 16 + 8 of queries and keys, 12 of values
    assert config.padded_to((64, 128)).head_dim == 64
    assert config.padded_to((8, 16)).head_dim == 24


def test_families_of_our_own_can_run_by_transformers(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 128}
    llama = CONFIG_MAPPING["llama"](**SIZES, rope_parameters=yarn)
    with pytest.raises(UserError, match=r"rope scaling yarn is not supported.*use --model-impl transformers"):
        load(tmp_path, llama, "LlamaForCausalLM")
    assert load(tmp_path, llama, "LlamaForCausalLM", model_impl="transformers").context_len == 256


def test_the_probe_leaves_no_trace_in_the_configuration(tmp_path: Path) -> None:
    config = load(tmp_path, OTHER_CONFIGS["mixtral"], "MixtralForCausalLM")
    assert config.hf._experts_implementation is None


@pytest.mark.parametrize(
    ("model_type", "architecture", "values", "reason"),
    [
        ("bloom", "BloomForCausalLM", {}, "it adds a position bias"),
        ("mpt", "MptForCausalLM", {}, "it adds a position bias"),
        ("falcon", "FalconForCausalLM", {"alibi": True}, "it adds a position bias"),
        ("falcon", "FalconForCausalLM", {}, "its code in Transformers computes attention by itself"),
        ("xglm", "XGLMForCausalLM", {"num_layers": 2}, "its code in Transformers computes attention by itself"),
        ("gemma2", "Gemma2ForCausalLM", SIZES, "its attention scores are capped"),
        ("gpt_oss", "GptOssForCausalLM", SIZES | {"num_local_experts": 4}, "takes a further input, attention sinks"),
        ("mamba", "MambaForCausalLM", {"num_hidden_layers": 2}, rf"{PURE}.*\(linear_attention\)"),
        ("rwkv", "RwkvForCausalLM", {"num_hidden_layers": 2}, f"{PURE}, some of its layers keep a state"),
        ("diffllama", "DiffLlamaForCausalLM", NO_HEAD_DIM, "calls the same attention layer several times"),
        ("doge", "DogeForCausalLM", NO_HEAD_DIM, "makes an attention mask of its own"),
        ("t5", "T5ForConditionalGeneration", {"num_layers": 2}, "it has an encoder"),
        ("bert", "BertLMHeadModel", {"num_hidden_layers": 2}, "its attention looks ahead"),
        ("qwen2", "Qwen2ForSequenceClassification", NO_HEAD_DIM, "with this checkpoint is Qwen2ForCausalLM"),
        ("vit", "ViTForImageClassification", {}, "Transformers has no code for text generation with it"),
        ("dbrx", "DbrxForCausalLM", {}, "code for it cannot be traced"),
    ],
)
def test_what_cannot_be_served_is_refused(
    model_type: str, architecture: str, values: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"^The model's architecture {architecture} is not supported: .*{reason}"):
        load(tmp_path, CONFIG_MAPPING[model_type](**values), architecture)


def test_an_architecture_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NewForCausalLM"], "model_type": "brand-new"}))
    with pytest.raises(
        UserError, match=r"NewForCausalLM is not supported: Transformers .* cannot read its config.json"
    ):
        load_model_config(tmp_path)


def test_code_in_the_repository_runs_only_if_trusted(tmp_path: Path) -> None:
    auto_map = {"AutoConfig": "code.NewConfig", "AutoModelForCausalLM": "code.NewForCausalLM"}
    raw = {"architectures": ["NewForCausalLM"], "model_type": "brand-new", "auto_map": auto_map}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match=r"not supported without the code in its repository.*--trust-remote-code"):
        load_model_config(tmp_path)
