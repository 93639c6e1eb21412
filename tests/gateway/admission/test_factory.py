"""From settings to keys and gate: defaults of keys, and the shares of several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from common.errors import UserError
from gateway.admission.factory import make_gate, make_keyring, share
from gateway.admission.keys import Caller
from gateway.config import GatewaySettings
from tests.helpers.clock import FakeClock


def caller_of(settings: GatewaySettings, key: str) -> Caller:
    caller = make_keyring(settings).caller([(b"authorization", f"Bearer {key}".encode())])
    assert caller is not None
    return caller


def test_a_key_has_the_common_limits_unless_it_has_its_own(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(
        "- key: plain\n"
        "- {key: more, max_concurrent_requests: 50, requests_per_second: 9.5, priority: 3}\n"
        "- {key: free, max_concurrent_requests: -1, requests_per_second: 0}\n"
    )
    settings = GatewaySettings(
        api_key="first", api_key_file=str(file), key_max_concurrent_requests=4, key_requests_per_second=2
    )
    limits = {key: caller_of(settings, key) for key in ("first", "plain", "more", "free")}
    assert {key: (c.max_concurrent, c.requests_per_s, c.priority) for key, c in limits.items()} == {
        "first": (4, 2, None),
        "plain": (4, 2, None),
        "more": (50, 9.5, 3),
        "free": (None, None, None),
    }
    assert len({caller.name for caller in limits.values()}) == 4


def test_several_keys_of_the_command_line_are_several_callers() -> None:
    settings = GatewaySettings(api_key=["a", "b", "a"], key_max_concurrent_requests=4)
    callers = [caller_of(settings, key) for key in ("a", "b")]
    assert len({caller.name for caller in callers}) == 2
    assert [caller.max_concurrent for caller in callers] == [4, 4]


def test_a_key_is_one_persons(tmp_path: Path) -> None:
    """Of a key that is given twice, nobody knows which limits count."""
    file = tmp_path / "keys.yaml"
    for text, settings in (
        ("- key: a", {"api_key": "a"}),
        ("- key: a", {"api_key": ["b", "a"]}),
        ("- key: a", {"admin_api_key": "a"}),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match="--api-key-file"):
            make_keyring(GatewaySettings(api_key_file=str(file), **settings))


def test_without_limits_there_is_no_gate() -> None:
    for values, has_gate in (
        ({}, False),
        ({"api_key": "k"}, False),
        ({"api_key": "k", "key_requests_per_second": 1}, True),
        ({"max_concurrent_requests": 5}, True),
        ({"rate_limit_tokens_per_second": 5}, True),
    ):
        settings = GatewaySettings(**values)  # type: ignore[arg-type]
        gate = make_gate(settings, make_keyring(settings), FakeClock(), CollectorRegistry())
        assert (gate is not None) == has_gate


@given(st.integers(1, 10**6), st.integers(1, 64))
def test_shares_keep_the_whole_and_starve_nobody(total: int, processes: int) -> None:
    assert share(total, processes) >= 1
    assert processes > total or share(total, processes) * processes <= total
    assert share(0, processes) == 0
