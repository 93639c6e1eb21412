"""A whole request of a client, and the header that tells it which worker answered."""

from __future__ import annotations

import msgspec
import orjson

from common.errors import HttpFault
from gateway.proxy.http1 import REQUEST_ID_HEADER, Headers, RequestHead
from gateway.routing.policy import Choice, RouteRequest

_ROUTE_HEADER = b"x-canopy-route"
_RID = b'"rid"'


class Inbound(msgspec.Struct, frozen=True):
    """A whole request as it came."""

    endpoint: str
    head: RequestHead
    body: bytes
    request_id: bytes
    route: RouteRequest

    def begun(self) -> Inbound:
        """The same without what nobody needs once the answer has begun: prompts are long, and streams are too. A body
        with an id stays, for those who ask for the request by it."""
        if self.body.find(_RID) >= 0:
            return self
        return msgspec.structs.replace(self, body=b"", route=msgspec.structs.replace(self.route, text=b""))

    def answer_headers(self, choice: Choice | None) -> Headers:
        """What every answer to it carries: its id, and the worker that was asked last with the reason."""
        headers: Headers = [(REQUEST_ID_HEADER, self.request_id)]
        if choice is not None:
            route = f"worker={choice.worker.name}; reason={choice.reason}; cached={choice.cached_tokens}"
            headers.append((_ROUTE_HEADER, route.encode()))
        return headers

    def fault_answer(self, fault: HttpFault, choice: Choice | None, retry_after_s: int | None) -> tuple[Headers, bytes]:
        """Headers and body of an error of our own."""
        headers = [(b"content-type", b"application/json"), *self.answer_headers(choice)]
        if retry_after_s is not None:
            headers.append((b"retry-after", str(retry_after_s).encode()))
        return headers, orjson.dumps(fault.body(self.endpoint))
