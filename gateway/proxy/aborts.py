"""Which of the live requests an id of /abort_request means, and the end of those that no worker has."""

from __future__ import annotations

import orjson

from common.errors import HttpFault
from gateway.fleet.worker import WorkerView
from gateway.proxy.exchange import Exchange
from gateway.proxy.forwarder import Forwarder
from gateway.proxy.inbound import Inbound

_ABORTED = "The request was aborted."


class Aborts:
    """Finds requests by the `rid` in their bodies. They are looked through when somebody asks, which costs the others
    nothing; an id that its client wrote with needless escapes is not found."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def find(self, rid: str) -> list[Exchange]:
        """The live requests of this process with that id."""
        return [exchange for exchange in self._forwarder.live if _bears(exchange.inbound, rid)]

    def all(self) -> list[Exchange]:
        """All live requests of this process."""
        return self._forwarder.live

    def end_waiting(self, exchanges: list[Exchange]) -> int:
        """End those that are with no worker: they wait for their turn, for a retry, or for a connection. Returns how
        many."""
        waiting = [exchange for exchange in exchanges if not exchange.done and not exchange.sent]
        for exchange in waiting:
            exchange.turn_away(HttpFault(400, _ABORTED, code="request_aborted"), None)
        return len(waiting)

    @staticmethod
    def holders(exchanges: list[Exchange]) -> list[WorkerView]:
        """The workers that have some of them, each once."""
        chosen = [exchange.choice.worker for exchange in exchanges if exchange.sent and exchange.choice is not None]
        return list({worker.url: worker for worker in chosen}.values())


def _bears(inbound: Inbound, rid: str) -> bool:
    """Whether this is the request's id, or one of those of its prompts."""
    if inbound.body.find(orjson.dumps(rid)) < 0:
        return False
    try:
        given = orjson.loads(inbound.body).get("rid")
    except (orjson.JSONDecodeError, AttributeError):
        return False
    return rid in given if isinstance(given, list) else bool(given == rid)
