"""A prefix cache as a plain dictionary: slow, obvious, and the oracle for the radix tree."""

from __future__ import annotations

from dataclasses import dataclass

Prefix = tuple[str | None, tuple[int, ...]]  # namespace, token ids (whole pages)


@dataclass
class NaivePage:
    """One cached page: the KV of the last page of its prefix."""

    page: int
    last_use: int
    locks: int = 0


class NaivePrefixCache:
    """Every whole-page prefix is an entry of its own."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.entries: dict[Prefix, NaivePage] = {}
        self._uses = 0

    def prefixes(self, tokens: tuple[int, ...], namespace: str | None) -> list[Prefix]:
        """All whole-page prefixes, shortest first."""
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return [(namespace, tokens[:end]) for end in ends]

    def cached(self, tokens: tuple[int, ...], namespace: str | None) -> list[NaivePage]:
        """Entries of the longest cached prefix."""
        found: list[NaivePage] = []
        for prefix in self.prefixes(tokens, namespace):
            if prefix not in self.entries:
                break
            found.append(self.entries[prefix])
        return found

    def use(self, tokens: tuple[int, ...], namespace: str | None) -> list[int]:
        """Pages of the longest cached prefix, marked as used."""
        self._uses += 1
        found = self.cached(tokens, namespace)
        for entry in found:
            entry.last_use = self._uses
        return [entry.page for entry in found]

    def insert(self, tokens: tuple[int, ...], pages: list[int], namespace: str | None) -> int:
        """Returns how many pages were there already."""
        known = len(self.use(tokens, namespace))
        for prefix, page in list(zip(self.prefixes(tokens, namespace), pages, strict=True))[known:]:
            self.entries[prefix] = NaivePage(page, self._uses)
        return known

    def lock(self, tokens: tuple[int, ...], namespace: str | None, delta: int) -> None:
        for prefix in self.prefixes(tokens, namespace):
            self.entries[prefix].locks += delta

    def leaves(self) -> list[Prefix]:
        """Unlocked entries that no longer entry extends: what may be evicted next."""
        parents = {(namespace, tokens[: -self.page_size]) for namespace, tokens in self.entries}
        return [prefix for prefix, entry in self.entries.items() if prefix not in parents and not entry.locks]

    def evict(self, page: int) -> None:
        """Check that `page` may go now: unlocked, not extended, and none of its kind used longer ago."""
        prefix = next(prefix for prefix, entry in self.entries.items() if entry.page == page)
        leaves = self.leaves()
        assert prefix in leaves, f"evicted {prefix}, which is locked or extended"
        oldest = min(self.entries[leaf].last_use for leaf in leaves)
        assert self.entries[prefix].last_use == oldest, f"evicted {prefix}, though another was used longer ago"
        del self.entries[prefix]

    def count(self, *, locked: bool) -> int:
        """Tokens that are locked, or not."""
        return sum(self.page_size for entry in self.entries.values() if bool(entry.locks) is locked)
