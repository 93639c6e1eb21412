"""Checks that a command line written in a manifest would be accepted by the program that it calls."""

from __future__ import annotations

from collections.abc import Sequence

from common.settings import Settings, load
from deploy.fleet.apply import ApplySettings
from gateway.config import GatewaySettings
from worker.config import WorkerSettings

_PROGRAMS: dict[str, type[Settings]] = {"gateway": GatewaySettings, "worker": WorkerSettings, "serve": ApplySettings}


def parsed(words: Sequence[str]) -> Settings:
    """The settings of `canopy WORDS`. Raises UserError as the program would."""
    command, *flags = words
    return load(_PROGRAMS[command], flags, {}, prog=f"canopy {command}").settings
