"""Values for settings: valid ones that are not the default, and how they are written."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

from common.settings.tree import Setting

# What a value needs beside it, so that the whole is no contradiction.
COMPANIONS: dict[str, list[str]] = {
    "retraction_policy": ["--enable-priority-scheduling"],
    "service_discovery": ["--selector=a=b"],
    "sim_profile": ["--device=sim"],
    "sim_speed": ["--device=sim"],
    "ssl_keyfile": ["--ssl-certfile=cert.pem"],
    "ssl_certfile": ["--ssl-keyfile=key.pem"],
    "ssl_ca_certs": ["--ssl-keyfile=key.pem", "--ssl-certfile=cert.pem"],
    "ssl_keyfile_password": ["--ssl-keyfile=key.pem", "--ssl-certfile=cert.pem"],
}
# Values that rules beyond their type ask for.
VALUES: dict[str, Any] = {
    "cors_allowed_origins": ["https://a"],
    "fastapi_root_path": "/prefix",
    "schedule_policy": "lof",
    "retraction_policy": "priority",
    "policy": "random",
    "health_endpoint": "/healthy",
    "model_alias": ["a=b"],
    "otlp_traces_endpoint": "http://a:4318",
    "trace_sample_ratio": 0.25,
    "selector": ["a=b"],
    "shadow_policy": "random",
    "worker_urls": ["http://a:1"],
    "kv_events_config": {"topic": "kv"},
    "kv_events_endpoints": ["http://a:1=tcp://a:2"],
}


def other_value(setting: Setting) -> Any:
    """A valid value that is not the default."""
    if setting.name in VALUES:
        return VALUES[setting.name]
    if setting.is_list:
        return [_other(setting.item_kind, None, setting)]
    return _other(setting.kind, setting.default, setting)


def _other(kind: Any, default: Any, setting: Setting) -> Any:
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != default)
    if kind is bool:
        return not default
    if kind is str:
        return "other.text"
    if kind in (int, float):
        return _number(default, list(setting.bounds()), kind)
    return {"other": 1}


def _number(default: Any, bounds: list[str], kind: type) -> Any:
    """One that the bounds allow, given as the words of the help page."""
    limits = {word: float(number) for word, _, number in (text.rpartition(" ") for text in bounds)}
    if kind is float and "below" in limits:
        return (limits["below"] + limits["above"]) / 2
    number = limits.get("at least", 0) + 3
    return kind(number if number != default else number + 1) if "at most" not in limits else kind(limits["at most"])


def on_command_line(spelling: str, value: Any) -> list[str]:
    """Flag and value, as one types them."""
    if isinstance(value, bool):
        return [f"--{spelling}" if value else f"--no-{spelling}"]
    if isinstance(value, list):
        return [f"--{spelling}", *map(str, value)]
    return [f"--{spelling}", json.dumps(value) if isinstance(value, dict) else str(value)]


def in_variable(value: Any) -> str:
    """A value as an environment variable holds it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict | bool) else str(value)
