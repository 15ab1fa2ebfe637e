"""Counting and timing calls to a store: how many, how they ended, how long they took.

One histogram per operation and outcome tells all three: its count is the number of calls. Two metrics would say the
same and cost twice.

Must stay true: outcomes are named for the remedy, as errors are, so that a dashboard tells what may pass from what
will not.
"""

from collections.abc import Awaitable, Iterable
from typing import TypeVar

from headrace.errors import (
    Corrupt,
    Exists,
    Fenced,
    HeadraceError,
    Invalid,
    Missing,
    OutcomeUnknown,
    Retryable,
    Throttled,
    Unsupported,
    Unusable,
)
from headrace.runtime.clock import Clock
from headrace.runtime.metrics import CounterSeries, Metrics, one_of

T = TypeVar("T")

OK = "ok"
CANCELLED = "cancelled"
FAILED = "failed"
"""An error that is none of ours: a mistake in the code."""

_BY_REMEDY: dict[type[HeadraceError], str] = {
    Throttled: "throttled",  # before its parent: the first that fits counts
    Retryable: "retryable",
    OutcomeUnknown: "unknown",
    Fenced: "fenced",
    Invalid: "invalid",
    Missing: "missing",
    Exists: "exists",
    Corrupt: "corrupt",
    Unsupported: "unsupported",
    Unusable: "unusable",
}
OUTCOMES = (OK, *_BY_REMEDY.values(), CANCELLED, FAILED)


def outcome_of(error: BaseException) -> str:
    """Return how a call ended that raised this."""
    if not isinstance(error, Exception):
        return CANCELLED
    return next((outcome for kind, outcome in _BY_REMEDY.items() if isinstance(error, kind)), FAILED)


class CallMeter:
    """Meters the calls of one store. `operation` is asked once per kind of call, not per call."""

    def __init__(self, metrics: Metrics, clock: Clock, *, store: str, operations: Iterable[str]) -> None:
        operations = tuple(operations)
        spoken = store.replace("_", " ")
        self._seconds = metrics.histograms(
            f"{store}_call_seconds",
            f"How long calls to the {spoken} took, by how they ended.",
            one_of("operation", operations),
            one_of("outcome", OUTCOMES),
        )
        self._bytes = metrics.counters(
            f"{store}_bytes",
            f"Bytes that calls to the {spoken} have read or written.",
            one_of("operation", operations),
        )
        self._clock = clock

    def operation(self, name: str) -> "Operation":
        """Return the meter of one kind of call."""
        return Operation(self, name)

    def bytes_of(self, name: str) -> CounterSeries:
        """Return the counter of the bytes that one kind of call moves."""
        return self._bytes.of(name)


class Operation:
    """Meters one kind of call."""

    __slots__ = ("_monotonic", "_name", "_observe_ok", "_seconds")

    def __init__(self, meter: CallMeter, name: str) -> None:
        self._monotonic = meter._clock.monotonic
        self._seconds = meter._seconds
        self._name = name
        self._observe_ok = meter._seconds.of(name, OK).observe

    async def timed(self, call: Awaitable[T]) -> T:
        """Await a call and note how it ended and how long it took."""
        began_at = self._monotonic()
        try:
            result = await call
        except BaseException as error:
            self.note_failure(error, self._monotonic() - began_at)
            raise
        self._observe_ok(self._monotonic() - began_at)
        return result

    def note_success(self, seconds: float) -> None:
        """Count a call that ended well."""
        self._observe_ok(seconds)

    def note_failure(self, error: BaseException, seconds: float) -> None:
        """Count a call that raised."""
        self._seconds.of(self._name, outcome_of(error)).observe(seconds)

    def monotonic(self) -> float:
        """Return the time that calls are measured with."""
        return self._monotonic()
