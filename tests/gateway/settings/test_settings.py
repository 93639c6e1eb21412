"""Combinations of settings that cannot work are one sentence each."""

from __future__ import annotations

import pytest

from common.errors import UserError
from common.settings import load
from gateway.config import GatewaySettings


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--max-concurrent-requests 0", "give -1 for any number"),
        ("--max-concurrent-requests 2 --gateway-processes 3", "--max-concurrent-requests is shared"),
        ("--api-key a --admin-api-key a", "must differ"),
        ("--model-alias a", "NAME=VALUE"),
        ("--service-discovery", "needs --selector"),
        ("--service-discovery --selector app", "NAME=VALUE"),
        ("--service-discovery --selector a=b --worker-urls http://h:1", "leave out --worker-urls"),
        ("--ssl-keyfile k", "go together"),
        ("--ssl-ca-certs c", "needs --ssl-keyfile"),
    ],
)
def test_contradictions(flags: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        load(GatewaySettings, flags.split(), {}, prog="canopy gateway")


def test_aliases() -> None:
    assert GatewaySettings(model_alias=["a=b", "c=d=e"]).aliases == {"a": "b", "c": "d=e"}
