"""Which prefixes of a cache are asked for most: what a new replica should compute before it gets traffic."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import islice

from worker.cache.radix import RadixCache, RadixNode
from worker.token_ids import TOKEN_BYTES

_MAX_LOOKS = 20_000  # nodes looked at: some milliseconds between two steps


def hot_prefixes(cache: RadixCache, max_tokens: int) -> list[tuple[bytes, int]]:
    """(token ids as int32 bytes, hits) of the most hit prefixes, the hottest first; together they have at most
    `max_tokens` different tokens.

    From the root down by hits: an ancestor has at least its descendants' hits, so what is taken is a tree of its own,
    and each of its leaves is a prefix. Prefixes that nobody asked for again are not in it, nor are those of a
    namespace: a cache salt is its owner's secret.
    """
    page_bytes = cache.page_size * TOKEN_BYTES
    left_bytes, looks = max_tokens * TOKEN_BYTES // page_bytes * page_bytes, _MAX_LOOKS
    heap: list[tuple[int, int, RadixNode]] = []
    taken: dict[int, tuple[RadixNode, int]] = {}  # by uid: node, and bytes of its key that still fit

    def look_at(nodes: Iterable[RadixNode]) -> None:
        nonlocal looks
        for node in islice(nodes, looks):
            looks -= 1
            if node.hits:
                heapq.heappush(heap, (-node.hits, node.uid, node))

    look_at(node for (namespace, _), node in cache.root_children() if namespace is None)
    while heap and left_bytes:
        node = heapq.heappop(heap)[2]
        fitting = min(len(node.key), left_bytes)
        taken[node.uid] = node, fitting
        left_bytes -= fitting
        look_at(node.children.values())
    inner = {node.parent.uid for node, _ in taken.values() if node.parent is not None}
    return [(_prefix(node, fitting), node.hits) for node, fitting in taken.values() if node.uid not in inner]


def _prefix(node: RadixNode, fitting: int) -> bytes:
    """The ids from the root to the first `fitting` bytes of a node's key."""
    parts = [node.key[:fitting]]
    while node.parent is not None:
        node = node.parent
        parts.append(node.key)
    return b"".join(reversed(parts))
