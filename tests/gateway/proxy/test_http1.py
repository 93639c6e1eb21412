"""HTTP/1.1 as bytes: every split of a body decodes alike, and nothing ambiguous is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.proxy.http1 import ChunkedDecoder, Framing, ProtocolFault, chunk_size, parse_head, request_head

relaxed = settings(deadline=None)
payloads = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
extensions = st.sampled_from([b"", b";a=b", b" ; x"])
trailers = st.lists(st.sampled_from([b"x: 1", b"digest: abc"]), max_size=2)


def encode(chunks: list[bytes], extension: bytes = b"", trailer: tuple[bytes, ...] | list[bytes] = ()) -> bytes:
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    return body + b"0\r\n" + b"".join(line + b"\r\n" for line in trailer) + b"\r\n"


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in zip(bounds, bounds[1:], strict=False) if start < end]


@relaxed
@given(payloads, extensions, trailers, st.binary(max_size=10), st.lists(st.integers(0, 10_000), max_size=12))
def test_chunks_decode_alike_however_they_are_cut(
    chunks: list[bytes], extension: bytes, trailer: list[bytes], after: bytes, cuts: list[int]
) -> None:
    decoder = ChunkedDecoder()
    encoded = encode(chunks, extension, trailer)
    found, rest = b"", b""
    for piece in split(encoded + after, cuts):
        if decoder.done:
            rest += piece
            continue
        payload, framed = decoder.feed(piece)
        found += payload
        if framed is not None:
            again = ChunkedDecoder()
            assert again.feed(framed)[0] == payload and not again.done
            assert b";" not in framed.split(b"\r\n", 1)[0]
    assert decoder.done
    assert found == b"".join(chunks)
    assert decoder.rest + rest == after


@relaxed
@given(payloads)
def test_whole_chunks_are_handed_on_as_they_came(chunks: list[bytes]) -> None:
    encoded = encode(chunks)
    payload, framed = ChunkedDecoder().feed(encoded)
    assert payload == b"".join(chunks)
    assert framed == (encoded.removesuffix(b"0\r\n\r\n") if chunks else None)


@relaxed
@given(payloads, st.integers(1, 10_000))
def test_a_cut_body_is_never_done(chunks: list[bytes], missing: int) -> None:
    encoded = encode(chunks)
    decoder = ChunkedDecoder()
    decoder.feed(encoded[: max(len(encoded) - missing, 0)])
    assert not decoder.done


@relaxed
@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_any_bytes_are_decoded_or_refused(data: bytes, cuts: list[int]) -> None:
    decoder = ChunkedDecoder()
    try:
        for piece in split(data, cuts):
            if not decoder.done:
                decoder.feed(piece)
    except ProtocolFault:
        pass


@pytest.mark.parametrize(
    "line", [b"", b"+5", b"-5", b"0x5", b"0X5", b"1_0", b" 5", b"5 5", b"g", b"5.", b"f" * 16, b";a"]
)
def test_only_hexadecimal_sizes(line: bytes) -> None:
    with pytest.raises(ProtocolFault):
        chunk_size(line)


@pytest.mark.parametrize(
    ("line", "size"), [(b"0", 0), (b"00a", 10), (b"FF", 255), (b"1a;x=y", 26), (b"5 ;x", 5), (b"f" * 15, 16**15 - 1)]
)
def test_sizes(line: bytes, size: int) -> None:
    assert chunk_size(line) == size


@pytest.mark.parametrize(
    "body",
    [b"5\r\nhello!\r\n", b"5\r\nhello\n\n", b"x" * 5000, b"1\r\na\r\n" + b"2" * 5000, b"0\r\n" + b"a: b\r\n" * 20000],
)
def test_broken_framing_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolFault):
        ChunkedDecoder().feed(body)
    decoder = ChunkedDecoder()
    with pytest.raises(ProtocolFault):
        for index in range(len(body)):
            decoder.feed(body[index : index + 1])


def head(*lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([status, *lines]).encode()


@pytest.mark.parametrize(
    ("lines", "framing", "length", "keep_alive"),
    [
        (["Content-Length: 5"], Framing.LENGTH, 5, True),
        (["content-length: 5", "Content-Length: 5"], Framing.LENGTH, 5, True),
        (["content-length: 0"], Framing.EMPTY, 0, True),
        (["Transfer-Encoding: Chunked"], Framing.CHUNKED, 0, True),
        (["transfer-encoding: chunked", "connection: close"], Framing.CHUNKED, 0, False),
        ([], Framing.CLOSE, 0, False),
        (["connection: keep-alive"], Framing.CLOSE, 0, False),
    ],
)
def test_framing(lines: list[str], framing: Framing, length: int, keep_alive: bool) -> None:
    parsed = parse_head(head(*lines), "POST")
    assert (parsed.framing, parsed.length_bytes, parsed.keep_alive) == (framing, length, keep_alive)


def test_answers_without_bodies() -> None:
    assert parse_head(head("content-length: 5"), "HEAD").framing is Framing.EMPTY
    assert parse_head(head("content-length: 5"), "GET").framing is Framing.LENGTH
    for status in ("HTTP/1.1 204 No", "HTTP/1.1 304 Not", "HTTP/1.1 100 Go"):
        assert parse_head(head(status=status), "POST").framing is Framing.EMPTY


def test_http_1_0_closes_unless_it_says_otherwise() -> None:
    assert not parse_head(head("content-length: 1", status="HTTP/1.0 200 OK"), "GET").keep_alive
    assert parse_head(head("content-length: 1", "connection: Keep-Alive", status="HTTP/1.0 200 OK"), "GET").keep_alive


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/2 200 OK",
        b"HTTP/1.2 200 OK",
        b"HTTP/1.1  200 OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 -20 OK",
        b"HTTP/1.1 099 OK",
        b"HTTP/1.1 600 OK",
        b"ICY 200 OK",
        b"",
        head("no colon"),
        head(": empty"),
        head("a b: c"),
        head("a : c"),
        head(" folded: x"),
        head("a: b", "\tfolded"),
        head("a: b\nset-cookie: c"),
        head("a: b\rset-cookie: c"),
        head("a: b\0"),
        head("content-length: 5", "transfer-encoding: chunked"),
        head("content-length: 5", "content-length: 6"),
        head("content-length: 5, 5"),
        head("content-length: -5"),
        head("content-length: 0x5"),
        head("content-length: " + "9" * 30),
        head("transfer-encoding: gzip"),
        head("transfer-encoding: gzip, chunked"),
        head("transfer-encoding: chunked", "transfer-encoding: chunked"),
    ],
)
def test_ambiguous_heads_are_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolFault):
        parse_head(raw, "POST")


def test_end_to_end_fields_only() -> None:
    parsed = parse_head(
        head("X-A: 1", "x-a: 2", "Connection: X-B", "X-B: 3", "Keep-Alive: x", "Upgrade: y", "Z:"), "GET"
    )
    assert parsed.headers == [(b"x-a", b"1"), (b"x-a", b"2"), (b"z", b"")]


def test_request_heads() -> None:
    headers = [
        (b"host", b"gateway"),
        (b"content-length", b"999"),
        (b"transfer-encoding", b"chunked"),
        (b"expect", b"100-continue"),
        (b"connection", b"close, x-hop"),
        (b"x-hop", b"1"),
        (b"x-request-id", b"theirs"),
        (b"authorization", b"Bearer k"),
        (b"cookie", b"a"),
        (b"cookie", b"b"),
    ]
    made = request_head("POST", b"/p?q=1", b"w:1", headers, 5, b"ours").split(b"\r\n")
    assert made == [
        b"POST /p?q=1 HTTP/1.1",
        b"host: w:1",
        b"authorization: Bearer k",
        b"cookie: a",
        b"cookie: b",
        b"content-length: 5",
        b"x-request-id: ours",
        b"",
        b"",
    ]
    assert b"content-length" not in request_head("GET", b"/", b"w", [], 0, b"i")
    assert b"content-length: 0\r\n" in request_head("POST", b"/", b"w", [], 0, b"i")
