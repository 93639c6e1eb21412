"""The settings of `canopy serve`: its own, plus every flag of gateway and worker that the launcher does not decide.

Each setting has one owner. A flag that both programs have goes to the gateway if it is about the public address, to
both otherwise; what the launcher decides itself (addresses of replicas, identities) is not accepted at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import create_model

from common.settings import Settings, load, option, settings_of, validated, without_feature
from gateway.config import GatewaySettings
from worker.config import WorkerSettings

_FLEET = "Fleet"

# About the public address: the gateway's, where it has them; the replicas' own are not public.
PUBLIC = frozenset(
    {
        "host",
        "port",
        "api_key",
        "admin_api_key",
        "fastapi_root_path",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_ca_certs",
        "ssl_keyfile_password",
    }
)
MUTUAL_TLS = frozenset({"ssl_ca_certs"})  # the launcher has no certificate to show, and asks the gateway how it is
GATEWAY_ONLY = (PUBLIC & GatewaySettings.model_fields.keys()) - MUTUAL_TLS
_PATHS = frozenset(
    setting.name for cls in (WorkerSettings, GatewaySettings) for setting in settings_of(cls) if setting.path
)
_DOWNLOAD = "download the model first, for example with `hf download`, and give its directory"
_PROXY = "put a proxy that does it in front of the gateway"
LAUNCHERS = frozenset({"worker_urls", "ray_address", "incarnation", "ready_file", "dp_size"})  # the launcher decides
DECIDED_FOR_WORKERS = (PUBLIC & WorkerSettings.model_fields.keys()) | LAUNCHERS | {"model_path", "served_model_name"}
DECIDED_FOR_GATEWAY = (LAUNCHERS & GatewaySettings.model_fields.keys()) - {"dp_size"}
HUB = frozenset({"revision", "download_dir"})  # the launcher gets the model for all replicas
_TRACES = frozenset({"enable_trace", "otlp_traces_endpoint", "trace_sample_ratio"})
# Both have them, both get them.
SHARED = _TRACES | {"log_level", "log_format", "max_body_bytes", "shutdown_grace_s"}


class FleetSettings(Settings):
    """Serve one model from replicas behind one gateway, on this machine: canopy serve MODEL [flags]."""

    replicas: int = option(
        1,
        "replicas, each a whole engine (on its own GPU, if there are any)",
        category=_FLEET,
        aliases=["dp-size", "data-parallel-size", "dp"],
        ge=1,
    )
    start_timeout_s: float = option(
        600, "seconds a replica may take to become ready", category=_FLEET, gt=0, aliases=["start-timeout"]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """One validated tree per process that is started. The maps hold only what the user set."""

    fleet: FleetSettings
    gateway: GatewaySettings
    worker: WorkerSettings
    gateway_values: dict[str, Any]
    worker_values: dict[str, Any]


def load_serve_settings(argv: Sequence[str], env: Mapping[str, str]) -> ServeSettings:
    """Parse `canopy serve` arguments; the model needs no flag. Raises UserError for any fault."""
    loaded = load(combined_settings(), argv, env, prog="canopy serve", positional="model_path")
    values = {name: from_anywhere(name, getattr(loaded.settings, name)) for name in loaded.sources}
    gateway_values = _values_of(GatewaySettings, values, without=frozenset())
    worker_values = with_events_for(_values_of(WorkerSettings, values, without=GATEWAY_ONLY), gateway_values)
    return ServeSettings(
        fleet=validated(FleetSettings, _values_of(FleetSettings, values, without=frozenset())),
        gateway=validated(GatewaySettings, gateway_values),
        worker=validated(WorkerSettings, worker_values),
        gateway_values=gateway_values,
        worker_values=worker_values,
    )


@cache
def combined_settings() -> type[Settings]:
    """One class with every accepted setting, for the parser and the help page."""
    fields: dict[str, Any] = {}
    for cls in (FleetSettings, GatewaySettings, WorkerSettings):
        for setting in settings_of(cls):
            if setting.name not in LAUNCHERS and setting.name not in fields:
                field = setting.field
                if setting.name in PUBLIC - GATEWAY_ONLY:
                    field = without_feature(field, _PROXY)
                if setting.name in HUB:
                    field = without_feature(field, _DOWNLOAD)
                fields[setting.name] = (field.annotation, field)
    return create_model("CombinedSettings", __base__=Settings, __doc__=FleetSettings.__doc__, **fields)


def with_events_for(worker_values: Mapping[str, Any], gateway_values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of workers that publish what their gateway wants to follow."""
    streams: dict[str, Any] = {}
    if gateway_values.get("routing_mode") == "exact":
        streams = {"kv_events_config": {"publisher": "zmq"}}
    elif gateway_values.get("gateway_processes", 1) > 1:  # each knows of the others' requests what replicas tell
        streams = {"kv_events_config": {"publisher": "null", "load_endpoint": "auto"}}
    return {**streams, **worker_values}


def from_anywhere(name: str, value: Any) -> Any:
    """A path that works in the replicas, which run in a directory of their own."""
    if name in _PATHS and isinstance(value, str) and Path(value).expanduser().exists():
        return str(Path(value).expanduser().resolve())
    return value


def _values_of(cls: type[Settings], values: Mapping[str, Any], *, without: frozenset[str]) -> dict[str, Any]:
    return {n: v for n, v in values.items() if n in cls.model_fields and n not in without}
