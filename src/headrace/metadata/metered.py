"""A metadata store whose calls are counted, timed and weighed.

    headrace_metadata_store_call_seconds{operation, outcome}     a histogram; its count is the number of calls
    headrace_metadata_store_bytes_total{operation}               values read by get and range, written by transact

A transaction whose *decide* raises counts with that error's outcome: nothing was wrong with the store then, and
`fenced`, `invalid` or `missing` say so. Nothing else changes: calls, errors and watches pass through.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.metadata.port import (
    Committed,
    Decision,
    Key,
    MetadataStore,
    Range,
    Reads,
    Renewals,
    Seen,
    SessionState,
    Unit,
    Versioned,
    Watch,
)
from headrace.model.ids import SessionId
from headrace.runtime.call_meter import CallMeter, Operation
from headrace.runtime.clock import Clock
from headrace.runtime.metrics import Metrics

T = TypeVar("T")

OPERATIONS = (
    "get",
    "range",
    "transact",
    "open_session",
    "renew_session",
    "end_session",
    "sessions",
    "expire_session",
)


class MeteredMetadata:
    """Passes every call on and takes note of it; see `port.MetadataStore`."""

    def __init__(self, inner: MetadataStore, *, metrics: Metrics, clock: Clock) -> None:
        meter = CallMeter(metrics, clock, store="metadata_store", operations=OPERATIONS)
        self._inner = inner
        self._get = meter.operation("get")
        self._range = meter.operation("range")
        self._transact = meter.operation("transact")
        self._open_session = meter.operation("open_session")
        self._renew_session = meter.operation("renew_session")
        self._end_session = meter.operation("end_session")
        self._sessions = meter.operation("sessions")
        self._expire_session = meter.operation("expire_session")
        self._get_bytes = meter.bytes_of("get")
        self._range_bytes = meter.bytes_of("range")
        self._transact_bytes = meter.bytes_of("transact")

    async def get(self, key: Key) -> Versioned | None:
        found = await self._get.timed(self._inner.get(key))
        if found is not None:
            self._get_bytes.inc(len(found.value))
        return found

    async def range(self, range_: Range) -> list[Versioned]:
        found = await self._range.timed(self._inner.range(range_))
        self._range_bytes.inc(sum([len(row.value) for row in found]))
        return found

    async def transact(
        self,
        units: Sequence[Unit],
        reads: Reads,
        decide: Callable[[Seen], Decision[T]],
        *,
        session: SessionId | None = None,
    ) -> Committed[T]:
        written: Decision[T] | None = None

        def remember(seen: Seen) -> Decision[T]:
            nonlocal written
            written = decide(seen)
            return written

        committed = await self._transact.timed(self._inner.transact(units, reads, remember, session=session))
        if written is not None:  # the decision of the last run: the one that was committed
            self._transact_bytes.inc(_size_bytes(written))
        return committed

    def watch(self, prefix: str) -> Watch:
        return self._inner.watch(prefix)

    async def open_session(self, *, timeout_ms: int) -> SessionId:
        return await self._open_session.timed(self._inner.open_session(timeout_ms=timeout_ms))

    async def renew_session(self, session: SessionId) -> None:
        await self._renew_session.timed(self._inner.renew_session(session))

    def renewals(self, *, timeout_ms: int) -> Renewals | None:
        inner = self._inner.renewals(timeout_ms=timeout_ms)
        return None if inner is None else _MeteredRenewals(inner, self._renew_session)

    async def end_session(self, session: SessionId) -> None:
        await self._end_session.timed(self._inner.end_session(session))

    async def sessions(self) -> list[SessionState]:
        return await self._sessions.timed(self._inner.sessions())

    async def expire_session(self, seen: SessionState) -> bool:
        return await self._expire_session.timed(self._inner.expire_session(seen))

    async def close(self) -> None:
        await self._inner.close()


class _MeteredRenewals:
    """Counts renewals as the store does. Its owner renews by nothing else: one thread writes the series."""

    def __init__(self, inner: Renewals, operation: Operation) -> None:
        self._inner = inner
        self._operation = operation

    async def renew(self, session: SessionId) -> None:
        await self._operation.timed(self._inner.renew(session))

    async def close(self) -> None:
        await self._inner.close()


def _size_bytes(decision: Decision[T]) -> int:
    return sum(map(len, decision.puts.values())) + sum(map(len, decision.ephemerals.values()))
