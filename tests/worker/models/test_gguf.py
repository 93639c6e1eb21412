"""Conversion of GGUF files: the model that comes out, the cache, and damaged input."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from transformers import AutoTokenizer

from common.errors import UserError
from tests.helpers.runner_driver import RunnerDriver
from tests.helpers.tiny_gguf import CHAT_TEMPLATE, VOCAB_SIZE, write_gguf
from tests.helpers.tiny_models import TinyModel, build_tiny
from worker.config import WorkerSettings
from worker.engine.cpu_runner import CpuRunner
from worker.layers.rope_config import RopeConfig
from worker.models.config import load_model_config
from worker.models.embedding import Pooling
from worker.models.gguf import ensure_converted
from worker.models.progress import silent
from worker.models.weights import SafetensorsWeights

Tiny = tuple[TinyModel, Path]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A tiny Llama and its GGUF file."""
    folder = tmp_path_factory.mktemp("gguf")
    tiny = build_tiny("llama", folder / "source", vocab_size=VOCAB_SIZE)
    write_gguf(folder / "tiny.gguf", tiny.reference)
    return tiny, folder / "tiny.gguf"


def greedy(path: Path, prompt: list[int]) -> list[int]:
    settings = WorkerSettings(model_path=str(path), cpu_threads=1, max_total_tokens=256)
    drive = RunnerDriver(CpuRunner(settings, load_model_config(path), path))
    drive.add(prompt)
    drive.run(6)
    return drive.sequences[0].outputs


@pytest.mark.parametrize("name", ["llama", "llama-bias", "qwen2", "qwen3"])
def test_the_converted_model_is_the_original(name: str, tmp_path: Path) -> None:
    tiny = build_tiny(name, tmp_path / "source", vocab_size=VOCAB_SIZE)
    write_gguf(tmp_path / "tiny.gguf", tiny.reference)
    converted = ensure_converted(tmp_path / "tiny.gguf", tmp_path / "cache", silent)
    assert dataclasses.replace(load_model_config(converted), eos_token_ids=(2,)) == load_model_config(tiny.path)
    prompt = np.random.default_rng(0).integers(3, VOCAB_SIZE, 20).tolist()
    assert greedy(converted, prompt) == tiny.greedy(prompt, 6)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_quantised_weights_come_out_exactly(kind: str, tmp_path: Path) -> None:
    """float16 and bfloat16 keep their type, everything else becomes float32."""
    tiny = build_tiny("qwen2", tmp_path / "source", vocab_size=VOCAB_SIZE)
    quantisation = GGMLQuantizationType[kind]
    write_gguf(tmp_path / "tiny.gguf", tiny.reference, kind=quantisation)
    converted = ensure_converted(tmp_path / "tiny.gguf", tmp_path / "cache", silent)
    dtype = {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.float32)
    assert load_model_config(converted).dtype == str(dtype).removeprefix("torch.")
    name = "model.layers.1.mlp.up_proj.weight"
    original = tiny.reference.state_dict()[name].numpy()
    weights = SafetensorsWeights(converted, dtype=dtype, device=torch.device("cpu"))
    expected = torch.from_numpy(np.array(dequantize(quantize(original, quantisation), quantisation)))
    assert torch.equal(weights.tensor(name, original.shape), expected.to(dtype))


def test_tokenizer_and_chat_template(llama: Tiny, tmp_path: Path) -> None:
    converted = ensure_converted(llama[1], tmp_path, silent)
    tokenizer = AutoTokenizer.from_pretrained(converted)
    ids = tokenizer.encode("say the word: é", add_special_tokens=False)
    assert tokenizer.decode(ids) == "say the word: é"
    assert "Ġthe" in tokenizer.convert_ids_to_tokens(ids)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert (tokenizer.eos_token_id, tokenizer.model_max_length) == (2, 256)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_scaling_is_recognised(factor: float, tmp_path: Path) -> None:
    tiny = build_tiny("llama", tmp_path / "source", vocab_size=VOCAB_SIZE)
    frequencies = 1e4 ** -(np.arange(0, 16, 2) / 16)
    wavelengths = 2 * np.pi / frequencies
    smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    factors = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    write_gguf(tmp_path / "tiny.gguf", tiny.reference, extra_tensors={"rope_freqs.weight": factors})
    converted = ensure_converted(tmp_path / "tiny.gguf", tmp_path / "cache", silent)
    assert load_model_config(converted).rope == RopeConfig(theta=1e4, kind="llama3", factor=factor)
    write_gguf(tmp_path / "odd.gguf", tiny.reference, extra_tensors={"rope_freqs.weight": factors * 1.5})
    with pytest.raises(UserError, match="unknown way"):
        ensure_converted(tmp_path / "odd.gguf", tmp_path / "cache", silent)


def test_linear_scaling_and_others(tmp_path: Path) -> None:
    tiny = build_tiny("llama", tmp_path / "source", vocab_size=VOCAB_SIZE)
    metadata: dict[str, Any] = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    write_gguf(tmp_path / "tiny.gguf", tiny.reference, metadata=metadata)
    converted = ensure_converted(tmp_path / "tiny.gguf", tmp_path / "cache", silent)
    assert load_model_config(converted).rope == RopeConfig(theta=1e4, kind="linear", factor=4.0)
    write_gguf(tmp_path / "yarn.gguf", tiny.reference, metadata={"llama.rope.scaling.type": "yarn"})
    with pytest.raises(UserError, match="rope scaling yarn"):
        ensure_converted(tmp_path / "yarn.gguf", tmp_path / "cache", silent)


@pytest.mark.parametrize(("kind", "pooling"), [(0, None), (1, Pooling.MEAN), (3, Pooling.LAST)])
def test_embedding_models_say_how_they_pool(kind: int, pooling: Pooling | None, tmp_path: Path) -> None:
    tiny = build_tiny("qwen3", tmp_path / "source", vocab_size=VOCAB_SIZE)
    write_gguf(tmp_path / "tiny.gguf", tiny.reference, metadata={"qwen3.pooling_type": kind})
    assert load_model_config(ensure_converted(tmp_path / "tiny.gguf", tmp_path / "cache", silent)).pooling is pooling


def test_a_reranker_is_refused(tmp_path: Path) -> None:
    tiny = build_tiny("qwen3", tmp_path / "source", vocab_size=VOCAB_SIZE)
    write_gguf(tmp_path / "tiny.gguf", tiny.reference, metadata={"qwen3.pooling_type": 4})
    with pytest.raises(UserError, match="pooling rank"):
        load_model_config(ensure_converted(tmp_path / "tiny.gguf", tmp_path / "cache", silent))


def test_the_cache_is_used_until_the_file_changes(llama: Tiny, tmp_path: Path) -> None:
    seen: list[str] = []
    file = tmp_path / "tiny.gguf"
    file.write_bytes(llama[1].read_bytes())

    def convert() -> Path:
        return ensure_converted(file, tmp_path / "cache", lambda label, share: seen.append(label))

    first = convert()
    assert seen[0] == "reading" and seen[-1] == "done"
    seen.clear()
    assert convert() == first and not seen
    os.utime(file, (1, 1))
    assert convert() != first and seen


def test_processes_that_start_together_convert_once(llama: Tiny, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from worker.models.gguf import ensure_converted; "
        "print(ensure_converted(Path(sys.argv[1]), Path(sys.argv[2]), lambda *_: print('worked')))"
    )
    command = [sys.executable, "-c", code, str(llama[1]), str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [p.communicate(timeout=120)[0].splitlines() for p in processes]
    assert all(p.returncode == 0 for p in processes)
    assert outputs[0][-1] == outputs[1][-1]
    assert sorted("worked" in o for o in outputs) == [False, True]
    assert {p.name for p in (tmp_path / "gguf").iterdir()} == {Path(outputs[0][-1]).name, ".lock"}


def spoiled(data: bytes, how: str) -> bytes:
    """A GGUF file made useless."""
    if how == "other format":
        return b"PK" + data[2:]
    return {"empty": b"", "cut in the header": data[:900], "cut in the weights": data[: len(data) // 2]}[how]


@pytest.mark.parametrize("how", ["empty", "other format", "cut in the header", "cut in the weights"])
def test_damaged_files_leave_nothing_behind(how: str, llama: Tiny, tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(spoiled(llama[1].read_bytes(), how))
    with pytest.raises(UserError, match=r"bad\.gguf is damaged or not a GGUF file"):
        ensure_converted(file, tmp_path / "cache", silent)
    assert [p.name for p in (tmp_path / "cache" / "gguf").iterdir()] == [".lock"]


def test_unsupported_content_is_named(tmp_path: Path) -> None:
    tiny = build_tiny("llama", tmp_path / "source", vocab_size=VOCAB_SIZE)
    file = tmp_path / "tiny.gguf"
    write_gguf(file, tiny.reference, extra_tensors={"blk.0.ffn_gate_inp.weight": np.zeros((4, 4), np.float32)})
    with pytest.raises(UserError, match=r"blk\.0\.ffn_gate_inp\.weight, which none of the supported"):
        ensure_converted(file, tmp_path / "cache", silent)
    tiny.reference.config.model_type = "gemma"
    write_gguf(file, tiny.reference)
    with pytest.raises(UserError, match="architecture gemma are not supported; supported are llama, qwen2, qwen3"):
        ensure_converted(file, tmp_path / "cache", silent)


def test_an_unwritable_cache(llama: Tiny, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(UserError, match="Cannot convert .*: Not a directory"):
        ensure_converted(llama[1], tmp_path / "cache", silent)
