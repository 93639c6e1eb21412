"""Checks that a command line written in a manifest would be accepted by the program that it calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from common.settings import Settings, load
from deploy.fleet.apply import ApplySettings
from gateway.config import GatewaySettings
from worker.config import WorkerSettings

_PROGRAMS: dict[str, type[Settings]] = {"gateway": GatewaySettings, "worker": WorkerSettings, "serve": ApplySettings}


def parsed(words: Sequence[str], env: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """The settings of `canopy WORDS` in that environment. Raises UserError as the program would."""
    command, *flags = words
    return load(_PROGRAMS[command], flags, env, prog=f"canopy {command}").settings
