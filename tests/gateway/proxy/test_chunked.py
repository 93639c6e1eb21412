"""Chunked bodies: every split decodes alike, and nothing ambiguous is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.proxy.chunked import ChunkedDecoder, chunk_size, is_whole_chunk, payload_of
from gateway.proxy.http1 import ProtocolFault

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


@relaxed
@given(payloads, extensions, st.lists(st.integers(0, 10_000), max_size=12))
def test_what_is_taken_for_a_whole_chunk_is_one(chunks: list[bytes], extension: bytes, cuts: list[int]) -> None:
    """With the quick look before each step, as a connection does it, the same comes out as without."""
    decoder, found = ChunkedDecoder(), b""
    for piece in split(encode(chunks, extension), cuts):
        if decoder.at_chunk and is_whole_chunk(piece):
            assert ChunkedDecoder().feed(piece) == (payload_of(piece), piece)
            found += payload_of(piece)
        else:
            found += decoder.feed(piece)[0]
    assert decoder.done
    assert found == b"".join(chunks)


def test_a_chunk_of_a_size_seen_before_is_known() -> None:
    chunk = b"d\r\ndata: hello\n\n\r\n"
    ChunkedDecoder().feed(chunk)
    assert is_whole_chunk(chunk)
    for other in (
        b"",
        b"d",
        b"d\r\n",
        chunk[:-1],
        chunk + b"0\r\n\r\n",
        chunk + chunk,
        chunk[:-2] + b"xx",
        b"D;" + chunk,
    ):
        assert not is_whole_chunk(other)
    ChunkedDecoder().feed(b"0\r\n\r\n")
    assert not is_whole_chunk(b"0\r\n\r\n")
