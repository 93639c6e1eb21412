"""HTTP/1.1 heads as bytes: of responses, read, and of requests, written. Pure; used by both data paths.

Rules are RFC 9112's. Anything a careless or hostile worker could use to smuggle a second message is a ProtocolFault.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

Headers = list[tuple[bytes, bytes]]

MAX_HEAD_BYTES = 65536
REQUEST_ID_HEADER = b"x-request-id"
_MAX_LENGTH_DIGITS = 18

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_FORWARDED = HOP_BY_HOP | {b"host", b"content-length", b"expect", REQUEST_ID_HEADER}
_BODILESS = frozenset({204, 304})


class ProtocolFault(Exception):
    """The peer broke HTTP/1.1."""


class Framing(Enum):
    """How the end of a body is told."""

    EMPTY = auto()
    LENGTH = auto()
    CHUNKED = auto()
    CLOSE = auto()


class ResponseHead(msgspec.Struct, frozen=True, gc=False):
    """One response head. `fields`: end-to-end ones but content-length (that is `length`), names in lower case.

    `lines`: the same as header lines, without x-request-id. `event_stream`: an event can be put behind what came.
    """

    status: int
    framing: Framing
    keep_alive: bool
    fields: Headers
    lines: bytes
    length: bytes | None
    length_bytes: int  # of the body, 0 if it is not told or there is none
    bodiless: bool
    event_stream: bool

    @property
    def headers(self) -> Headers:
        """All fields, content-length among them."""
        return self.fields if self.length is None else [*self.fields, (b"content-length", self.length)]

    def sized(self, length: bytes) -> ResponseHead:
        """The same head with another content-length."""
        length_bytes = 0 if self.bodiless else int(length)
        framing = Framing.LENGTH if length_bytes else Framing.EMPTY
        return msgspec.structs.replace(self, length=length, length_bytes=length_bytes, framing=framing)


def _is_event_stream(fields: Headers) -> bool:
    """Events as plain text."""
    names = dict(fields)
    return b"content-encoding" not in names and names.get(b"content-type", b"").startswith(b"text/event-stream")


_LENGTH_NAME = b"\r\ncontent-length: "
_PARSED: dict[tuple[bytes, bool], ResponseHead] = {}  # workers say the same again and again, but for the length
_MAX_PARSED, _MAX_PARSED_BYTES = 512, 1024


def parse_head(raw: bytes, method: str) -> ResponseHead:
    """Parse a head without its closing blank line. `method` is the request's (HEAD has no body). Raises ProtocolFault.

    Do not change the result: equal heads share it.
    """
    at, length = raw.find(_LENGTH_NAME), None
    key = raw, method == "HEAD"
    if at >= 0:
        start = at + len(_LENGTH_NAME)
        eol = raw.find(b"\r\n", start)
        length = raw[start:] if eol < 0 else raw[start:eol]
        key = raw[:start] + raw[start + len(length) :], key[1]
    known = _PARSED.get(key)
    if known is not None:
        if length is None or length == known.length:
            return known
        if length.isdigit() and len(length) <= _MAX_LENGTH_DIGITS:
            return known.sized(length)
    head = _parse_head(raw, method)
    # A second content-length would stay in the key with the value that it must not differ from.
    if len(raw) <= _MAX_PARSED_BYTES and raw.lower().count(b"\r\ncontent-length") <= 1:
        if len(_PARSED) >= _MAX_PARSED:
            _PARSED.clear()
        _PARSED[key] = head
    return head


def _parse_head(raw: bytes, method: str) -> ResponseHead:
    lines = _lines(raw)
    status, http_1_1 = _status_line(lines[0])
    headers: Headers = []
    transfer_encoding = length = connection = None
    for line in lines[1:]:
        name, separator, value = line.partition(b":")
        if not separator or not name or b" " in name or b"\t" in name:
            raise ProtocolFault("malformed header line")
        name = name.lower()
        value = value.strip(b" \t")
        if name == b"transfer-encoding":
            transfer_encoding = value if transfer_encoding is None else transfer_encoding + b"," + value
        elif name == b"connection":
            connection = value if connection is None else connection + b"," + value
        elif name == b"content-length":
            if length is not None and length != value:
                raise ProtocolFault("two different content-lengths")
            length = value
        elif name not in HOP_BY_HOP:
            headers.append((name, value))
    if connection is not None:
        headers = _drop_nominated(headers, connection)
    bodiless = method == "HEAD" or status in _BODILESS or status < 200
    framing = _framing(bodiless, transfer_encoding, length)
    return ResponseHead(
        status=status,
        framing=framing,
        keep_alive=_keep_alive(http_1_1, connection, framing),
        fields=headers,
        lines=b"".join(b"%b: %b\r\n" % field for field in headers if field[0] != REQUEST_ID_HEADER),
        length=length,
        length_bytes=int(length) if length is not None and framing is Framing.LENGTH else 0,
        bodiless=bodiless,
        event_stream=length is None and _is_event_stream(headers),
    )


def _lines(raw: bytes) -> list[bytes]:
    lines = raw.split(b"\r\n")
    # A bare CR, LF or NUL inside a line could be read as a line end further down.
    if raw.count(b"\n") != len(lines) - 1 or raw.count(b"\r") != len(lines) - 1 or b"\0" in raw:
        raise ProtocolFault("stray control character in the response head")
    return lines


def _status_line(line: bytes) -> tuple[int, bool]:
    if line[:7] != b"HTTP/1." or line[7:8] not in (b"0", b"1") or line[8:9] != b" ":
        raise ProtocolFault("not an HTTP/1 status line")
    digits = line[9:12]
    if len(digits) != 3 or not digits.isdigit() or line[12:13] not in (b" ", b""):
        raise ProtocolFault("malformed status code")
    status = int(digits)
    if not 100 <= status <= 599:
        raise ProtocolFault("status code out of range")
    return status, line[7:8] == b"1"


def _drop_nominated(headers: Headers, connection: bytes) -> Headers:
    nominated = {token.strip().lower() for token in connection.split(b",")} - {b"close", b"keep-alive", b""}
    if not nominated:
        return headers
    return [(name, value) for name, value in headers if name not in nominated]


def _framing(bodiless: bool, encoding: bytes | None, length: bytes | None) -> Framing:
    if encoding is not None:
        if length is not None:
            raise ProtocolFault("both transfer-encoding and content-length")
        if encoding.strip().lower() != b"chunked":
            raise ProtocolFault("unknown transfer-encoding")
    if length is not None and (not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS):
        raise ProtocolFault("malformed content-length")
    if bodiless:
        return Framing.EMPTY
    if encoding is not None:
        return Framing.CHUNKED
    if length is None:
        return Framing.CLOSE
    return Framing.LENGTH if int(length) else Framing.EMPTY


def _keep_alive(http_1_1: bool, connection: bytes | None, framing: Framing) -> bool:
    if framing is Framing.CLOSE:
        return False
    if connection is None:
        return http_1_1
    tokens = {token.strip() for token in connection.lower().split(b",")}
    return b"close" not in tokens and (http_1_1 or b"keep-alive" in tokens)


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """What of a request's head is used. `target`: path and query. `lines`: see `forwarded_lines`.

    `headers`: as they came, names in lower case; a content-length among them may be that of an earlier request.
    `given_id`: the client's request id. `routing_key`, `routing_target`: see gateway.routing.keys. Empty if not given.
    """

    method: str
    path: str
    target: bytes
    query: bytes
    headers: Headers
    lines: bytes
    given_id: bytes
    routing_key: bytes
    routing_target: str


def forwarded_lines(headers: Headers) -> bytes:
    """The end-to-end fields of a request as header lines, without those that `request_head` writes itself."""
    skip: frozenset[bytes] | set[bytes] = _NOT_FORWARDED
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            skip = skip | {token.strip().lower() for token in value.split(b",")}
    return b"".join(b"%b: %b\r\n" % field for field in headers if field[0] not in skip)


def with_authorization(lines: bytes, value: bytes) -> bytes:
    """Header lines with this Authorization in place of what is there; none if it is empty."""
    others = [line for line in lines.splitlines(keepends=True) if not line.startswith(b"authorization:")]
    if value:
        others.append(b"authorization: %b\r\n" % value)
    return b"".join(others)


def request_head(method: str, target: bytes, host: bytes, lines: bytes, body_bytes: int, request_id: bytes) -> bytes:
    """The head sent to a worker: `lines` (see `forwarded_lines`), and ours for host, length and id."""
    if body_bytes or method in ("POST", "PUT", "PATCH"):
        lines += b"content-length: %d\r\n" % body_bytes
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%bx-request-id: %b\r\n\r\n" % (
        method.encode(),
        target,
        host,
        lines,
        request_id,
    )
