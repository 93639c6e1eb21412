"""Who looks on while exchanges happen: the console's feed, the tracer. Nobody by default, which costs an empty loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.proxy.exchange import Exchange
    from gateway.routing.policy import Choice


class ExchangeObserver(Protocol):
    """Called on the event loop, in the middle of the data path: be quick, do not raise.

    An exchange that began before its observer came is heard of from the middle on.
    """

    def chose(self, exchange: Exchange, choice: Choice) -> None:
        """A worker was chosen for the next attempt. Nothing was sent yet: `exchange.inbound` may still be replaced."""
        ...

    def retried(self, exchange: Exchange, cause: str) -> None:
        """The attempt failed; another choice follows."""
        ...

    def first_token(self, exchange: Exchange, ttft_s: float) -> None:
        """The first body bytes of a streamed answer came, so long after the whole request."""
        ...

    def ended(self, exchange: Exchange, status: int) -> None:
        """It is over; `status` as the metrics count it."""
        ...
