"""How much of the gateway each key uses, against its limits. Pure: time is an argument."""

from __future__ import annotations

import math

from common.errors import HttpFault
from gateway.admission.bucket import TokenBucket
from gateway.admission.keys import Caller

_BURST_S = 2.0


class TooMuch(HttpFault):
    """A key is over its limit; `retry_after_s` says when to come again."""

    def __init__(self, message: str, code: str, retry_after_s: int) -> None:
        super().__init__(429, message, code=code)
        self.retry_after_s = retry_after_s


class KeyUse:
    """The requests of all keys that have limits. Callers are told apart by their names."""

    def __init__(self) -> None:
        self._in_gateway: dict[str, int] = {}
        self._buckets: dict[str, TokenBucket] = {}

    def begin(self, caller: Caller, now_s: float) -> None:
        """A request of this caller comes in. Raises TooMuch, and then does not count it."""
        count = self._in_gateway.get(caller.name, 0)
        if caller.max_concurrent is not None and count >= caller.max_concurrent:
            text = f"This API key may have {caller.max_concurrent} requests at once."
            raise TooMuch(text, "too_many_concurrent_requests", 1)
        if caller.requests_per_s is not None:
            rate = caller.requests_per_s
            bucket = self._buckets.get(caller.name)
            if bucket is None:
                bucket = self._buckets[caller.name] = TokenBucket(rate, rate * _BURST_S)
            if not bucket.take(now_s):
                text = f"This API key may begin {rate:g} requests a second."
                raise TooMuch(text, "rate_limit_exceeded", max(math.ceil(bucket.wait_s(now_s)), 1))
        self._in_gateway[caller.name] = count + 1

    def end(self, caller: Caller) -> None:
        """A request that was counted is over."""
        count = self._in_gateway[caller.name] - 1
        if count:
            self._in_gateway[caller.name] = count
        else:
            del self._in_gateway[caller.name]

    def count(self, caller: Caller) -> int:
        """Requests it has in the gateway."""
        return self._in_gateway.get(caller.name, 0)
