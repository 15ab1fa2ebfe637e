"""Metrics: counters, gauges and histograms in a registry of our own, rendered as Prometheus text.

Series are plain numbers that the event loop's thread changes, because every request changes some; the library's own,
with a lock around each, took a twentieth of a busy broker's time. Any thread may render them.

Must stay true: the number of series is bounded by what is written here, never by what clients send. A label either
lists its values or has a limit; whatever does not fit counts as `other`.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Generic, TypeVar

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from headrace.runtime.text import one_line

PREFIX = "headrace_"
OTHER = "other"
MAX_LABEL_CHARS = 64
DEFAULT_LABEL_LIMIT = 100

LATENCY_BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_NAME = re.compile(r"[a-z][a-z0-9_]*[a-z0-9]")


class CounterSeries:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        self.value += amount


class GaugeSeries:
    """A number that goes up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def dec(self, amount: float = 1) -> None:
        self.value -= amount


class HistogramSeries:
    """A distribution: how many observations fell below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, amount: float) -> None:
        self.counts[bisect_left(self.bounds, amount)] += 1
        self.sum += amount


@dataclass(slots=True)
class Label:
    """A label with a bounded set of values: those of `values`, or the first `limit` that turn up."""

    name: str
    values: frozenset[str] | None = None
    limit: int = DEFAULT_LABEL_LIMIT
    _seen: set[str] = field(default_factory=set)

    def bound(self, value: str) -> str:
        """Return the value to record for `value`: itself, shortened to one line, or `other`."""
        value = one_line(value, max_chars=MAX_LABEL_CHARS)
        if self.values is not None:
            return value if value in self.values else OTHER
        if value not in self._seen:
            if len(self._seen) >= self.limit:
                return OTHER
            self._seen.add(value)
        return value


def one_of(name: str, values: Iterable[str]) -> Label:
    """Return a label whose values are known beforehand."""
    return Label(name, frozenset(values))


Series = TypeVar("Series")


class Family(Generic[Series]):
    """All series of one name, one per combination of label values."""

    def __init__(self, name: str, sentence: str, labels: Sequence[Label], make: Callable[[], Series]) -> None:
        self.name = name
        self.sentence = sentence
        self.labels = labels
        self._make = make
        self._series: dict[tuple[str, ...], Series] = {}

    def of(self, *values: str) -> Series:
        """Return the series for these label values, in the order of declaration."""
        bound = tuple(label.bound(value) for label, value in zip(self.labels, values, strict=True))
        found = self._series.get(bound)
        if found is None:
            found = self._series[bound] = self._make()
        return found

    def all(self) -> list[tuple[tuple[str, ...], Series]]:
        """Return all series there are, by their label values."""
        return list(self._series.items())


Counters = Family[CounterSeries]
Gauges = Family[GaugeSeries]
Histograms = Family[HistogramSeries]


class Metrics:
    """All metrics of one process. Names are given without the prefix `headrace_`, with the unit at the end."""

    def __init__(self) -> None:
        self._counters: dict[str, Counters] = {}
        self._gauges: dict[str, Gauges] = {}
        self._histograms: dict[str, Histograms] = {}
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(_Collector(self._collect))

    def counters(self, name: str, sentence: str, *labels: Label) -> Counters:
        """Declare a family of counters; `_total` is added to its name."""
        return self._declared(self._counters, Counters(_full(name), sentence, labels, CounterSeries))

    def gauges(self, name: str, sentence: str, *labels: Label) -> Gauges:
        """Declare a family of gauges."""
        return self._declared(self._gauges, Gauges(_full(name), sentence, labels, GaugeSeries))

    def histograms(
        self, name: str, sentence: str, *labels: Label, buckets: Sequence[float] = LATENCY_BUCKETS_SECONDS
    ) -> Histograms:
        """Declare a family of histograms."""
        family = Histograms(_full(name), sentence, labels, lambda: HistogramSeries(buckets))
        return self._declared(self._histograms, family)

    def render(self) -> bytes:
        """Return all series in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)

    def _declared(self, families: dict[str, Family[Series]], family: Family[Series]) -> Family[Series]:
        known = (self._counters, self._gauges, self._histograms)
        if any(family.name in declared for declared in known):
            raise ValueError(f"the metric {family.name} was declared twice")
        if not family.labels:
            family.of()  # one that has no labels is there from the beginning, at zero
        families[family.name] = family
        return family

    def _collect(self) -> Iterator[Metric]:
        for counters in list(self._counters.values()):
            counter = CounterMetricFamily(counters.name, counters.sentence, labels=_names(counters.labels))
            for values, series in counters.all():
                counter.add_metric(values, series.value)
            yield counter
        for gauges in list(self._gauges.values()):
            gauge = GaugeMetricFamily(gauges.name, gauges.sentence, labels=_names(gauges.labels))
            for values, level in gauges.all():
                gauge.add_metric(values, level.value)
            yield gauge
        for histograms in list(self._histograms.values()):
            histogram = HistogramMetricFamily(histograms.name, histograms.sentence, labels=_names(histograms.labels))
            for values, distribution in histograms.all():
                bounds = [*map(str, distribution.bounds), "+Inf"]
                counts = list(distribution.counts)
                buckets = list(zip(bounds, accumulate(counts), strict=True))
                histogram.add_metric(values, buckets=buckets, sum_value=distribution.sum)
            yield histogram


class _Collector(prometheus_client.registry.Collector):
    """What the library asks for at each rendering."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        return self._collect()


def _full(name: str) -> str:
    assert _NAME.fullmatch(name) and not name.startswith(PREFIX) and not name.endswith(("_total", "_created")), name
    return PREFIX + name


def _names(labels: Sequence[Label]) -> list[str]:
    return [label.name for label in labels]
