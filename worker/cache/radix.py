"""Prefix cache as a radix tree over whole pages of token ids.

A node holds a run of pages and the tokens in them; children are found by the bytes of their first page, so a lookup
costs one dictionary access and one memory comparison per node, whatever the size of the cache.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import msgspec
import numpy as np

from worker.cache.eviction import EVICTION_ORDERS, EvictionPolicyName
from worker.cache.prefix import NO_PAGES, CacheNode, PageIds, PrefixInsert, PrefixLookup, PrefixMatch
from worker.token_ids import TOKEN_BYTES

# A node grows by later pages of its request up to this size: evicting pages from its end copies what stays.
_MAX_GROWN_BYTES = 1 << 16

# Dictionary key of a child: its first page; below the root also the namespace.
Edge = bytes | tuple[str | None, bytes]


class RadixNode:
    """A run of pages. `lock_ref` counts the locks at or below it; `queued`: it has an entry in the eviction heap;
    `alive`: it is still in the tree. Implements Usage."""

    __slots__ = (
        "alive",
        "children",
        "edge",
        "hits",
        "key",
        "last_use",
        "lock_ref",
        "pages",
        "parent",
        "priority",
        "queued",
        "uid",
    )

    def __init__(self, uid: int, edge: Edge, key: bytes, pages: PageIds, parent: RadixNode | None) -> None:
        self.uid = uid
        self.edge = edge
        self.key = key
        self.pages = pages
        self.parent = parent
        self.children: dict[Edge, RadixNode] = {}
        self.lock_ref = 0
        self.last_use = 0
        self.hits = 0
        self.priority = 0
        self.queued = False
        self.alive = True


class _Lookup(msgspec.Struct, frozen=True, eq=False):
    """Implements PrefixLookup. `node` is the last node covered whole, `inside` the one after it covered in part. True
    as long as these two are what they were: an ancestor may be split, but neither shrinks nor goes."""

    tokens: int
    node: RadixNode
    node_bytes: int
    next_edge: Edge | None
    inside: RadixNode | None
    inside_bytes: int

    def still_true(self) -> bool:
        node, inside = self.node, self.inside
        if not node.alive or len(node.key) != self.node_bytes:
            return False
        if self.next_edge is not None and node.children.get(self.next_edge) is not inside:
            return False
        return inside is None or len(inside.key) == self.inside_bytes


class RadixCache:
    """Implements PrefixCache. Leaves go first by `eviction_policy`; `last_use` counts accesses, not seconds, so that
    replicas of the tree on several ranks stay equal."""

    enabled = True

    def __init__(self, page_size: int, eviction_policy: EvictionPolicyName = "lru") -> None:
        self.page_size = page_size
        self._page_bytes = page_size * TOKEN_BYTES
        self._eviction_order = EVICTION_ORDERS[eviction_policy]
        self._uses = 0
        self._next_uid = 0
        self._clear()

    def _clear(self) -> None:
        self._root = self._new_node(b"", b"", NO_PAGES, None)
        self._evictable_pages = 0
        self._protected_pages = 0
        # Entries (eviction order when queued, uid, node), at most one per node. An entry may be out of date: `evict`
        # drops it if the node is no unlocked leaf any more, and requeues it if the node was used since.
        self._heap: list[tuple[tuple[int, int], int, RadixNode]] = []

    def root_children(self) -> Iterable[tuple[tuple[str | None, bytes], RadixNode]]:
        """Where prefixes begin: (namespace, first page) and node."""
        return cast(Iterable[tuple[tuple[str | None, bytes], RadixNode]], self._root.children.items())

    @property
    def evictable_tokens(self) -> int:
        return self._evictable_pages * self.page_size

    @property
    def protected_tokens(self) -> int:
        return self._protected_pages * self.page_size

    def lookup(self, key: bytes, namespace: str | None, last: PrefixLookup | None = None) -> PrefixLookup:
        if isinstance(last, _Lookup) and last.still_true():
            return last
        path, offset, inside = self._walk(self._root, key, 0, namespace)
        node = path[-1] if path else self._root
        edge: Edge | None = None
        if offset + self._page_bytes <= len(key):
            first_page = key[offset : offset + self._page_bytes]
            edge = first_page if path else (namespace, first_page)
        tokens = offset // TOKEN_BYTES
        if inside is None:
            return _Lookup(tokens, node, len(node.key), edge, None, 0)
        shared = self._shared_pages(inside.key, key, offset)
        return _Lookup(tokens + shared * self.page_size, node, len(node.key), edge, inside, len(inside.key))

    def path(self, lookup: PrefixLookup) -> Sequence[CacheNode]:
        found = cast(_Lookup, lookup)
        return [*_to_root(found.inside or found.node)][::-1]

    def match(self, key: bytes, namespace: str | None) -> PrefixMatch:
        path = self._use_path(self._root, key, 0, namespace)
        return PrefixMatch(_pages_of(path), path[-1] if path else self._root)

    def insert(
        self,
        key: bytes,
        pages: PageIds,
        namespace: str | None,
        priority: int = 0,
        known: tuple[CacheNode, int] | None = None,
    ) -> PrefixInsert:
        assert len(key) == len(pages) * self._page_bytes, "a key must have one whole page of tokens per page id"
        above, num_known = cast(tuple[RadixNode, int], known) if known is not None else (self._root, 0)
        path = self._use_path(above, key, num_known * self._page_bytes, namespace)
        cached = _pages_of(path)
        node = path[-1] if path else above
        self._mark_used(node, priority)
        held = num_known + len(cached)
        if held < len(pages):
            rest = key[held * self._page_bytes :]
            if not path and self._may_grow(node, len(rest), priority):
                self._grow(node, rest, pages[held:])
            else:
                node = self._add_leaf(node, rest, pages[held:].copy(), namespace, priority)
        return PrefixInsert(cached, len(pages), node)

    def count_hit(self, node: CacheNode) -> None:
        for step in _to_root(cast(RadixNode, node)):
            step.hits += 1

    def lock(self, node: CacheNode) -> None:
        step = cast(RadixNode, node)
        while step.parent is not None:
            if step.lock_ref == 0:
                self._evictable_pages -= len(step.pages)
                self._protected_pages += len(step.pages)
            step.lock_ref += 1
            step = step.parent

    def unlock(self, node: CacheNode) -> None:
        step = cast(RadixNode, node)
        while step.parent is not None:
            assert step.lock_ref > 0, "unlocked more often than locked"
            step.lock_ref -= 1
            if step.lock_ref == 0:
                self._protected_pages -= len(step.pages)
                self._evictable_pages += len(step.pages)
                self._queue_if_evictable(step)
            step = step.parent

    def evict(self, num_pages: int) -> PageIds:
        freed: list[PageIds] = []
        missing = num_pages
        while missing > 0 and self._heap:
            queued_order, uid, node = self._heap[0]
            if node.lock_ref or node.children:
                heapq.heappop(self._heap)
                node.queued = False
            elif (order := self._eviction_order(node)) > queued_order:
                heapq.heapreplace(self._heap, (order, uid, node))
            else:
                freed.append(self._shrink(node, missing))
                missing -= len(freed[-1])
        return np.concatenate(freed) if freed else NO_PAGES

    def reset(self) -> PageIds:
        assert self._protected_pages == 0, "reset while pages are in use"
        pages = list(self.pages())
        for node in self._nodes():
            node.alive = False
        self._clear()
        return np.concatenate(pages) if pages else NO_PAGES

    def pages(self) -> Iterator[PageIds]:
        return (node.pages for node in self._nodes() if len(node.pages))

    def _nodes(self) -> Iterator[RadixNode]:
        stack = [self._root]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def _walk(
        self, above: RadixNode, key: bytes, offset: int, namespace: str | None
    ) -> tuple[list[RadixNode], int, RadixNode | None]:
        """From `above`, which ends at byte `offset` of `key`: the nodes that `key` covers whole, from the top, where in
        `key` the last of them ends, and the node it covers in part."""
        path: list[RadixNode] = []
        at_root, children = above is self._root, above.children
        page_bytes, end = self._page_bytes, len(key)
        while offset + page_bytes <= end:
            first_page = key[offset : offset + page_bytes]
            child = children.get((namespace, first_page) if at_root else first_page)
            if child is None:
                break
            if not key.startswith(child.key, offset):
                return path, offset, child
            path.append(child)
            offset += len(child.key)
            at_root, children = False, child.children
        return path, offset, None

    def _use_path(self, above: RadixNode, key: bytes, offset: int, namespace: str | None) -> list[RadixNode]:
        """The nodes below `above` of the longest cached prefix, split so that it ends on a node boundary, and marked as
        used."""
        path, offset, inside = self._walk(above, key, offset, namespace)
        if inside is not None:
            path.append(self._split(inside, self._shared_pages(inside.key, key, offset)))
        self._uses += 1
        for node in path:
            node.last_use = self._uses
        return path

    def _mark_used(self, node: RadixNode, priority: int) -> None:
        """Node and ancestors were just used by a request of `priority`."""
        step = node
        while step.parent is not None:
            step.last_use = self._uses
            step.priority = max(step.priority, priority)
            step = step.parent

    def _shared_pages(self, node_key: bytes, key: bytes, offset: int) -> int:
        length = min(len(node_key), len(key) - offset) // TOKEN_BYTES
        ours = np.frombuffer(node_key, np.int32, length)
        theirs = np.frombuffer(key, np.int32, length, offset)
        differs = ours != theirs
        first = int(differs.argmax()) if length else 0
        return (first if length and differs[first] else length) // self.page_size

    def _split(self, lower: RadixNode, num_pages: int) -> RadixNode:
        """Move the first `num_pages` pages of a node into a new parent of it. Locks on the node stay valid."""
        cut = num_pages * self._page_bytes
        parent = cast(RadixNode, lower.parent)
        upper = self._new_node(lower.edge, lower.key[:cut], lower.pages[:num_pages].copy(), parent)
        upper.lock_ref = lower.lock_ref
        upper.last_use, upper.hits, upper.priority = lower.last_use, lower.hits, lower.priority
        parent.children[upper.edge] = upper
        lower.key, lower.pages, lower.parent = lower.key[cut:], lower.pages[num_pages:].copy(), upper
        lower.edge = lower.key[: self._page_bytes]
        upper.children[lower.edge] = lower
        return upper

    def _add_leaf(
        self, parent: RadixNode, key: bytes, pages: PageIds, namespace: str | None, priority: int
    ) -> RadixNode:
        first_page = key[: self._page_bytes]
        edge: Edge = (namespace, first_page) if parent is self._root else first_page
        leaf = self._new_node(edge, key, pages, parent)
        leaf.last_use, leaf.priority = self._uses, priority
        parent.children[edge] = leaf
        self._evictable_pages += len(pages)
        self._queue_if_evictable(leaf)
        return leaf

    def _may_grow(self, node: RadixNode, num_bytes: int, priority: int) -> bool:
        """Whether a locked node may take in later pages: if only the request at hand has ever used it, they are used
        alike."""
        return (
            node.lock_ref == 1
            and not node.children
            and not node.hits
            and node.priority == priority
            and len(node.key) + num_bytes <= _MAX_GROWN_BYTES
        )

    def _grow(self, node: RadixNode, key: bytes, pages: PageIds) -> None:
        node.key += key
        node.pages = np.concatenate((node.pages, pages))
        self._protected_pages += len(pages)

    def _shrink(self, leaf: RadixNode, num_pages: int) -> PageIds:
        """Cut up to `num_pages` pages off the end of an unlocked leaf, at the top of the heap; drop it if none stay."""
        keep = max(len(leaf.pages) - num_pages, 0)
        pages = leaf.pages[keep:]
        self._evictable_pages -= len(pages)
        if keep:
            leaf.pages, leaf.key = leaf.pages[:keep].copy(), leaf.key[: keep * self._page_bytes]
            return pages
        heapq.heappop(self._heap)
        parent = cast(RadixNode, leaf.parent)
        del parent.children[leaf.edge]
        leaf.alive = False
        self._queue_if_evictable(parent)
        return pages

    def _queue_if_evictable(self, node: RadixNode) -> None:
        if node.lock_ref == 0 and not node.children and not node.queued and node is not self._root:
            node.queued = True
            heapq.heappush(self._heap, (self._eviction_order(node), node.uid, node))

    def _new_node(self, edge: Edge, key: bytes, pages: PageIds, parent: RadixNode | None) -> RadixNode:
        self._next_uid += 1
        return RadixNode(self._next_uid, edge, key, pages, parent)


def _pages_of(path: Sequence[RadixNode]) -> PageIds:
    """The pages of some nodes, in order. Arrays of pages are never changed, so one may be handed out as it is."""
    if len(path) == 1:
        return path[0].pages
    return np.concatenate([node.pages for node in path]) if path else NO_PAGES


def _to_root(node: RadixNode) -> Iterator[RadixNode]:
    """The node and its ancestors, without the root (which holds no pages)."""
    step: RadixNode | None = node
    while step is not None and step.parent is not None:
        yield step
        step = step.parent
