"""Exact mode put together: index, streams, tokenizers, and what gives requests their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from common.errors import UserError
from gateway.config import GatewaySettings
from gateway.fleet.registry import Registry
from gateway.kv_events.endpoints import TokenizerSource
from gateway.kv_events.exact_index import BLOCK_BYTES, ExactIndex
from gateway.kv_events.follower import EventFollower
from gateway.kv_events.metrics import ExactModeMetrics
from gateway.kv_events.preparer import Preparer
from gateway.kv_events.tokenizers import Tokenizers


@dataclass(frozen=True, slots=True)
class ExactMode:
    """The parts that others talk to."""

    index: ExactIndex
    follower: EventFollower
    tokenizers: Tokenizers
    preparer: Preparer


def make_exact_mode(
    settings: GatewaySettings, registry: Registry, metrics_registry: CollectorRegistry
) -> ExactMode | None:
    """With --routing-mode exact: its parts, following the registry. Call inside a running event loop. Raises
    UserError."""
    if settings.routing_mode != "exact":
        return None
    check_tokenizer(settings)
    index = ExactIndex(settings.exact_index_bytes // BLOCK_BYTES)
    tokenizers = Tokenizers(settings.exact_token_cache_bytes)
    path = settings.exact_tokenizer_path
    source = TokenizerSource(path) if path is not None else None
    follower = EventFollower(index, tokenizers, settings.stream_endpoints, source)
    preparer = Preparer(registry, index, follower, tokenizers)
    ExactModeMetrics(metrics_registry, index, follower, tokenizers, preparer.results)
    registry.subscribe(follower.follow)
    return ExactMode(index, follower, tokenizers, preparer)


def check_tokenizer(settings: GatewaySettings) -> None:
    """Raise UserError if exact mode is to have a tokenizer that is not there."""
    path = settings.exact_tokenizer_path
    if settings.routing_mode == "exact" and path is not None and not Path(path).is_dir():
        raise UserError(f"--exact-tokenizer-path: there is no directory {path} here.")
