"""Requests for a model by another of its names (--model-alias): they go on with the model's own name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.proxy.downstream import Downstream
from gateway.proxy.exchange import Exchange
from gateway.proxy.forwarder import ExchangeFactory, Forwarder
from gateway.proxy.inbound import Inbound

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class AliasedExchanges:
    """Makes exchanges by `make`, after it has replaced an alias by its model."""

    def __init__(self, make: ExchangeFactory, aliases: Mapping[str, str]) -> None:
        self._make = make
        self._aliases = aliases

    def __call__(self, forwarder: Forwarder, inbound: Inbound, downstream: Downstream) -> Exchange:
        model = self._aliases.get(inbound.route.model or "")
        if model is not None:
            route = msgspec.structs.replace(inbound.route, model=model)
            body = renamed(inbound.body, model) if inbound.body else b""
            inbound = msgspec.structs.replace(inbound, route=route, body=body)
        return self._make(forwarder, inbound, downstream)


def renamed(body: bytes, model: str) -> bytes:
    """A JSON object with another `model`; all other values keep their bytes."""
    try:
        fields: dict[str, Any] = _FIELDS.decode(body)
    except msgspec.DecodeError:  # NaN or Infinity, which only Python takes for JSON; a worker will say so
        return json.dumps(json.loads(body) | {"model": model}).encode()
    return msgspec.json.encode(fields | {"model": model})
