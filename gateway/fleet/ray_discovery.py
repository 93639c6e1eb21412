"""The fleet's controller as a Ray actor: the one file of the gateway that imports ray, and only when it is used.

Ray reads RAY_AUTH_MODE and the token's place from the environment when it is imported; they must be set before.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from typing import Any

from common.errors import UserError
from common.fleet import CONTROLLER_ACTOR, RAY_NAMESPACE
from gateway.fleet.discovery import FleetLost

_ANSWER_MARGIN_S = 10.0  # beyond the long poll's own time


class RayFleetWatch:
    """FleetWatch over the named controller actor of the Ray at `address`. Connects when first asked."""

    def __init__(self, address: str) -> None:
        """Raises UserError if Ray is not installed."""
        if importlib.util.find_spec("ray") is None:
            raise UserError("--ray-address needs the package ray, which is not installed; install it or drop the flag.")
        self._address = address
        self._ray: Any = None
        self._controller: Any = None

    async def watch(self, version: int, timeout_s: float) -> bytes:
        """Raises FleetLost; the next call connects anew."""
        try:
            if self._controller is None:
                self._controller = await asyncio.to_thread(self._find_controller)
            async with asyncio.timeout(timeout_s + _ANSWER_MARGIN_S):
                return bytes(await self._controller.watch.remote(version, timeout_s))
        except TimeoutError:
            self._controller = None
            raise FleetLost("no answer to the long poll") from None
        except (ConnectionError, RuntimeError, ValueError) as error:
            self._controller = None
            raise FleetLost(_first_line(error)) from None
        except Exception as error:
            if not isinstance(error, self._ray.exceptions.RayError):
                raise
            self._controller = None
            raise FleetLost(_first_line(error)) from None

    async def close(self) -> None:
        """Disconnect."""
        if self._ray is not None:
            await asyncio.to_thread(self._ray.shutdown)

    def _find_controller(self) -> Any:
        """Blocking. Raises ValueError if no such actor lives, ConnectionError if no Ray does."""
        # Ray's own handler would kill the process 3 s after SIGTERM, drained or not.
        os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
        import ray

        self._ray = ray
        if not ray.is_initialized():
            ray.init(address=self._address, namespace=RAY_NAMESPACE, log_to_driver=False, logging_level="error")
        return ray.get_actor(CONTROLLER_ACTOR, namespace=RAY_NAMESPACE)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
