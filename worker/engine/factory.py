"""Makes the runner that the settings ask for."""

from __future__ import annotations

import importlib
import os
from typing import cast

from common.errors import UserError
from worker.config import WorkerSettings
from worker.engine.batch import ModelRunner
from worker.engine.cpu_tuning import spin_briefly
from worker.models.config import load_model_config
from worker.models.paths import cache_root, resolve_model_path


def create_runner(settings: WorkerSettings) -> ModelRunner:
    """Load the model and get ready for passes. Raises UserError for what the user can mend."""
    _check_load_format(settings)
    if settings.device != "cuda":
        spin_briefly(os.environ)
    device = _device(settings)
    path = resolve_model_path(settings.model_path, cache_root(os.environ))
    config = load_model_config(path, context_length=settings.context_length)
    if device == "cuda":
        runner = importlib.import_module("worker.engine.cuda.runner").CudaRunner
    else:
        runner = importlib.import_module("worker.engine.cpu_runner").CpuRunner
    return cast(ModelRunner, runner(settings, config, path))


def _check_load_format(settings: WorkerSettings) -> None:
    is_gguf = settings.model_path.lower().endswith(".gguf")
    if settings.load_format == "gguf" and not is_gguf:
        raise UserError(f"--load-format gguf needs a .gguf file, but --model-path is {settings.model_path}.")
    if settings.load_format == "safetensors" and is_gguf:
        raise UserError("--load-format safetensors does not fit a .gguf file; leave it out.")


def _device(settings: WorkerSettings) -> str:
    """cpu or cuda."""
    if settings.device == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if settings.device == "cuda":
        raise UserError("--device cuda: no GPU that this torch can use was found; use --device cpu.")
    return "cpu"
