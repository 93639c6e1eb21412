"""Every setting of one replica, with its unit. Built once at the edge by `common.settings.load`, passed down whole."""

from __future__ import annotations

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
