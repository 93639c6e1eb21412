"""Reading safetensors, whole and sharded, and what is said when they are not right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from common.errors import UserError
from worker.models.weights import DummyWeights, SafetensorsWeights

CPU = torch.device("cpu")
TENSORS = {"a.weight": torch.randn(3, 4), "b.weight": torch.randn(2, 4), "norm.weight": torch.randn(4)}


def open_at(path: Path, dtype: torch.dtype = torch.float32) -> SafetensorsWeights:
    return SafetensorsWeights(path, dtype=dtype, device=CPU)


@pytest.fixture(params=["one file", "two files", "indexed"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same tensors in each layout; the indexed one also has a file that the index leaves out."""
    if request.param == "one file":
        save_file(TENSORS, str(tmp_path / "model.safetensors"))
        return tmp_path
    parts = {"x-1.safetensors": ["a.weight"], "x-2.safetensors": ["b.weight", "norm.weight"]}
    for file, names in parts.items():
        save_file({n: TENSORS[n] for n in names}, str(tmp_path / file))
    if request.param == "indexed":
        save_file({"a.weight": torch.zeros(3, 4)}, str(tmp_path / "consolidated.safetensors"))
        weight_map = {name: file for file, names in parts.items() for name in names}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_tensors_and_stacks(checkpoint: Path) -> None:
    weights = open_at(checkpoint)
    assert torch.equal(weights.tensor("norm.weight", (4,)), TENSORS["norm.weight"])
    stacked = weights.stacked({"b.weight": (2, 4), "a.weight": (3, 4)})
    assert torch.equal(stacked, torch.cat((TENSORS["b.weight"], TENSORS["a.weight"])))
    assert torch.equal(weights.stacked({"a.weight": (3, 4)}), TENSORS["a.weight"])
    assert weights.bytes_loaded == (4 + 20 + 12) * 4


def test_conversion_to_the_compute_dtype(checkpoint: Path) -> None:
    weights = open_at(checkpoint, torch.bfloat16)
    assert torch.equal(weights.tensor("a.weight", (3, 4)), TENSORS["a.weight"].bfloat16())
    assert weights.stacked({"a.weight": (3, 4), "b.weight": (2, 4)}).dtype == torch.bfloat16


def test_faults_are_named(checkpoint: Path) -> None:
    weights = open_at(checkpoint)
    with pytest.raises(UserError, match=r"no tensor c\.weight"):
        weights.tensor("c.weight", (1,))
    with pytest.raises(UserError, match=r"a\.weight has the shape \[3, 4\], but the config asks for \[4, 3\]"):
        weights.stacked({"b.weight": (2, 4), "a.weight": (4, 3)})


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no \.safetensors weights in"):
        open_at(tmp_path)


def test_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(UserError, match="Cannot read the weight file"):
        open_at(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match="Cannot read the weight index"):
        open_at(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a.weight": "gone.safetensors"}}')
    with pytest.raises(UserError, match=r"gone\.safetensors is missing"):
        open_at(tmp_path).tensor("a.weight", (3, 4))


def test_dummy_weights_are_reproducible_and_sane() -> None:
    first, second = (DummyWeights(dtype=torch.float32, device=CPU) for _ in range(2))
    weight = first.tensor("a.weight", (64, 32))
    assert torch.equal(weight, second.stacked({"a.weight": (64, 32)}))
    assert not torch.equal(weight, first.tensor("b.weight", (64, 32)))
    assert 0.01 < float(weight.std()) < 0.03
    assert torch.equal(first.tensor("x.norm.weight", (5,)), torch.ones(5))
    assert first.bytes_loaded == (2 * 64 * 32 + 5) * 4
