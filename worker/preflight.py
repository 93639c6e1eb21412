"""What can be found wrong in seconds, without torch: looked at before anything is loaded or started."""

from __future__ import annotations

import ctypes
from pathlib import Path

from common.chat_templates import check_variables, named_template
from common.errors import UserError
from common.tracing.otlp import check_extra
from worker.config import WorkerSettings
from worker.models.config import load_model_config, read_raw_config, uses_transformers
from worker.models.paths import check_model_path
from worker.server.sampling import preferred_sampling

_DRIVER = "libcuda.so.1"


def check_before_loading(settings: WorkerSettings) -> None:
    """Device, model path, the model's configuration, tokenizer path, chat template and preferred sampling, as far as
    they can be judged without a download, a conversion or torch. Raises UserError."""
    if settings.device == "cuda":
        _check_driver()
    check_extra(settings)
    check_model_path(settings.model_path, settings.revision)
    path = Path(settings.model_path).expanduser()
    if path.is_dir():
        _check_config(settings, path)
    _check_tokenizer_path(settings.tokenizer_path)
    preferred_sampling(settings.preferred_sampling_params or {})
    check_variables(settings.default_chat_template_kwargs or {})
    if settings.chat_template is not None:
        named_template(settings.chat_template)


def _check_driver() -> None:
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        raise UserError(
            "--device cuda: this machine has no NVIDIA driver; install one and look at nvidia-smi, or use --device cpu."
        ) from None


def _check_config(settings: WorkerSettings, path: Path) -> None:
    """Whatever Transformers runs is judged by Transformers, later."""
    overrides, impl, embeds = settings.json_model_override_args, settings.model_impl, settings.is_embedding
    if not uses_transformers(read_raw_config(path, overrides, is_embedding=embeds)[0], impl):
        load_model_config(
            path,
            context_length=settings.context_length,
            overrides=overrides,
            model_impl=impl,
            is_embedding=embeds,
        )


def _check_tokenizer_path(named: str | None) -> None:
    """A hub id has one slash; everything else must be there."""
    if named is None or Path(named).expanduser().exists():
        return
    if named.startswith(("/", ".", "~")) or named.count("/") > 1:
        raise UserError(f"--tokenizer-path {named} does not exist; name a directory with a tokenizer.json.")
