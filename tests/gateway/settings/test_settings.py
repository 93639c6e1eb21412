"""Combinations of settings that cannot work are one sentence each."""

from __future__ import annotations

import pytest

from common.errors import UserError
from common.settings import load
from gateway.config import GatewaySettings
from gateway.kv_events.endpoints import Endpoints
from gateway.kv_events.mode import check_tokenizer


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--max-concurrent-requests 0", "give -1 for any number"),
        ("--max-concurrent-requests 2 --gateway-processes 3", "--max-concurrent-requests is shared"),
        ("--api-key a --admin-api-key a", "must differ"),
        ("--api-key a --api-key b --admin-api-key b", "must differ"),
        ("--kv-events-endpoints ftp://h:1=tcp://h:2", "is not a worker URL"),
        ("--kv-events-endpoints http://h:1=tcp", "is not URL=EVENTS"),
        ("--kv-events-endpoints http://h:1=,,", "is not URL=EVENTS"),
        ("--model-alias a", "NAME=VALUE"),
        ("--service-discovery", "needs --selector"),
        ("--service-discovery --selector app", "NAME=VALUE"),
        ("--service-discovery --selector a=b --worker-urls http://h:1", "leave out --worker-urls"),
        ("--service-discovery --selector a=b --ray-address auto", "leave out --worker-urls"),
        ("--model-alias a=b --model-alias a=c", "two models"),
        ("--allowed-worker-hosts 10.0.0.0/99", "'10.0.0.0/99' is no host"),
        ("--allowed-worker-hosts http://h", "is no host"),
        ("--allowed-worker-hosts h:8000", "is no host"),
        ("--cors-allowed-origins app.example", "is not an origin"),
        ("--cors-allowed-origins https://app.example/", "is not an origin"),
        ("--ssl-keyfile k", "go together"),
        ("--ssl-ca-certs c", "needs --ssl-keyfile"),
    ],
)
def test_contradictions(flags: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        load(GatewaySettings, flags.split(), {}, prog="canopy gateway")


@pytest.mark.parametrize(
    "flags",
    [
        "--model-alias a=b --model-alias a=b --model-alias c=b",
        "--allowed-worker-hosts h-* 10.0.0.1 fd00::1 10.0.0.0/8",
        "--cors-allowed-origins https://app.example http://localhost:3000 *",
        "--service-discovery --selector a=b",
        "--exact-tokenizer-path nowhere",
    ],
)
def test_what_is_taken(flags: str) -> None:
    load(GatewaySettings, flags.split(), {}, prog="canopy gateway")


def test_a_tokenizer_that_is_not_there() -> None:
    settings = GatewaySettings(routing_mode="exact", exact_tokenizer_path="/nowhere")
    with pytest.raises(UserError, match="there is no directory /nowhere"):
        check_tokenizer(settings)


def test_endpoints_are_known_by_workers_in_normal_form() -> None:
    settings = GatewaySettings(kv_events_endpoints=["http://H/=tcp://h:5557,,tcp://h:5559"])
    assert settings.stream_endpoints == {"http://h:80": Endpoints("tcp://h:5557", load="tcp://h:5559")}


def test_aliases() -> None:
    assert GatewaySettings(model_alias=["a=b", "c=d=e"]).aliases == {"a": "b", "c": "d=e"}
