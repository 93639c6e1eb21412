"""dfs-weight: along the prefix tree, branches that more requests wait for first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from worker.cache.prefix import CacheNode, PrefixCache
from worker.scheduler.constants import MATCHED_MAX_WAITING
from worker.scheduler.policies.base import split_overdue
from worker.scheduler.queue import Lane
from worker.scheduler.request import Request


@dataclass(slots=True)
class _Branch:
    """A node of the prefix tree with the requests whose cached prefix ends in it; `weight` counts those below too."""

    weight: int = 0
    children: dict[CacheNode, _Branch] = field(default_factory=dict)
    requests: list[tuple[int, Request]] = field(default_factory=list)  # cached tokens, request


class DepthFirstByWeight:
    """Depth-first through the tree of cached prefixes, heavier branches first, a node's own requests after its
    branches: requests that share much run together, before their prefix can be evicted.

    With more than MATCHED_MAX_WAITING waiting it is lane order.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache

    def order(self, lane: Lane) -> Iterable[Request]:
        if len(lane) > MATCHED_MAX_WAITING:
            return lane
        overdue, others = split_overdue(lane)
        root = _Branch()
        for request in others:
            request.lookup = found = self._cache.lookup(request.fill_key, request.namespace, request.lookup)
            _plant(root, self._cache.path(found), found.tokens, request)
        return [*overdue, *_depth_first(root)]


def _plant(root: _Branch, path: Iterable[CacheNode], tokens: int, request: Request) -> None:
    branch = root
    branch.weight += 1
    for node in path:
        branch = branch.children.setdefault(node, _Branch())
        branch.weight += 1
    branch.requests.append((tokens, request))


def _depth_first(root: _Branch) -> Iterator[Request]:
    """Post-order, without recursion: a tree may be deeper than Python's stack."""
    stack: list[tuple[_Branch, bool]] = [(root, False)]
    while stack:
        branch, branches_done = stack.pop()
        if branches_done or not branch.children:
            # A cached prefix that ends further inside the node is deeper; lane order among equals.
            for _, request in sorted(branch.requests, key=lambda pair: -pair[0]):
                yield request
            continue
        stack.append((branch, True))
        heaviest_first = sorted(branch.children.values(), key=lambda child: -child.weight)
        stack.extend((child, False) for child in reversed(heaviest_first))
