"""How a checkpoint wants its rotary embedding; read by models/config.py, computed by rotary.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding: `kind` is default, linear or llama3; the rest belongs to the scaled kinds."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_len: int = 8192
