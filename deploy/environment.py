"""Environment variables that the launcher gives its children, and those it keeps from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from common.settings import ENV_PREFIX

CACHE_VARIABLE = "CANOPY_CACHE"


def without_settings(env: Mapping[str, str]) -> dict[str, str]:
    """For a child whose settings are complete in its file: the same variables must not be read a second time."""
    return {k: v for k, v in env.items() if not k.startswith(ENV_PREFIX) or k == CACHE_VARIABLE}


def ray_environment(token_file: Path | str) -> dict[str, str]:
    """For every process that starts or attaches to our Ray, which listens on all interfaces: only with the token.

    The mode must be the same everywhere, so it is never left to Ray's own rule.
    """
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # it kills a process 3 s after SIGTERM, drained or not
        "RAY_enable_worker_prestart": "0",  # idle workers would only take memory and start-up time
        "RAY_prestart_worker_first_driver": "0",
    }
