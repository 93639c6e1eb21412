"""HTTP/1.1 as bytes: response heads, body framing, chunked decoding, request heads. Pure; used by both data paths.

Rules are RFC 9112's. Anything a careless or hostile worker could use to smuggle a second message is a ProtocolFault.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

Headers = list[tuple[bytes, bytes]]

MAX_HEAD_BYTES = 65536
_MAX_CHUNK_LINE_BYTES = 4096
_MAX_TRAILER_BYTES = 65536
_MAX_HEX_DIGITS = 15

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
_NOT_FORWARDED = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id"}
_BODILESS = frozenset({204, 304})


class ProtocolFault(Exception):
    """The peer broke HTTP/1.1."""


class Framing(Enum):
    """How the end of a body is told."""

    EMPTY = auto()
    LENGTH = auto()
    CHUNKED = auto()
    CLOSE = auto()


class ResponseHead:
    """One response head. `headers`: end-to-end fields only, names in lower case; a content-length stays in."""

    __slots__ = ("framing", "headers", "keep_alive", "length_bytes", "status")

    def __init__(self, status: int, headers: Headers, framing: Framing, length_bytes: int, keep_alive: bool) -> None:
        self.status = status
        self.headers = headers
        self.framing = framing
        self.length_bytes = length_bytes
        self.keep_alive = keep_alive

    def header(self, name: bytes) -> bytes | None:
        """The first value of a field, None if absent."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


_PARSED: dict[tuple[bytes, bool], ResponseHead] = {}  # workers say the same again and again
_MAX_PARSED, _MAX_PARSED_BYTES = 512, 1024


def parse_head(raw: bytes, method: str) -> ResponseHead:
    """Parse a head without its closing blank line. `method` is the request's (HEAD has no body). Raises ProtocolFault.

    Do not change the result: equal heads share it.
    """
    key = raw, method == "HEAD"
    head = _PARSED.get(key)
    if head is None:
        head = _parse_head(raw, method)
        if len(raw) <= _MAX_PARSED_BYTES:
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
            if length is None:
                headers.append((name, value))
            length = value
        elif name not in HOP_BY_HOP:
            headers.append((name, value))
    if connection is not None:
        headers = _drop_nominated(headers, connection)
    framing, length_bytes = _framing(status, method, transfer_encoding, length)
    return ResponseHead(status, headers, framing, length_bytes, _keep_alive(http_1_1, connection, framing))


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
    return [(name, value) for name, value in headers if name not in nominated or name == b"content-length"]


def _framing(status: int, method: str, encoding: bytes | None, length: bytes | None) -> tuple[Framing, int]:
    if encoding is not None:
        if length is not None:
            raise ProtocolFault("both transfer-encoding and content-length")
        if encoding.strip().lower() != b"chunked":
            raise ProtocolFault("unknown transfer-encoding")
    if length is not None and (not length.isdigit() or len(length) > 18):
        raise ProtocolFault("malformed content-length")
    if method == "HEAD" or status in _BODILESS or status < 200:
        return Framing.EMPTY, 0
    if encoding is not None:
        return Framing.CHUNKED, 0
    if length is None:
        return Framing.CLOSE, 0
    size = int(length)
    return (Framing.LENGTH, size) if size else (Framing.EMPTY, 0)


def _keep_alive(http_1_1: bool, connection: bytes | None, framing: Framing) -> bool:
    if framing is Framing.CLOSE:
        return False
    if connection is None:
        return http_1_1
    tokens = {token.strip() for token in connection.lower().split(b",")}
    return b"close" not in tokens and (http_1_1 or b"keep-alive" in tokens)


def chunk_size(line: bytes) -> int:
    """The size in a chunk-size line without its CRLF; extensions are ignored. int() alone would take `+5` and `0x5`."""
    semicolon = line.find(b";")
    digits = line if semicolon < 0 else line[:semicolon].rstrip(b" \t")
    if not digits.isalnum() or len(digits) > _MAX_HEX_DIGITS or digits[1:2] in (b"x", b"X"):
        raise ProtocolFault("malformed chunk size")
    try:
        return int(digits, 16)
    except ValueError:
        raise ProtocolFault("malformed chunk size") from None


class _State(Enum):
    SIZE = auto()
    DATA = auto()
    END = auto()
    TRAILER = auto()


class ChunkedDecoder:
    """Incremental decoder of one chunked body.

    `feed` returns (payload, framed): `framed` is the input without the last-chunk if the input was whole plain chunks
    from its first to its last byte, so that it can be relayed as it is; else None. After `done`, `rest` holds what
    followed the body. Trailers are dropped.
    """

    __slots__ = ("_line", "_need", "_state", "_trailer_bytes", "done", "rest")

    def __init__(self) -> None:
        self._state = _State.SIZE
        self._line = b""  # an unfinished line
        self._need = 0  # payload bytes the open chunk still lacks
        self._trailer_bytes = 0
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes | None]:
        """Decode the next bytes of the body. Raises ProtocolFault."""
        parts: list[bytes] = []
        if self._state is not _State.SIZE or self._line:
            self._step(data, 0, parts)
            return b"".join(parts), None
        position, plain = _whole_chunks(data, parts)
        framed = None
        if position == len(data):
            framed = data
        elif data[position:] == b"0\r\n\r\n":
            self.done = True
            framed = data[:position]
        else:
            self._step(data, position, parts)
            plain = False
        payload = parts[0] if len(parts) == 1 else b"".join(parts)
        return payload, (framed if plain and payload else None)

    def _step(self, data: bytes, position: int, parts: list[bytes]) -> None:
        """The general case, from any state and at any split."""
        while position < len(data) and not self.done:
            if self._state is _State.DATA:
                taken = data[position : position + self._need]
                parts.append(taken)
                position += len(taken)
                self._need -= len(taken)
                if not self._need:
                    self._state = _State.END
                continue
            if self._line:
                data, position, self._line = self._line + data[position:], 0, b""
            eol = data.find(b"\r\n", position)
            if eol < 0:
                self._keep_line(data[position:])
                return
            line, position = data[position:eol], eol + 2
            self._take_line(line)
        if self.done:
            self.rest = data[position:]

    def _keep_line(self, line: bytes) -> None:
        if self._state is _State.END and line != b"\r":
            raise ProtocolFault("chunk without its end")
        if len(line) > _MAX_CHUNK_LINE_BYTES:
            raise ProtocolFault("line too long in a chunked body")
        self._line = line

    def _take_line(self, line: bytes) -> None:
        if self._state is _State.SIZE:
            self._need = chunk_size(line)
            self._state = _State.DATA if self._need else _State.TRAILER
        elif self._state is _State.END:
            if line:
                raise ProtocolFault("chunk without its end")
            self._state = _State.SIZE
        elif line:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MAX_TRAILER_BYTES:
                raise ProtocolFault("trailer too long")
        else:
            self.done = True


def _whole_chunks(data: bytes, parts: list[bytes]) -> tuple[int, bool]:
    """Collect the payloads of the whole non-last chunks `data` begins with: (position after them, no extensions)."""
    position, end, plain = 0, len(data), True
    while position < end:
        eol = data.find(b"\r\n", position, position + _MAX_CHUNK_LINE_BYTES)
        if eol < 0:
            break
        line = data[position:eol]
        size = chunk_size(line)
        payload_end = eol + 2 + size
        if not size or payload_end + 2 > end:
            break
        if data[payload_end : payload_end + 2] != b"\r\n":
            raise ProtocolFault("chunk without its end")
        plain = plain and line.isalnum()
        parts.append(data[eol + 2 : payload_end])
        position = payload_end + 2
    return position, plain


def request_head(
    method: str, target: bytes, host: bytes, headers: Iterable[tuple[bytes, bytes]], body_bytes: int, request_id: bytes
) -> bytes:
    """The head sent to a worker: the client's end-to-end fields (names in lower case), ours for host, length and id."""
    headers = list(headers)
    skip: frozenset[bytes] | set[bytes] = _NOT_FORWARDED
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            skip = skip | {token.strip().lower() for token in value.split(b",")}
    parts = [method.encode(), b" ", target, b" HTTP/1.1\r\nhost: ", host, b"\r\n"]
    for name, value in headers:
        if name not in skip:
            parts += (name, b": ", value, b"\r\n")
    if body_bytes or method in ("POST", "PUT", "PATCH"):
        parts += (b"content-length: ", str(body_bytes).encode(), b"\r\n")
    parts += (b"x-request-id: ", request_id, b"\r\n\r\n")
    return b"".join(parts)
