"""The gateway runs on uvloop, so its tests do; what both data paths must do is tested over both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(params=["asgi", "fast"])
def fast_path(request: pytest.FixtureRequest) -> bool:
    """Whether generation requests are answered inside the protocol, or by the ASGI callable."""
    return bool(request.param == "fast")
