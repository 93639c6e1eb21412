"""Which workers may join, under which names their models are known, and Kubernetes."""

from __future__ import annotations

from functools import partial

from pydantic import field_validator, model_validator

from common.settings import Settings, option
from gateway.fleet.allowed_hosts import AllowedHosts

_option = partial(option, category="Workers")


class DiscoverySettings(Settings):
    """Workers, beside those of the command line and of Ray."""

    allowed_worker_hosts: list[str] = _option(
        [],
        "hosts that POST /workers accepts: names with * and ?, addresses, or networks as in 10.0.0.0/8; default: any",
    )
    model_alias: list[str] = _option(
        [], "further names of models, NAME=MODEL each; requests for NAME go to workers of MODEL"
    )
    service_discovery: bool = _option(False, "serve the Kubernetes pods that --selector names")
    selector: list[str] = _option([], "labels of those pods, NAME=VALUE each; a pod has all of them")
    service_discovery_port: int = _option(
        30000, "port of a pod's worker, if its annotation canopy/port names no other", ge=1, le=65535
    )
    service_discovery_namespace: str | None = _option(None, "namespace of the pods; default: our own", min_length=1)

    @field_validator("allowed_worker_hosts", mode="after")
    @classmethod
    def _check_hosts(cls, value: list[str]) -> list[str]:
        AllowedHosts(value)
        return value

    @model_validator(mode="after")
    def _check_pairs(self) -> DiscoverySettings:
        for flag, pairs in (("--model-alias", self.model_alias), ("--selector", self.selector)):
            for pair in pairs:
                name, _, value = pair.partition("=")
                if not name or not value:
                    raise ValueError(f"{flag} {pair!r} is not a pair; write NAME=VALUE.")
        if self.service_discovery and not self.selector:
            raise ValueError("--service-discovery needs --selector NAME=VALUE, so that it takes no pod by mistake.")
        if len(self.aliases) < len(set(self.model_alias)):
            raise ValueError("--model-alias gives one name two models; NAME stands for one.")
        return self

    @property
    def aliases(self) -> dict[str, str]:
        """Further name -> model."""
        return dict(pair.split("=", 1) for pair in self.model_alias)
