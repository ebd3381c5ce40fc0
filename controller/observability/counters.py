"""Counters and histograms for events of every request.

They have the interface of prometheus_client's own and are read by its registry, but they count without its locks and label look-ups, which
cost more than everything else that is measured. A gateway counts from one thread.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class Count:
    """One counter: a number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Adds `amount`, which is not negative."""
        self.value += amount


class Counter(Collector):
    """A counter for each combination of labels; a single one without labels."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._counts: dict[tuple[str, ...], Count] = {}
        self._alone = self.labels() if not labels else Count()
        registry.register(self)

    def labels(self, *values: str) -> Count:
        """The counter for these label values, in the order of the labels. Callers keep the counters that they need on every request."""
        count = self._counts.get(values)
        if count is None:
            count = self._counts[values] = Count()
        return count

    def remove(self, *values: str) -> None:
        """Forgets the counter for these label values.

        Raises:
            KeyError: There is none.
        """
        del self._counts[values]

    def inc(self, amount: float = 1.0) -> None:
        """Adds to the one counter of a metric without labels."""
        self._alone.inc(amount)

    def collect(self) -> Iterable[CounterMetricFamily]:
        """See `Collector`."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count.value)
        return (family,)


class Buckets:
    """The values of one histogram, counted per bucket, and their sum. `ends`: upper bounds, ascending."""

    __slots__ = ("_ends", "_found", "_sum")

    def __init__(self, ends: Sequence[float]) -> None:
        self._ends = ends
        self._found = [0] * (len(ends) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value; a bucket includes its upper bound."""
        self._found[bisect_left(self._ends, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Adds the buckets to what is scraped."""
        buckets = [(_shown(end), float(count)) for end, count in zip((*self._ends, inf), accumulate(self._found), strict=True)]
        family.add_metric(labels, buckets=buckets, sum_value=self._sum)


class Histogram(Collector):
    """A histogram for each combination of labels; a single one without labels. `buckets`: upper bounds; one without a bound is added."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str] = (), *, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._ends = tuple(buckets)
        self._by_labels: dict[tuple[str, ...], Buckets] = {}
        self._alone = self.labels() if not labels else Buckets(self._ends)
        registry.register(self)

    def labels(self, *values: str) -> Buckets:
        """The histogram for these label values, in the order of the labels. Callers keep what they need on every request."""
        found = self._by_labels.get(values)
        if found is None:
            found = self._by_labels[values] = Buckets(self._ends)
        return found

    def remove(self, *values: str) -> None:
        """Forgets the histogram for these label values.

        Raises:
            KeyError: There is none.
        """
        del self._by_labels[values]

    def observe(self, value: float) -> None:
        """Counts one value of a metric without labels."""
        self._alone.observe(value)

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """See `Collector`."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for values, found in self._by_labels.items():
            found.add_to(family, values)
        return (family,)


def _shown(end: float) -> str:
    return "+Inf" if end == inf else repr(end)
