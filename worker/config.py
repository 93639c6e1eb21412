"""Every setting of one replica, with its unit. Built once at the edge by `common.settings.load`, passed down whole."""

from __future__ import annotations

from pydantic import model_validator

from common.settings import flag_of
from worker.settings.features import (
    DisaggregationSettings,
    HiCacheSettings,
    LoraSettings,
    MediaSettings,
    SpeculativeSettings,
)
from worker.settings.http import HttpSettings
from worker.settings.memory import MemorySettings
from worker.settings.model import ModelSettings
from worker.settings.observability import ObservabilitySettings
from worker.settings.optimization import OptimizationSettings
from worker.settings.parallel import ParallelSettings
from worker.settings.process import ProcessSettings
from worker.settings.quantization import QuantizationSettings
from worker.settings.sampling import SamplingSettings

_NEEDS_TOKENIZER = ("tokenizer_path", "chat_template", "hf_chat_template_name", "default_chat_template_kwargs")
# Keys of config.json that a simulated device heeds; speed and memory are its profile's.
_SIM_HEEDS = frozenset(
    {"architectures", "vocab_size", "max_position_embeddings", "eos_token_id", "sliding_window", "use_sliding_window"}
)


class WorkerSettings(
    ModelSettings,
    HttpSettings,
    QuantizationSettings,
    MemorySettings,
    ParallelSettings,
    OptimizationSettings,
    SamplingSettings,
    ObservabilitySettings,
    ProcessSettings,
    MediaSettings,
    LoraSettings,
    SpeculativeSettings,
    HiCacheSettings,
    DisaggregationSettings,
):
    """Serve one model from one engine over HTTP."""

    @property
    def model_name(self) -> str:
        """The name clients use."""
        return self.served_model_name or self.model_path.rstrip("/").rsplit("/", 1)[-1]

    @model_validator(mode="after")
    def _check_tokenizer(self) -> WorkerSettings:
        for name in _NEEDS_TOKENIZER:
            if self.skip_tokenizer_init and getattr(self, name) is not None:
                raise ValueError(f"{flag_of(name)} is of no use to --skip-tokenizer-init; leave one of the two out.")
        return self

    @model_validator(mode="after")
    def _check_simulated_model(self) -> WorkerSettings:
        ignored = sorted(self.json_model_override_args.keys() - _SIM_HEEDS)
        if self.device == "sim" and ignored:
            raise ValueError(
                f"--json-model-override-args: {', '.join(ignored)} changes nothing with --device sim, whose speed and "
                "memory are those of --sim-profile; leave it out."
            )
        return self
