"""The chunked coding of HTTP/1.1 bodies (RFC 9112, 7.1): an incremental decoder, and a look that costs little. Pure."""

from __future__ import annotations

from enum import Enum, auto

from gateway.proxy.http1 import ProtocolFault

_MAX_LINE_BYTES = 4096
_MAX_TRAILER_BYTES = 65536
_MAX_HEX_DIGITS = 15
_MAX_SIZES = 4096
_NEVER = -(1 << 60)
_SIZES: dict[bytes, int] = {}  # plain size lines that were checked, and what they say; never a last chunk's


def is_whole_chunk(data: bytes) -> bool:
    """Whether `data`, which begins at a chunk's start, is exactly one plain chunk. Quick; may say no to rare sizes."""
    eol = data.find(b"\r\n")
    return _SIZES.get(data[:eol], _NEVER) + eol + 4 == len(data) and data[-2:] == b"\r\n"


def payload_of(chunk: bytes) -> bytes:
    """What one plain whole chunk carries."""
    return chunk[chunk.index(b"\r\n") + 2 : -2]


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

    @property
    def at_chunk(self) -> bool:
        """Whether the next byte is a chunk's first."""
        return self._state is _State.SIZE and not self._line and not self.done

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
        if len(line) > _MAX_LINE_BYTES:
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
        eol = data.find(b"\r\n", position, position + _MAX_LINE_BYTES)
        if eol < 0:
            break
        line = data[position:eol]
        size = _SIZES.get(line) or _new_size(line)
        payload_end = eol + 2 + size
        if not size or payload_end + 2 > end:
            break
        if data[payload_end : payload_end + 2] != b"\r\n":
            raise ProtocolFault("chunk without its end")
        plain = plain and line in _SIZES
        parts.append(data[eol + 2 : payload_end])
        position = payload_end + 2
    return position, plain


def _new_size(line: bytes) -> int:
    """Check a size line, and remember it if it is plain and not the last chunk's."""
    size = chunk_size(line)
    if size and line.isalnum():
        if len(_SIZES) >= _MAX_SIZES:
            _SIZES.clear()
        _SIZES[line] = size
    return size
