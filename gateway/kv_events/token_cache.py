"""Token ids of texts, remembered by their beginnings: of a conversation that goes on only what is new is encoded.

A text may be cut where a special token ends: no merge reaches across it. Whether a tokenizer keeps to that is tried out
for each of them before it is relied on; without any that does, only whole texts are remembered.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import product
from threading import Lock

from xxhash import xxh3_128

Encode = Callable[[str, bool], Sequence[int]]  # (text, whether special tokens are added around it) -> ids

_ENTRY_BYTES = 200  # of memory for one entry beside its ids
_KEPT_CUTS = 4  # beginnings of one text that are remembered: the next turn of a conversation begins with one of them
_BEFORE = ("Hello, world ", "x", "")
_AFTER = (" two  spaces", "\nline", "word", "\u4e16")


class TokenCache:
    """An LRU of at most `max_bytes`. Thread-safe. `specials`: the texts of the tokenizer's special tokens."""

    def __init__(self, encode: Encode, specials: Collection[str], max_bytes: int) -> None:
        self._encode = encode
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()  # digest of a text -> ids as int32 bytes
        self._bytes = 0
        self._lock = Lock()
        longest_first = sorted(filter(None, specials), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._cuts_after = frozenset(special for special in longest_first if self._may_cut_after(special))

    @property
    def bytes_used(self) -> int:
        """Memory taken now."""
        return self._bytes

    @property
    def cuts_texts(self) -> bool:
        """Whether beginnings are remembered, too."""
        return bool(self._cuts_after)

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[bytes, bool]:
        """(ids as int32 bytes, whether all of them were remembered)."""
        cuts = [] if add_special_tokens else list(self._cuts(text))
        if not cuts or cuts[-1] != len(text):
            cuts.append(len(text))
        digests = _digests(text, cuts, b"s" if add_special_tokens else b"p")
        packed, known = self._longest(digests)
        if known == len(cuts):
            return packed, True
        start = cuts[known - 1] if known else 0
        new: list[tuple[bytes, bytes]] = []
        for cut, digest in zip(cuts[known:], digests[known:], strict=True):
            packed += array("i", self._encode(text[start:cut], add_special_tokens)).tobytes()
            new.append((digest, packed))
            start = cut
        self._put(new[-_KEPT_CUTS:])
        return packed, False

    def _cuts(self, text: str) -> Iterator[int]:
        """Where a text may be cut."""
        if self._special is not None and self._cuts_after:
            for match in self._special.finditer(text):
                if match[0] in self._cuts_after:
                    yield match.end()

    def _longest(self, digests: Sequence[bytes]) -> tuple[bytes, int]:
        """(ids, number of pieces) of the longest beginning that is remembered."""
        with self._lock:
            for position in range(len(digests) - 1, -1, -1):
                packed = self._entries.get(digests[position])
                if packed is not None:
                    self._entries.move_to_end(digests[position])
                    return packed, position + 1
        return b"", 0

    def _put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        with self._lock:
            for digest, packed in entries:
                if digest not in self._entries:
                    self._entries[digest] = packed
                    self._bytes += len(packed) + _ENTRY_BYTES
            while self._bytes > self._max_bytes:
                _, packed = self._entries.popitem(last=False)
                self._bytes -= len(packed) + _ENTRY_BYTES

    def _may_cut_after(self, special: str) -> bool:
        """Whether texts that are cut there come out as whole ones do."""
        for before, after in product(_BEFORE, _AFTER):
            pieces = [*self._encode(before + special, False), *self._encode(after, False)]
            if [*self._encode(before + special + after, False)] != pieces:
                return False
        return True


def _digests(text: str, cuts: Sequence[int], kind: bytes) -> list[bytes]:
    """Of the text up to each cut."""
    state, start, digests = xxh3_128(kind), 0, []
    for cut in cuts:
        state.update(text[start:cut].encode("utf-8", "surrogatepass"))
        digests.append(state.digest())
        start = cut
    return digests
