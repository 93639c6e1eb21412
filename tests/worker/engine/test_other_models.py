"""Models that Transformers' code computes, on the CPU runner: greedy tokens against Transformers' own generation."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.errors import UserError
from tests.helpers.other_models import OTHER_CONFIGS
from tests.helpers.tiny_models import TinyModel
from tests.worker.engine.test_cpu_runner import check, driver, prompts

NUM_OUTPUTS = 6
OtherModels = Callable[[str], TinyModel]


@pytest.mark.parametrize("name", OTHER_CONFIGS)
def test_same_tokens_as_transformers_in_every_regime(name: str, other_model: OtherModels) -> None:
    tiny = other_model(name)
    drive = driver(tiny, page_size=4)

    def run(**options: int) -> None:
        drive.run(NUM_OUTPUTS, **options)
        check(tiny, drive)
        drive.sequences = []

    # together, in chunks, decodes beside prefills
    _, longest, long, _ = [drive.add(prompt) for prompt in prompts(3, 40, 17, 1)]
    run(chunk=8)

    alone = drive.add(longest.tokens[:40], row=4)
    run()
    assert alone.outputs == longest.outputs

    on_a_prefix = drive.add([*longest.tokens[:33], 7, 8, 9], row=5, share=longest)
    assert on_a_prefix.num_computed == 32
    run()

    first = drive.add(long.tokens[:17], row=6)
    drive.run(3)
    drive.drop(first)  # retracted
    resumed = drive.add(first.tokens, row=7, num_prior_outputs=3)
    drive.run(NUM_OUTPUTS - 3)
    assert first.outputs + resumed.outputs == long.outputs


def test_llama_by_transformers_equals_our_own_code(tiny_model: OtherModels) -> None:
    answers = []
    for model_impl in ("canopy", "transformers"):
        drive = driver(tiny_model("llama-bias-llama3"), model_impl=model_impl, page_size=4)
        for prompt in prompts(3, 40, 17, 100):
            drive.add(prompt)
        drive.run(NUM_OUTPUTS, chunk=16)
        answers.append([sequence.outputs for sequence in drive.sequences])
    assert answers[0] == answers[1]


def test_info_states_what_was_loaded(other_model: OtherModels) -> None:
    tiny = other_model("mixtral")
    info = driver(tiny, page_size=4).runner.info
    assert info.architectures == ("MixtralForCausalLM",)
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert info.weight_bytes == sum(p.nbytes for p in tiny.reference.parameters())
    assert info.eos_token_ids == (2,)


def test_dummy_weights_need_no_files(other_model: OtherModels, tmp_path: Path) -> None:
    config = (other_model("qwen3_moe").path / "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(config)
    answers = []
    for _ in range(2):
        drive = driver(TinyModel(tmp_path, None), load_format="dummy")
        for prompt in prompts(5, 9):
            drive.add(prompt)
        drive.run(NUM_OUTPUTS)
        answers.append([sequence.outputs for sequence in drive.sequences])
    assert answers[0] == answers[1]


def test_a_sliding_window_limits_the_context(other_model: OtherModels, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert driver(other_model("gemma3")).runner.info.context_len == 128
    assert "Gemma3ForCausalLM is served up to 128 of its 256 tokens: its attention has a sliding window." in caplog.text
    with pytest.raises(UserError, match="--context-length 200 exceeds the 128 tokens"):
        driver(other_model("gemma3"), context_length=200)


def test_longrope_is_served_with_its_short_frequencies(other_model: OtherModels) -> None:
    assert driver(other_model("phi3-longrope")).runner.info.context_len == 128


def test_a_missing_tensor_is_refused(other_model: OtherModels, tmp_path: Path) -> None:
    tensors = load_file(other_model("gemma").path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    copy_with(other_model("gemma").path, tmp_path, tensors)
    with pytest.raises(UserError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight \(1 are missing\)"):
        driver(TinyModel(tmp_path, None))


def test_a_tensor_of_another_shape_is_refused(other_model: OtherModels, tmp_path: Path) -> None:
    tensors = load_file(other_model("gemma").path / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(65)
    copy_with(other_model("gemma").path, tmp_path, tensors)
    with pytest.raises(UserError, match="Cannot load the weights in"):
        driver(TinyModel(tmp_path, None))


def test_no_weights_at_all(other_model: OtherModels, tmp_path: Path) -> None:
    copy_with(other_model("gemma").path, tmp_path, None)
    with pytest.raises(UserError, match="Cannot load the weights in"):
        driver(TinyModel(tmp_path, None))


def copy_with(source: Path, target: Path, tensors: dict[str, Any] | None) -> None:
    config = json.loads((source / "config.json").read_bytes())
    (target / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


REMOTE_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM

class RemoteConfig(LlamaConfig):
    model_type = "remote"

class RemoteForCausalLM(LlamaForCausalLM):
    config_class = RemoteConfig
"""


def test_trusted_code_of_the_repository_runs(
    tiny_model: OtherModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = tiny_model("llama-bias")
    copy_with(tiny.path, tmp_path, load_file(tiny.path / "model.safetensors"))
    raw = json.loads((tmp_path / "config.json").read_bytes())
    raw |= {"architectures": ["RemoteForCausalLM"], "model_type": "remote"}
    raw["auto_map"] = {"AutoConfig": "remote.RemoteConfig", "AutoModelForCausalLM": "remote.RemoteForCausalLM"}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "remote.py").write_text(REMOTE_CODE)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path / "cache")
    drive = driver(TinyModel(tmp_path, tiny.reference), trust_remote_code=True)
    drive.add(prompts(20)[0])
    drive.run(NUM_OUTPUTS)
    check(TinyModel(tmp_path, tiny.reference), drive)
    assert drive.runner.info.architectures == ("RemoteForCausalLM",)
