"""Counting for Prometheus at the least cost: plain numbers where requests run, families when somebody asks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


class Histogram:
    """Observations of one label set. `bounds`: upper bounds of the buckets, rising, in the metric's unit."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(map(float, bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Enter one value, `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def observe_all(self, values: Sequence[float]) -> None:
        """Enter many values: a third of the price of one by one."""
        for index, count in Counter(map(partial(bisect_left, self._bounds), values)).items():
            self._counts[index] += count
        self._sum += sum(values)

    @property
    def counts(self) -> list[int]:
        """Observations by bucket, the last above all bounds."""
        return list(self._counts)

    @property
    def total(self) -> float:
        """The sum of all observations."""
        return self._sum

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Write cumulative buckets."""
        add_histogram(family, labels, self._bounds, self._counts, self._sum)


def add_histogram(
    family: HistogramMetricFamily, labels: Sequence[str], bounds: Sequence[float], counts: Iterable[int], total: float
) -> None:
    """Write a histogram that was counted elsewhere; `counts` has one more than `bounds`."""
    buckets, below = [], 0
    for bound, count in zip((*map(str, map(float, bounds)), "+Inf"), counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    family.add_metric(labels, buckets, total)


def gauge(
    name: str, text: str, values: Mapping[str, float] | float, label: str = "", common: Mapping[str, str] | None = None
) -> GaugeMetricFamily:
    """A gauge: one value, or one for each value of `label`; `common` labels go on all of them."""
    fixed = common or {}
    family = GaugeMetricFamily(name, text, labels=[*fixed, label] if label else [*fixed])
    _fill(family, values, fixed)
    return family


def counter(
    name: str, text: str, values: Mapping[str, float] | float, label: str = "", common: Mapping[str, str] | None = None
) -> CounterMetricFamily:
    """The same of a counter; `name` without `_total`."""
    fixed = common or {}
    family = CounterMetricFamily(name, text, labels=[*fixed, label] if label else [*fixed])
    _fill(family, values, fixed)
    return family


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float] | float, fixed: Mapping[str, str]
) -> None:
    if isinstance(values, Mapping):
        for label, value in values.items():
            family.add_metric([*fixed.values(), label], value)
    else:
        family.add_metric([*fixed.values()], values)
