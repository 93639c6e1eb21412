"""Which runner the settings lead to, and what is refused before anything is loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import UserError
from tests.helpers.runner_driver import RunnerDriver
from tests.helpers.tiny_models import TinyModel
from worker.config import WorkerSettings
from worker.engine import factory
from worker.engine.cpu_tuning import spin_briefly
from worker.engine.factory import create_runner


def create(path: str, **settings: Any) -> RunnerDriver:
    return RunnerDriver(create_runner(WorkerSettings(model_path=path, max_total_tokens=512, cpu_threads=1, **settings)))


@pytest.fixture
def tiny(tiny_model: Callable[[str], TinyModel]) -> TinyModel:
    return tiny_model("llama")


def test_overrides_of_the_model_config(tiny: TinyModel) -> None:
    runner = create(str(tiny.path), device="cpu", json_model_override_args={"max_position_embeddings": 40})
    assert runner.runner.info.context_len == 40
    with pytest.raises(UserError, match="quantised"):
        create(str(tiny.path), device="cpu", json_model_override_args={"quantization_config": {}})


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu(tiny: TinyModel) -> None:
    assert create(str(tiny.path), device="auto").runner.info.device == "cpu"
    with pytest.raises(UserError, match="--device cuda: .* use --device cpu"):
        create("not even looked for", device="cuda")


@pytest.mark.parametrize(
    ("cuda", "init", "sentence"),
    [
        (
            None,
            None,
            "this torch was built without CUDA; install a CUDA build of torch",
        ),
        (
            "13.0",
            RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update your GPU."),
            "the driver cannot be used (The NVIDIA driver on your system is too old (found version 11040)); install an "
            "NVIDIA driver for CUDA 13.0",
        ),
        (
            "13.0",
            RuntimeError("No CUDA GPUs are available"),
            "no GPU can be used (No CUDA GPUs are available); look at nvidia-smi and CUDA_VISIBLE_DEVICES",
        ),
        ("13.0", None, "no GPU was found; look at nvidia-smi and CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_keeps_a_gpu_from_being_used_is_told(
    cuda: str | None, init: Exception | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake_init() -> None:
        if init is not None:
            raise init

    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fake_init)
    with pytest.raises(UserError) as caught:
        create("not even looked for", device="cuda")
    assert str(caught.value) == f"--device cuda: {sentence}, or use --device cpu."


def test_a_gpu_with_an_unusable_driver_does_not_go_unnoticed(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_driver() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", no_driver)
    assert create(str(tiny.path), device="auto").runner.info.device == "cpu"
    assert "No GPU is used: the driver cannot be used" in caplog.text


@pytest.mark.parametrize("package", ["triton", "flashinfer"])
def test_a_missing_gpu_package_is_named(package: str, tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        assert name == "worker.engine.cuda.runner"
        raise ModuleNotFoundError(f"No module named '{package}.language'", name=f"{package}.language")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(factory.importlib, "import_module", missing)
    with pytest.raises(UserError, match=rf"--device cuda needs the package {package}, .*'canopy-serve\[gpu\]'"):
        create(str(tiny.path), device="cuda")


def test_dummy_weights_need_only_a_config(tiny: TinyModel, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny.path / "config.json").read_bytes())
    drive = create(str(tmp_path), device="cpu", load_format="dummy")
    drive.add([5, 6, 7])
    drive.run(3)
    assert drive.runner.info.weight_bytes == sum(p.nbytes for p in tiny.reference.parameters())


def test_bfloat16_on_request(tiny: TinyModel) -> None:
    drive = create(str(tiny.path), device="cpu", dtype="bfloat16")
    assert drive.runner.info.dtype == "bfloat16"
    assert drive.runner.info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    drive.add([5, 6, 7])
    drive.add([8, 9, 10, 11])  # of another length, so that the shorter is padded
    drive.run(3)


@pytest.mark.parametrize(
    ("path", "load_format", "message"),
    [("some/dir", "gguf", r"needs a \.gguf file"), ("x.gguf", "safetensors", r"does not fit a \.gguf file")],
)
def test_load_format_must_fit_the_path(path: str, load_format: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        create(path, device="cpu", load_format=load_format)


def test_openmp_threads_spin_briefly_unless_the_user_wants_otherwise() -> None:
    for env, expected in (({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)):
        before = dict(env)
        spin_briefly(env)
        assert env == before | ({"GOMP_SPINCOUNT": expected} if expected else {})


def test_openmp_is_set_before_torch_is_imported(tiny: TinyModel) -> None:
    code = (
        "import os, sys; from worker.config import WorkerSettings; from worker.engine import factory\n"
        "def check(env):\n    assert env is os.environ and 'torch' not in sys.modules; print('in time')\n"
        "factory.spin_briefly = check\n"
        "factory.create_runner(WorkerSettings(model_path=sys.argv[1], max_total_tokens=64, cpu_threads=1))"
    )
    command = [sys.executable, "-c", code, str(tiny.path)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout == "in time\n"
