"""Where each request of the input is, in some 70 bytes a line, and the order that keeps shared prefixes together."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_intdigest

from deploy.batch.lines import LineFault, Request, parse
from gateway.routing.extract import BodyFault, extract

PREFIX_BYTES = (64, 256, 1024, 4096)  # of the prompt: requests that agree in the first are neighbours, and so on
LEAD = 16  # requests: some steps ahead; much further, and a full cache has dropped the prefix when the others come
_HALF_BITS = 64
_HALF = (1 << _HALF_BITS) - 1

OnFault = Callable[[int, str | None, str], None]
"""Hears of each bad line: number from 1, custom_id if it has one, sentence."""


@dataclass(frozen=True, slots=True)
class Contents:
    """All requests of one input file, as arrays over its good lines in the file's order.

    `id_halves`: uint64, shape (2, requests), the digest of each custom_id; `by_id`: indices sorted by it; `order`:
    indices in the order of sending, without those of repeated custom_ids.
    """

    path: Path
    digest: str  # of the whole file
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]
    id_halves: npt.NDArray[np.uint64]
    by_id: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]

    def index_of(self, custom_id: str) -> int | None:
        """Which request has this custom_id."""
        high, low = _id_halves(custom_id)
        highs = self.id_halves[0]
        place = int(np.searchsorted(highs, np.uint64(high), sorter=self.by_id))
        while place < len(self.by_id):
            index = int(self.by_id[place])
            if int(highs[index]) != high:
                return None
            if int(self.id_halves[1][index]) == low:
                return index
            place += 1
        return None

    def requests(self, skip: bytearray) -> Iterator[tuple[int, Request]]:
        """Those that are not marked in `skip`, in the order of sending, read from the file one by one."""
        with self.path.open("rb") as file:
            for index in self.order:
                if skip[index]:
                    continue
                yield int(index), _read(file.fileno(), int(self.offsets[index]), int(self.lengths[index]))


class _Columns:
    """What grows while the file is read."""

    def __init__(self) -> None:
        self.numbers, self.offsets, self.lengths = array("Q"), array("Q"), array("Q")
        self.ids = (array("Q"), array("Q"))
        self.prefixes = tuple(array("Q") for _ in PREFIX_BYTES)

    def add(self, number: int, offset: int, length: int, request: Request) -> None:
        """One good line."""
        self.numbers.append(number)
        self.offsets.append(offset)
        self.lengths.append(length)
        for half, column in zip(_id_halves(request.custom_id), self.ids, strict=True):
            column.append(half)
        for key, column in zip(_prefix_keys(request), self.prefixes, strict=True):
            column.append(key)


def read_contents(path: Path, on_fault: OnFault) -> Contents:
    """One pass over the file. The second and later lines with one custom_id are faults too."""
    whole, columns, offset = xxh3_128(), _Columns(), 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            whole.update(line)
            begin, offset = offset, offset + len(line)
            if not line.strip():
                continue
            try:
                columns.add(number, begin, len(line), parse(line))
            except LineFault as fault:
                on_fault(number, fault.custom_id, str(fault))
    return _arranged(path, whole.hexdigest(), columns, on_fault)


def _arranged(path: Path, digest: str, columns: _Columns, on_fault: OnFault) -> Contents:
    halves = np.array([np.array(half, dtype=np.uint64) for half in columns.ids])
    offsets, lengths = (np.array(column, dtype=np.uint64) for column in (columns.offsets, columns.lengths))
    by_id = np.lexsort((halves[1], halves[0]))  # stable: of one custom_id the first line comes first
    repeated = by_id[1:][np.all(halves[:, by_id[1:]] == halves[:, by_id[:-1]], axis=0)] if len(by_id) else by_id
    with path.open("rb") as file:
        for index in np.sort(repeated):
            request = _read(file.fileno(), int(offsets[index]), int(lengths[index]))
            on_fault(columns.numbers[index], request.custom_id, "its custom_id was used by an earlier line")
    order = order_by_prefix(np.array([np.array(key, dtype=np.uint64) for key in columns.prefixes]))
    return Contents(
        path=path,
        digest=digest,
        offsets=offsets,
        lengths=lengths,
        id_halves=halves,
        by_id=by_id,
        order=order[~np.isin(order, repeated)],
    )


def order_by_prefix(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Indices in the order of sending. `keys`: uint64, shape (levels, requests), equal where prompts begin alike, for
    longer and longer beginnings.

    Neighbours share their beginnings. The first of each group goes LEAD requests ahead of the others for each level
    that is new with it: they find its prefix computed, where a burst of equals would compute it many times over, and
    while it still runs, so that they share its pages instead of taking their own.
    """
    order = np.lexsort(tuple(reversed(keys)))
    if not len(order):
        return order
    alike = keys[:, order]
    is_new = np.logical_or.accumulate(alike[:, 1:] != alike[:, :-1], axis=0)
    new_levels = np.concatenate(([len(keys)], is_new.sum(axis=0)))
    return order[np.argsort(np.arange(len(order)) - LEAD * new_levels, kind="stable")]


def _read(fd: int, offset: int, length: int) -> Request:
    """Where a good line was when the file was first read. Raises LineFault if the file has changed since."""
    return parse(os.pread(fd, length, offset))


def _id_halves(custom_id: str) -> tuple[int, int]:
    digest = xxh3_128_intdigest(custom_id.encode())
    return digest >> _HALF_BITS, digest & _HALF


def _prefix_keys(request: Request) -> list[int]:
    try:
        routed = extract(request.body)
    except BodyFault:
        return [0] * len(PREFIX_BYTES)
    head = f"{request.url} {routed.model} ".encode()
    return [xxh3_64_intdigest(head + routed.text[:size]) for size in PREFIX_BYTES]
