"""Which hosts may become workers."""

from __future__ import annotations

import pytest

from gateway.fleet.allowed_hosts import AllowedHosts


@pytest.mark.parametrize(
    ("rules", "url", "allowed"),
    [
        ([], "http://anything:1", True),
        (["gpu-*.cluster"], "http://gpu-7.cluster:80", True),
        (["GPU-*"], "https://gpu-7:443", True),
        (["gpu-*"], "http://evil-gpu-7:80", False),
        (["10.0.0.0/8"], "http://10.9.8.7:30000", True),
        (["10.0.0.0/8"], "http://11.0.0.1:30000", False),
        (["10.0.0.0/8"], "http://10.evil.example:80", False),
        (["127.0.0.1"], "http://127.0.0.1:1", True),
        (["127.0.0.1"], "http://169.254.169.254:80", False),
        (["fd00::/8"], "http://[fd00::1]:80", True),
        (["*"], "http://10.0.0.1:80", False),
        (["*", "0.0.0.0/0"], "http://10.0.0.1:80", True),
    ],
)
def test_rules(rules: list[str], url: str, allowed: bool) -> None:
    assert AllowedHosts(rules).allow(url) is allowed
