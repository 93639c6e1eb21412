"""Token ids to text as they come, never half a character.

Why not tokenizers' own DecodeStream: it cannot be flushed, holds a whole token back for one unfinished character, and
holds an unbounded run when bytes are invalid. A byte table is exact however the ids are cut, and cheaper.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence

from tokenizers import Tokenizer as Backend

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenTable(dict[int, bytes]):
    """id -> the UTF-8 bytes it adds to a text, filled on demand. Special tokens add nothing if `skip_special`."""

    def __init__(self, backend: Backend, *, skip_special: bool) -> None:
        super().__init__()
        added = backend.get_added_tokens_decoder()
        for token_id, token in added.items():
            self[token_id] = b"" if skip_special and token.special else token.content.encode()
        self._render = _renderer(backend)

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = piece = self._render(token_id)
        return piece


class Detokenizer:
    """The text of one sequence. Bytes that end in the middle of a character wait; invalid bytes become U+FFFD."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that `token_ids` complete. A character that the answer never finishes is never seen."""
        table = self._table
        return self._decode(b"".join([table[token_id] for token_id in token_ids]))


def _renderer(backend: Backend) -> Callable[[int], bytes]:
    """How a token that is not an added one becomes bytes, by the tokenizer's decoder."""
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    if decoder.get("type") == "ByteLevel":
        return _ByteLevel(backend)
    return _InContext(backend, byte_fallback="ByteFallback" in json.dumps(decoder))


class _ByteLevel:
    """GPT-2's scheme, used by Llama 3, Qwen and most others: each character of a token stands for one byte."""

    def __init__(self, backend: Backend) -> None:
        self._token = backend.id_to_token

    def __call__(self, token_id: int) -> bytes:
        token = self._token(token_id)
        if token is None:  # padding of the vocabulary: no text
            return b""
        try:
            return bytes([_BYTES[character] for character in token])
        except KeyError:  # not in the alphabet: stands for itself
            return token.encode()


class _InContext:
    """SentencePiece's schemes: a token's text is what it adds behind another token; `<0xE4>` stands for a byte."""

    def __init__(self, backend: Backend, *, byte_fallback: bool) -> None:
        self._backend = backend
        self._byte_fallback = byte_fallback
        self._context = backend.encode("a", add_special_tokens=False).ids[-1:]
        self._skip = len(backend.decode(self._context))

    def __call__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        return self._backend.decode([*self._context, token_id])[self._skip :].encode()


def _byte_alphabet() -> dict[str, int]:
    """Printable Latin-1 characters stand for their own byte; the other bytes, in order, got code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()
