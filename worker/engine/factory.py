"""Makes the runner that the settings ask for."""

from __future__ import annotations

import importlib
import logging
import os
from pathlib import Path
from typing import Any, cast

from common.errors import UserError
from common.paths import cache_root
from worker.config import WorkerSettings
from worker.engine.batch import ModelRunner
from worker.engine.cpu_tuning import spin_briefly
from worker.engine.sim.clock import DeviceClock, SleepingClock
from worker.models.config import ModelConfig, load_model_config
from worker.models.paths import resolve_model_path

log = logging.getLogger(__name__)


def create_runner(settings: WorkerSettings, clock: DeviceClock | None = None) -> ModelRunner:
    """Load the model and get ready for passes. Raises UserError for what the user can mend.

    `clock` is the time a simulated device lives in; without it the real one.
    """
    _check_load_format(settings)
    if settings.device not in ("cuda", "sim"):
        spin_briefly(os.environ)
    device = _device(settings)
    path = resolve_model_path(settings.model_path, cache_root(os.environ))
    config = load_model_config(
        path,
        context_length=settings.context_length,
        overrides=settings.json_model_override_args,
        model_impl=settings.model_impl,
        trust_remote_code=settings.trust_remote_code,
        is_embedding=settings.is_embedding,
    )
    if device == "sim":
        return _sim_runner(settings, config, path, clock or SleepingClock())
    runner = _cuda_runner() if device == "cuda" else importlib.import_module("worker.engine.cpu_runner").CpuRunner
    return cast(ModelRunner, runner(settings, config, path))


def _sim_runner(settings: WorkerSettings, config: ModelConfig, path: Path, clock: DeviceClock) -> ModelRunner:
    from worker.engine.sim.profile import load_profile
    from worker.engine.sim.runner import SimRunner
    from worker.engine.sim.words import answer_ids

    if config.pooling is not None:
        raise UserError(
            "An embedding model's numbers are its answer, and --device sim computes none; use --device cpu or cuda."
        )
    profile = load_profile(settings.sim_profile)
    tokenizer = path if settings.tokenizer_path is None else Path(settings.tokenizer_path)
    ids = answer_ids(tokenizer, vocab_size=config.vocab_size, never=config.eos_token_ids)
    return SimRunner(settings, config, profile, ids, clock)


def _cuda_runner() -> Any:
    """The class CudaRunner."""
    try:
        return importlib.import_module("worker.engine.cuda.runner").CudaRunner
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("triton", "flashinfer"):
            raise
        raise UserError(
            f"--device cuda needs the package {error.name.split('.')[0]}, which is not installed; "
            "install 'canopy-serve[gpu]' with a CUDA build of torch, or use --device cpu."
        ) from None


def _check_load_format(settings: WorkerSettings) -> None:
    is_gguf = settings.model_path.lower().endswith(".gguf")
    if settings.load_format == "gguf" and not is_gguf:
        raise UserError(f"--load-format gguf needs a .gguf file, but --model-path is {settings.model_path}.")
    if settings.load_format == "safetensors" and is_gguf:
        raise UserError("--load-format safetensors does not fit a .gguf file; leave it out.")


def _device(settings: WorkerSettings) -> str:
    """cpu, cuda or sim."""
    if settings.device in ("cpu", "sim"):
        return settings.device
    import torch

    if torch.cuda.is_available():
        return "cuda"
    obstacle = _why_no_gpu()
    if settings.device == "cuda":
        raise UserError(f"--device cuda: {obstacle}, or use --device cpu.")
    if "too old" in obstacle:  # there is a GPU: its absence from the service must not go unnoticed
        log.warning("No GPU is used: %s. Serving on the CPU.", obstacle)
    return "cpu"


def _why_no_gpu() -> str:
    """What keeps torch from using a GPU, and what to do about it."""
    import torch

    if torch.version.cuda is None:
        return "this torch was built without CUDA; install a CUDA build of torch"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().split(". ")[0].rstrip(".") or type(error).__name__
        if "driver" in reason.lower():
            return f"the driver cannot be used ({reason}); install an NVIDIA driver for CUDA {torch.version.cuda}"
        return f"no GPU can be used ({reason}); look at nvidia-smi and CUDA_VISIBLE_DEVICES"
    return "no GPU was found; look at nvidia-smi and CUDA_VISIBLE_DEVICES"
