"""Metrics: counters, gauges and histograms in a registry of our own, rendered as Prometheus text.

Must stay true: the number of series is bounded by what is written here, never by what clients send. A label either
lists its values or has a limit; whatever does not fit counts as `other`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import prometheus_client

from headrace.runtime.text import one_line

PREFIX = "headrace_"
OTHER = "other"
MAX_LABEL_CHARS = 64
DEFAULT_LABEL_LIMIT = 100

LATENCY_BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_NAME = re.compile(r"[a-z][a-z0-9_]*[a-z0-9]")


class CounterSeries(Protocol):
    """A number that only grows."""

    def inc(self, amount: float = 1) -> None: ...


class GaugeSeries(Protocol):
    """A number that goes up and down."""

    def set(self, value: float) -> None: ...
    def inc(self, amount: float = 1) -> None: ...
    def dec(self, amount: float = 1) -> None: ...


class HistogramSeries(Protocol):
    """A distribution."""

    def observe(self, amount: float) -> None: ...


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


class Counters:
    """A family of counters, one per combination of label values."""

    def __init__(self, family: prometheus_client.Counter, labels: Sequence[Label]) -> None:
        self._family = family
        self._labels = labels

    def of(self, *values: str) -> CounterSeries:
        """Return the counter for these label values, in the order of declaration."""
        return self._family.labels(*_bound(self._labels, values)) if self._labels else self._family


class Gauges:
    """A family of gauges, one per combination of label values."""

    def __init__(self, family: prometheus_client.Gauge, labels: Sequence[Label]) -> None:
        self._family = family
        self._labels = labels

    def of(self, *values: str) -> GaugeSeries:
        """Return the gauge for these label values, in the order of declaration."""
        return self._family.labels(*_bound(self._labels, values)) if self._labels else self._family


class Histograms:
    """A family of histograms, one per combination of label values."""

    def __init__(self, family: prometheus_client.Histogram, labels: Sequence[Label]) -> None:
        self._family = family
        self._labels = labels

    def of(self, *values: str) -> HistogramSeries:
        """Return the histogram for these label values, in the order of declaration."""
        return self._family.labels(*_bound(self._labels, values)) if self._labels else self._family


class Metrics:
    """All metrics of one process. Names are given without the prefix `headrace_`, with the unit at the end."""

    def __init__(self) -> None:
        self._registry = prometheus_client.CollectorRegistry()

    def counters(self, name: str, sentence: str, *labels: Label) -> Counters:
        """Declare a family of counters; `_total` is added to its name."""
        family = prometheus_client.Counter(_full(name), sentence, _names(labels), registry=self._registry)
        return Counters(family, labels)

    def gauges(self, name: str, sentence: str, *labels: Label) -> Gauges:
        """Declare a family of gauges."""
        return Gauges(prometheus_client.Gauge(_full(name), sentence, _names(labels), registry=self._registry), labels)

    def histograms(
        self, name: str, sentence: str, *labels: Label, buckets: Sequence[float] = LATENCY_BUCKETS_SECONDS
    ) -> Histograms:
        """Declare a family of histograms."""
        family = prometheus_client.Histogram(
            _full(name), sentence, _names(labels), registry=self._registry, buckets=buckets
        )
        return Histograms(family, labels)

    def render(self) -> bytes:
        """Return all series in Prometheus' text format."""
        # Every counter also has a `_created` series that carries the wall clock and that nobody here reads.
        lines = prometheus_client.generate_latest(self._registry).splitlines(keepends=True)
        return b"".join(line for line in lines if not _CREATED.match(line))


_CREATED = re.compile(rb"(?:# (?:HELP|TYPE) )?headrace_[a-z0-9_]+_created[ {]")


def _full(name: str) -> str:
    assert _NAME.fullmatch(name) and not name.startswith(PREFIX) and not name.endswith(("_total", "_created")), name
    return PREFIX + name


def _names(labels: Sequence[Label]) -> list[str]:
    return [label.name for label in labels]


def _bound(labels: Sequence[Label], values: Sequence[str]) -> list[str]:
    return [label.bound(value) for label, value in zip(labels, values, strict=True)]
