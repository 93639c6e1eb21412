"""The demo model's conversion against Transformers' own loading of the GGUF file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from tests.helpers.demo_model import PACKAGE
from tests.helpers.runner_driver import RunnerDriver
from worker.config import WorkerSettings
from worker.engine.factory import create_runner
from worker.models.config import load_model_config
from worker.models.weights import SafetensorsWeights

pytestmark = pytest.mark.model


@pytest.mark.long
def test_tensors_and_configuration_are_those_that_transformers_reads(demo_model_dir: Path) -> None:
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations
    file = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(demo_model_dir))
    reference = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=empty)
    weights = SafetensorsWeights(demo_model_dir, dtype=torch.float32, device=torch.device("cpu"))
    for name in ("embed_tokens", "layers.0.self_attn.q_proj", "layers.29.self_attn.k_proj", "layers.7.mlp.down_proj"):
        expected = reference["tensors"][f"model.{name}.weight"]
        assert torch.equal(weights.tensor(f"model.{name}.weight", tuple(expected.shape)), expected)
    ours, theirs = load_model_config(demo_model_dir), reference["config"]
    assert (ours.hidden_size, ours.num_layers, ours.head_dim) == (
        theirs["hidden_size"],
        theirs["num_hidden_layers"],
        theirs["head_dim"],
    )
    assert (ours.rope.theta, ours.context_len) == (theirs["rope_theta"], theirs["max_position_embeddings"])
    assert ours.rms_norm_eps == pytest.approx(theirs["rms_norm_eps"])
    assert ours.tie_word_embeddings == theirs["tie_word_embeddings"]
    assert ours.eos_token_ids == (theirs["eos_token_id"],)


def test_it_knows_the_capital_of_france(demo_model_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_model_dir)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    drive = RunnerDriver(create_runner(WorkerSettings(model_path=str(demo_model_dir), device="cpu", cpu_threads=1)))
    drive.add(prompt)
    drive.run(8)
    assert tokenizer.decode(drive.sequences[0].outputs) == "The capital of France is Paris.<|im_end|>"
