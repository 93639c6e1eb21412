"""How long a replica's scheduler may stand still."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.fleet.replica import stall_limit_s


@pytest.mark.parametrize(
    ("settings", "has_gpu", "limit_s"),
    [
        ({}, True, 60),
        ({"device": "sim"}, False, 60),
        ({"device": "cpu"}, False, 300),
        ({}, False, 300),
        ({"watchdog_timeout_s": 20}, True, 20),
        ({"watchdog_timeout_s": 900, "device": "cpu"}, False, 900),
    ],
)
def test_a_stall_is_longer_than_any_step_of_the_device(settings: dict[str, Any], has_gpu: bool, limit_s: float) -> None:
    assert stall_limit_s(settings, has_gpu=has_gpu) == limit_s
