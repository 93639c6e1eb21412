"""Builds keys and gate from the settings."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from common.clock import Clock
from common.errors import UserError
from gateway.admission.bucket import TokenBucket
from gateway.admission.gate import Gate, Guest
from gateway.admission.keys import Caller, KeyLimits, Keyring, read_key_file
from gateway.admission.metrics import AdmissionMetrics
from gateway.admission.queue import AdmissionQueue, QueueRules
from gateway.config import GatewaySettings


def make_keyring(settings: GatewaySettings) -> Keyring:
    """All keys. Raises UserError if the key file is at fault."""
    limits = read_key_file(settings.api_key_file) if settings.api_key_file is not None else []
    if {*settings.api_key, settings.admin_api_key} & {key.key for key in limits}:
        raise UserError("--api-key-file has the key of --api-key or --admin-api-key; give each key once.")
    limits = [KeyLimits(key=key, name="api-key") for key in dict.fromkeys(settings.api_key)] + limits
    keys = [(key.key, _caller(key, number, settings)) for number, key in enumerate(limits)]
    return Keyring(keys, settings.admin_api_key)


def make_gate(settings: GatewaySettings, keyring: Keyring, clock: Clock, registry: CollectorRegistry) -> Gate | None:
    """The gate, or None if nothing is limited; its metrics are there either way."""
    processes = settings.gateway_processes
    limit, rate = settings.max_concurrent_requests, settings.rate_limit_tokens_per_second
    if limit < 0 and rate is None and not keyring.has_limits:
        AdmissionMetrics(registry, None, clock)
        return None
    rules = QueueRules(
        max_concurrent=share(limit, processes) if limit >= 0 else None,
        size=share(settings.queue_size, processes),
        max_bytes=share(settings.queue_bytes, processes),
        timeout_s=min(settings.queue_timeout_s, settings.total_timeout_s),
    )
    bucket = TokenBucket(rate / processes, rate / processes) if rate is not None else None
    queue: AdmissionQueue[Guest] = AdmissionQueue(rules, bucket)
    return Gate(queue, keyring, clock, AdmissionMetrics(registry, queue, clock))


def share(total: int, processes: int) -> int:
    """What one of several gateway processes may have: an equal share, rounded down, so that all keep the whole's bound;
    of something at least 1."""
    return max(total // processes, min(total, 1))


def _caller(key: KeyLimits, number: int, settings: GatewaySettings) -> Caller:
    most, rate = settings.key_max_concurrent_requests, settings.key_requests_per_second
    if key.max_concurrent_requests is not None:
        most = key.max_concurrent_requests
    if key.requests_per_second is not None:
        rate = key.requests_per_second
    processes = settings.gateway_processes
    return Caller(
        name=f"{number}:{key.name}",
        priority=key.priority,
        max_concurrent=share(most, processes) if most >= 0 else None,
        requests_per_s=rate / processes if rate > 0 else None,
    )
