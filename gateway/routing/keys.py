"""What a client says in headers about where its request belongs."""

from __future__ import annotations

from collections.abc import Iterable

# The first of these that is there counts. The others are those of SMG, production-stack and Ray Serve, and of Dynamo.
KEY_HEADERS = (b"x-canopy-routing-key", b"x-smg-routing-key", b"x-session-id", b"x-dynamo-session-id")
TARGET_HEADERS = (b"x-canopy-target-worker", b"x-smg-target-worker")
_NAMES = frozenset(KEY_HEADERS + TARGET_HEADERS)
_MAX_BYTES = 512  # of a key; longer ones are cut


def routing_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, str]:
    """(routing key, target worker), empty if the client named none. Header names are in lower case."""
    found = {name: value for name, value in headers if name in _NAMES and value}
    if not found:
        return b"", ""
    key = next((found[name] for name in KEY_HEADERS if name in found), b"")
    target = next((found[name] for name in TARGET_HEADERS if name in found), b"")
    return key[:_MAX_BYTES], target[:_MAX_BYTES].decode("latin-1")
