"""HTTP/1.1 heads as bytes: nothing ambiguous is accepted, and what was learned of one head holds for the next."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.proxy import http1
from gateway.proxy.http1 import Framing, ProtocolFault, ResponseHead, forwarded_lines, parse_head, request_head

relaxed = settings(deadline=None)


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
    made = request_head("POST", b"/p?q=1", b"w:1", forwarded_lines(headers), 5, b"ours").split(b"\r\n")
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
    assert b"content-length" not in request_head("GET", b"/", b"w", b"", 0, b"i")
    assert b"content-length: 0\r\n" in request_head("POST", b"/", b"w", b"", 0, b"i")


@relaxed
@given(
    st.lists(
        st.sampled_from(
            [
                "content-length: 7",
                "Content-Length: 7",
                "content-length:7",
                "content-length: 0",
                "x-a: content-length: 9",
            ]
        ),
        max_size=2,
    ),
    st.lists(st.sampled_from(["7", "0", "12345", "-1", "", "1" * 30, "7 "]), min_size=1, max_size=4),
    st.sampled_from(["HTTP/1.1 200 OK", "HTTP/1.1 304 Not Modified"]),
    st.sampled_from(["GET", "HEAD"]),
)
def test_heads_that_differ_in_their_length_alone(
    others: list[str], lengths: list[str], status: str, method: str
) -> None:
    """What was parsed before must not change what comes out."""

    def parsed(raw: bytes) -> ResponseHead | None:
        try:
            return parse_head(raw, method)
        except ProtocolFault:
            return None

    raws = [head("date: x", f"content-length: {length}", *others, status=status) for length in lengths]
    alone = []
    for raw in raws:
        http1._PARSED.clear()
        alone.append(parsed(raw))
    http1._PARSED.clear()
    assert [parsed(raw) for raw in raws] == alone


def test_rendered_fields() -> None:
    parsed = parse_head(head("Date: x", "X-Request-Id: theirs", "content-length: 5", "content-type: a/b"), "POST")
    assert parsed.lines == b"date: x\r\ncontent-type: a/b\r\n"
    assert (parsed.length, parsed.length_bytes, parsed.event_stream) == (b"5", 5, False)
    assert (b"content-length", b"5") in parsed.headers


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["content-type: text/event-stream; charset=utf-8"], True),
        (["content-type: text/event-stream", "content-encoding: gzip"], False),
        (["content-type: text/event-stream", "content-length: 3"], False),
        (["content-type: application/json"], False),
        ([], False),
    ],
)
def test_event_streams(lines: list[str], expected: bool) -> None:
    assert parse_head(head(*lines), "POST").event_stream is expected
