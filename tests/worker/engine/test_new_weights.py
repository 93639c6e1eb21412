"""Other weights for a loaded model: in a model of their own on the CPU, in place as on a GPU, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from common.errors import UserError
from tests.helpers import tiny_gguf
from tests.helpers.other_models import OTHER_CONFIGS
from tests.helpers.runner_driver import RunnerDriver
from tests.helpers.tiny_models import SIZES, TINY_CONFIGS, TinyModel, build_tiny, save_tiny
from tests.worker.engine.test_cpu_runner import NUM_OUTPUTS, check, driver, prompts
from worker.config import WorkerSettings
from worker.engine.factory import create_runner
from worker.engine.loading import load_on_gpu
from worker.engine.new_weights import InPlace
from worker.layers.torch_ops import TorchOps
from worker.models.config import load_model_config
from worker.models.decoder import Decoder

TinyModels = Callable[[str], TinyModel]
SECOND_SEED = 8
KINDS = ["llama", "llama-bias", "qwen3", "gemma", "mixtral"]  # tied embeddings, biases, norms of heads, others' code
SOME_KINDS = ["llama", *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[1:])]


@pytest.fixture(scope="module")
def served(tiny_model: TinyModels) -> RunnerDriver:
    """A runner that no refusal changes."""
    return driver(tiny_model("llama"))


@pytest.fixture
def pair(
    request: pytest.FixtureRequest, tiny_model: TinyModels, other_model: TinyModels, tmp_path: Path
) -> tuple[TinyModel, TinyModel]:
    """Two checkpoints of one model."""
    name = request.param
    if name in TINY_CONFIGS:
        return tiny_model(name), build_tiny(name, tmp_path / "second", seed=SECOND_SEED)
    return other_model(name), save_tiny(OTHER_CONFIGS[name], tmp_path / "second", seed=SECOND_SEED)


def run(drive: RunnerDriver, tiny: TinyModel) -> None:
    for row, prompt in enumerate(prompts(3, 40, 17)):
        drive.add(prompt, row=row)
    drive.run(NUM_OUTPUTS, chunk=16)
    check(tiny, drive)
    for sequence in list(drive.sequences):
        drive.drop(sequence)


@pytest.mark.parametrize("pair", SOME_KINDS, indirect=True)
def test_the_cpu_runner_computes_with_them_once_they_are_used(pair: tuple[TinyModel, TinyModel]) -> None:
    first, second = pair
    drive = driver(first, page_size=4)
    run(drive, first)
    weights = drive.runner.load_weights(str(second.path))
    for file in second.path.glob("*.safetensors"):
        file.write_bytes(b"\0" * file.stat().st_size)  # the next checkpoint is being written over it
    run(drive, first)
    weights.use()
    run(drive, second)
    drive.runner.load_weights(str(first.path)).use()
    run(drive, first)


class TokensAlone:
    """`LayerAttention` without a cache: each token has but itself."""

    def forward(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q + (k + v).repeat_interleave(q.shape[1] // k.shape[1], dim=1)).flatten(1)


def logits(model: Decoder) -> torch.Tensor:
    """Of some tokens; a copy."""
    ids = torch.arange(3, 33)
    return model.logits(model.forward(ids, torch.arange(30), TokensAlone())).clone()


@pytest.mark.parametrize("pair", KINDS, indirect=True)
def test_tensors_in_use_take_on_their_numbers_in_place(pair: tuple[TinyModel, TinyModel]) -> None:
    """As on a GPU, here by kernels that keep weights as they are."""
    first, second = pair
    config = load_model_config(first.path)

    def load(path: Path) -> Any:
        settings = WorkerSettings(model_path=str(path))
        return load_on_gpu(settings, config, path, TorchOps(), dtype=torch.bfloat16, device=torch.device("cpu"))

    with torch.inference_mode():
        loaded, fresh = load(first.path), load(second.path)
        before = logits(loaded.model)
        weights = InPlace(loaded.successors(second.path))
        assert torch.equal(logits(loaded.model), before)
        weights.use()
        after = logits(loaded.model)
        assert torch.equal(after, logits(fresh.model))
        assert not torch.equal(after, before)


def test_number_format_and_token_ids_may_differ(tiny_model: TinyModels, tmp_path: Path) -> None:
    first, second = tiny_model("llama"), build_tiny("llama", tmp_path, seed=SECOND_SEED)
    second.reference.to(torch.bfloat16)
    second.reference.config.eos_token_id = [2, 5]
    second.reference.save_pretrained(tmp_path)
    second.reference.to(torch.float32)  # by the numbers that bfloat16 left
    drive = driver(first)
    drive.runner.load_weights(str(tmp_path)).use()
    run(drive, second)
    assert drive.runner.info.eos_token_ids == (2,)


def test_a_gguf_file_has_weights_for_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANOPY_CACHE", str(tmp_path / "cache"))
    first = build_tiny("llama", tmp_path / "first", vocab_size=tiny_gguf.VOCAB_SIZE)
    second = build_tiny("llama", tmp_path / "second", vocab_size=tiny_gguf.VOCAB_SIZE, seed=SECOND_SEED)
    tiny_gguf.write_gguf(tmp_path / "second.gguf", second.reference)
    drive = driver(first)
    drive.runner.load_weights(str(tmp_path / "second.gguf")).use()
    run(drive, second)


def wide(folder: Path) -> None:
    config = build_tiny("llama", folder).reference.config
    shutil.rmtree(folder)
    config.intermediate_size = 128
    save_tiny(config, folder)


def without_a_tensor(folder: Path) -> None:
    build_tiny("llama", folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def of_another_shape(folder: Path) -> None:
    build_tiny("llama", folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(SIZES["hidden_size"] + 1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def cut_short(folder: Path) -> None:
    build_tiny("llama", folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def quantised(folder: Path) -> None:
    build_tiny("llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"bits": 4}}))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda folder: None, "neither a directory nor a .gguf file"),
    "empty": (lambda folder: folder.mkdir(), "There is no config.json"),
    "a file": (lambda folder: folder.write_text("{}"), "neither a directory nor a .gguf file"),
    "another architecture": (
        lambda folder: build_tiny("qwen2", folder),
        r"architecture \(Qwen2ForCausalLM, not LlamaForCausalLM\)",
    ),
    "other code": (lambda folder: save_tiny(OTHER_CONFIGS["gemma"], folder), "architecture"),
    "another size": (wide, "it differs in intermediate_size"),
    "another vocabulary": (lambda folder: build_tiny("llama", folder, vocab_size=140), "it differs in vocab_size"),
    "untied": (lambda folder: build_tiny("llama-linear", folder), "rope, tie_word_embeddings"),
    "no weights": (lambda folder: build_tiny("llama", folder).path.joinpath("model.safetensors").unlink(), "no .safet"),
    "a tensor less": (without_a_tensor, "has no tensor model.layers.1.mlp.up_proj.weight"),
    "another shape": (of_another_shape, r"model.norm.weight has the shape \[65\]"),
    "cut short": (cut_short, "Cannot read the weight file"),
    "quantised": (quantised, "quantised"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_checkpoint_of_the_same_model_is_refused(fault: str, served: RunnerDriver, tmp_path: Path) -> None:
    make, sentence = FAULTS[fault]
    make(tmp_path / "second")
    with pytest.raises(UserError, match=sentence):
        served.runner.load_weights(str(tmp_path / "second"))


@pytest.mark.parametrize("path", ["\0", "x" * 5000, "~nobody-here/x", "org/model"])
def test_what_is_no_path_is_refused(path: str, served: RunnerDriver) -> None:
    with pytest.raises(UserError, match="neither a directory nor a .gguf file"):
        served.runner.load_weights(path)


def test_refusals_have_changed_nothing(served: RunnerDriver, tiny_model: TinyModels) -> None:
    run(served, tiny_model("llama"))


def test_others_code_needs_the_same_configuration(other_model: TinyModels, tmp_path: Path) -> None:
    config = save_tiny(OTHER_CONFIGS["gemma"], tmp_path / "first").reference.config
    config.intermediate_size = 128
    save_tiny(config, tmp_path / "second")
    with pytest.raises(UserError, match=r"it differs in intermediate_size\."):
        driver(other_model("gemma")).runner.load_weights(str(tmp_path / "second"))


def test_a_simulated_device_has_none_to_replace(chat_model: Path) -> None:
    runner = create_runner(WorkerSettings(model_path=str(chat_model), device="sim"))
    with pytest.raises(UserError, match="A simulated device has no weights"):
        runner.load_weights(str(chat_model))


def test_without_memory_for_a_second_model_nothing_is_read(
    served: RunnerDriver, tiny_model: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = psutil.virtual_memory()._replace(available=served.runner.info.weight_bytes - 1)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pytest.raises(UserError, match="no memory for other weights"):
        served.runner.load_weights(str(tiny_model("llama").path))
