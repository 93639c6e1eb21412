"""What was seen of one replica over a window: the input of every rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import Protocol


class Phase(Enum):
    """What a step was computing when memory ran out."""

    PREFILL = "prefill"
    DECODE = "decode"
    UNKNOWN = "unknown"


class Symptom(Enum):
    """Error texts that have a rule of their own."""

    PEER_ACCESS = "peer access is not supported"
    SHARED_MEMORY = "shared memory is full"
    HANG = "a step hangs"


class Startup(Protocol):
    """What a replica holds, as its startup line says."""

    @property
    def max_running_requests(self) -> int: ...

    @property
    def chunked_prefill_size(self) -> int | None:
        """Tokens; None: no chunks, or not told."""
        ...

    @property
    def device(self) -> str:
        """gpu or cpu."""
        ...

    @property
    def available_gb(self) -> float:
        """Free on the device after the start."""
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """The scheduler at one moment. `usage`: share of the KV pool; `cuda_graph`: None if it does not say."""

    running: int
    queued: int
    usage: float
    cuda_graph: bool | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of settings, model and machine. None: not known, and rules that need it say so."""

    schedule_conservativeness: float | None = None  # in force
    conservativeness_auto: bool = False  # it is learned
    schedule_policy: str | None = None
    mem_fraction_static: float | None = None
    chunked_prefill_size: int | None = None  # tokens; -1 if chunks are off
    max_running_requests: int | None = None
    cuda_graph_max_bs: int | None = None
    tp_size: int | None = None
    nnodes: int | None = None
    quantization: str | None = None
    architectures: Sequence[str] | None = None
    weights_gb: float | None = None
    gpu_gb: float | None = None
    torch_compile: bool | None = None
    is_canopy: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """One replica. `minutes`: length of the window, None if the log has no times."""

    replica: str
    minutes: float | None = None
    samples: Sequence[Sample] = ()
    retractions: int = 0  # events, not requests
    new_tokens: int = 0  # of prompts, computed
    cached_tokens: int = 0  # of prompts, found in the prefix cache
    out_of_memory: Sequence[Phase] = ()
    symptoms: frozenset[Symptom] = frozenset()
    startup: Startup | None = None
    facts: Facts = field(default_factory=Facts)

    def share(self, condition: Sequence[bool]) -> float:
        """Part of the samples for which `condition`, one entry a sample, holds; 0 without samples."""
        return sum(condition) / len(condition) if condition else 0.0

    @property
    def queued(self) -> float:
        """Median of waiting requests."""
        return median(sample.queued for sample in self.samples) if self.samples else 0.0

    @property
    def usage(self) -> float:
        """Median token usage."""
        return median(sample.usage for sample in self.samples) if self.samples else 0.0

    @property
    def running(self) -> float:
        """Median of running requests."""
        return median(sample.running for sample in self.samples) if self.samples else 0.0

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that came from the cache."""
        whole = self.new_tokens + self.cached_tokens
        return self.cached_tokens / whole if whole else 0.0

    @property
    def retractions_per_minute(self) -> float | None:
        """None if the window's length is not known."""
        return None if not self.minutes else self.retractions / self.minutes

    @property
    def row_cap(self) -> int | None:
        """Most requests that can run at once."""
        if self.facts.max_running_requests is not None:
            return self.facts.max_running_requests
        return None if self.startup is None else self.startup.max_running_requests

    @property
    def chunk_tokens(self) -> int | None:
        """Chunked prefill size, -1 if off."""
        if self.facts.chunked_prefill_size is not None:
            return self.facts.chunked_prefill_size
        if self.startup is None:
            return None
        return -1 if self.startup.chunked_prefill_size is None else self.startup.chunked_prefill_size
