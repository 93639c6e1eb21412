"""Offers to go on in another protocol, taken out of requests that HTTP/1.1 servers here are about to parse.

Java's HTTP client offers h2c with each request. A server that has nothing but HTTP/1.1 is to answer as if it had not;
httptools, however, takes what follows such a head for the other protocol, and the body is lost.
"""

from __future__ import annotations

import re

_LINE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)


def without_upgrade(data: bytes) -> bytes:
    """`data`, read where a head begins or goes on, without the head's Upgrade lines."""
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[:end]
    if b"\r\nupgrade:" not in head.lower():
        return data
    return _LINE.sub(b"", head) + data[len(head) :]
