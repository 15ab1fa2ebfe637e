"""Object and metadata stores that fail, wait and lie as real ones do, for one simulated process each.

They implement the whole ports over stores that the processes of a simulation share. Which fault strikes is drawn
from the plan (`plan.py`), what a fault does to a request is in `wire.py`.

Must stay true: whatever is injected is allowed by the ports. `Retryable` comes only when nothing has happened; a lost
signal is followed by one with revision 0.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeVar

from headrace.errors import Invalid
from headrace.metadata.port import (
    Committed,
    Decision,
    Key,
    MetadataStore,
    Range,
    Reads,
    Seen,
    SessionState,
    Signal,
    Unit,
    Versioned,
    Watch,
)
from headrace.model.ids import ObjectKey, SessionId
from headrace.objects.port import Buffer, ByteRange, ObjectInfo, ObjectStore, Segment, SegmentStore, Upload
from headrace.testing.simulation.plan import (
    APPEND_FAULTS,
    CREATE_FAULTS,
    DISK_FAULTS,
    READ_FAULTS,
    SESSION_FAULTS,
    SESSION_TRANSACTION_FAULTS,
    SIGNAL_FAULTS,
    TRANSACTION_FAULTS,
    WRITE_FAULTS,
    FaultKind,
    FaultPlan,
)
from headrace.testing.simulation.process import SimProcess
from headrace.testing.simulation.wire import Wire

T = TypeVar("T")

LIST_PAGE_OBJECTS = 100
"""How many objects one request of a listing returns; each request can fail."""


class FaultyObjects:
    """One process's handle on an object store. Closing it closes nothing: others use the store, too."""

    def __init__(self, inner: ObjectStore, process: SimProcess, plan: FaultPlan) -> None:
        self._inner = inner
        self._wire = Wire(process, plan, "objects")
        self._segments = None if inner.segments is None else FaultySegments(inner.segments, process, plan)

    @property
    def segments(self) -> "FaultySegments | None":
        return self._segments

    async def put(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        sent = _sent(data)
        await self._wire.send(f"put {key}", lambda: self._inner.put(key, sent), WRITE_FAULTS)

    async def put_if_absent(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        sent = _sent(data)
        await self._wire.send(f"put_if_absent {key}", lambda: self._inner.put_if_absent(key, sent), CREATE_FAULTS)

    async def get(self, key: ObjectKey) -> Buffer:
        return await self._wire.send(f"get {key}", lambda: self._inner.get(key), READ_FAULTS)

    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return await self._wire.send(f"get_ranges {key}", lambda: self._inner.get_ranges(key, ranges), READ_FAULTS)

    async def head(self, key: ObjectKey) -> ObjectInfo:
        return await self._wire.send(f"head {key}", lambda: self._inner.head(key), READ_FAULTS)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        is_last = False
        while not is_last:
            work = functools.partial(self._page, prefix, start_after)
            page = await self._wire.send(f"list {prefix}", work, READ_FAULTS)
            for info in page:
                yield info
                start_after = info.key
            is_last = len(page) < LIST_PAGE_OBJECTS

    async def delete(self, keys: Iterable[ObjectKey]) -> None:
        named = tuple(keys)
        await self._wire.send(f"delete {' '.join(named)}", lambda: self._inner.delete(named), WRITE_FAULTS)

    async def upload(self, key: ObjectKey, *, if_absent: bool = False) -> "FaultyUpload":
        work = functools.partial(self._inner.upload, key, if_absent=if_absent)
        begun = await self._wire.send(f"upload {key}", work, READ_FAULTS)
        return FaultyUpload(begun, key, self._wire)

    async def close(self) -> None:
        """Do nothing: the store outlives this process."""

    async def _page(self, prefix: str, start_after: str) -> Sequence[ObjectInfo]:
        page: list[ObjectInfo] = []
        async for info in self._inner.list(prefix, start_after=start_after):
            page.append(info)
            if len(page) == LIST_PAGE_OBJECTS:
                break
        return page


class FaultyUpload:
    """An upload whose every piece can fail."""

    def __init__(self, inner: Upload, key: ObjectKey, wire: Wire) -> None:
        self._inner = inner
        self._key = key
        self._wire = wire

    async def write(self, data: Buffer) -> None:
        sent = bytes(data)
        await self._wire.send(f"upload.write {self._key}", lambda: self._inner.write(sent), READ_FAULTS)

    async def complete(self) -> None:
        await self._wire.send(f"upload.complete {self._key}", self._inner.complete, WRITE_FAULTS)

    async def abort(self) -> None:
        await self._wire.send(f"upload.abort {self._key}", self._inner.abort, READ_FAULTS)


class FaultySegments:
    """Segments whose appends fail, are lost, or are written in part."""

    def __init__(self, inner: SegmentStore, process: SimProcess, plan: FaultPlan) -> None:
        self._inner = inner
        self._wire = Wire(process, plan, "segments")

    async def create_segment(self, key: ObjectKey, *, capacity_bytes: int) -> "FaultySegment":
        created = await self._wire.send(
            f"create {key}", lambda: self._inner.create_segment(key, capacity_bytes=capacity_bytes), DISK_FAULTS
        )
        return FaultySegment(created, self._wire)

    async def seal_segment(self, key: ObjectKey, *, size_bytes: int) -> None:
        await self._wire.send(
            f"seal {key} at {size_bytes}", lambda: self._inner.seal_segment(key, size_bytes=size_bytes), DISK_FAULTS
        )


class FaultySegment:
    """One segment. Several appends are under way at once, as on disk, and land in any order. After an error, or after
    a caller gave up waiting, it takes no further append."""

    def __init__(self, inner: Segment, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire
        self._takes_appends = True
        self._under_way = 0
        self._is_still = asyncio.Event()
        self._is_still.set()

    @property
    def key(self) -> ObjectKey:
        return self._inner.key

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    async def append(self, data: Sequence[Buffer]) -> int:
        if not self._takes_appends:
            raise Invalid(f"segment {self.key} takes no more appends: seal it and begin another")
        plan, sent = self._wire.plan, _sent(data)
        self._under_way += 1
        self._is_still.clear()
        try:
            return await self._wire.send_with(
                f"append {self.key}",
                lambda: self._inner.append(sent),
                plan.draw(APPEND_FAULTS),
                torn=lambda: self._inner.append([_part_of(sent, plan)]),
            )
        except BaseException:
            self._takes_appends = False
            raise
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._is_still.set()

    async def seal(self) -> None:
        self._takes_appends = False
        await self._is_still.wait()
        await self._wire.send(f"seal {self.key}", self._inner.seal, DISK_FAULTS)


class FaultyMetadata:
    """One process's handle on a metadata store. Closing it ends its own watches; the store stays open."""

    def __init__(self, inner: MetadataStore, process: SimProcess, plan: FaultPlan) -> None:
        self._inner = inner
        self._wire = Wire(process, plan, "metadata")

    async def get(self, key: Key) -> Versioned | None:
        return await self._wire.send(f"get {key}", lambda: self._inner.get(key), READ_FAULTS)

    async def range(self, range_: Range) -> list[Versioned]:
        return await self._wire.send(f"range {range_.start}", lambda: self._inner.range(range_), READ_FAULTS)

    async def transact(
        self,
        units: Sequence[Unit],
        reads: Reads,
        decide: Callable[[Seen], Decision[T]],
        *,
        session: SessionId | None = None,
    ) -> Committed[T]:
        fault = self._wire.plan.draw(TRANSACTION_FAULTS if session is None else SESSION_TRANSACTION_FAULTS)

        def decide_again(seen: Seen) -> Decision[T]:
            if fault is FaultKind.DECIDED_TWICE:
                decide(seen)
            return decide(seen)

        async def work() -> Committed[T]:
            if fault is FaultKind.SESSION_EXPIRY and session is not None:
                await self._inner.end_session(session)
            return await self._inner.transact(units, reads, decide_again, session=session)

        return await self._wire.send_with(f"transact {' '.join(units)}", work, fault)

    def watch(self, prefix: str) -> "FaultyWatch":
        return FaultyWatch(self._inner.watch(prefix), self._wire)

    async def open_session(self, *, timeout_ms: int) -> SessionId:
        return await self._wire.send(
            "open_session", lambda: self._inner.open_session(timeout_ms=timeout_ms), WRITE_FAULTS
        )

    async def renew_session(self, session: SessionId) -> None:
        fault = self._wire.plan.draw(SESSION_FAULTS)

        async def work() -> None:
            if fault is FaultKind.SESSION_EXPIRY:
                await self._inner.end_session(session)
            await self._inner.renew_session(session)

        await self._wire.send_with(f"renew_session {session}", work, fault)

    def renewals(self, *, timeout_ms: int) -> None:
        """Renewals go through the wire like all else: one seed, one history."""

    async def end_session(self, session: SessionId) -> None:
        await self._wire.send(f"end_session {session}", lambda: self._inner.end_session(session), WRITE_FAULTS)

    async def sessions(self) -> list[SessionState]:
        return await self._wire.send("sessions", self._inner.sessions, READ_FAULTS)

    async def expire_session(self, seen: SessionState) -> bool:
        return await self._wire.send(
            f"expire_session {seen.id}", lambda: self._inner.expire_session(seen), WRITE_FAULTS
        )

    async def close(self) -> None:
        """End this process's watches."""
        for request in list(self._wire.process.requests.values()):
            if isinstance(request, FaultyWatch) and request.wire is self._wire:
                request.close()


class FaultyWatch:
    """A watch whose signals come late, or not at all until a resync. The first one always comes."""

    def __init__(self, inner: Watch, wire: Wire) -> None:
        self._inner = inner
        self.wire = wire
        self._is_first = True
        self._due: tuple[float, Signal] | None = None
        self._sleeper: asyncio.Future[None] | None = None
        self._number = wire.process.next_number()
        wire.process.requests[self._number] = self

    async def wait(self) -> Signal:
        process = self.wire.process
        if process.is_dead:
            await process.hang()
        # A signal that was taken from the store is kept until it is delivered: a cancelled wait loses nothing.
        if self._due is None:
            self._due = self._dispatch(await self._inner.wait())
        due_at, signal = self._due
        self._sleeper = process.loop.create_future()
        timer = process.loop.call_at(due_at, _wake, self._sleeper)
        try:
            await self._sleeper
        finally:
            timer.cancel()
            self._sleeper = None
        self._due = None
        return signal

    def close(self) -> None:
        self.wire.process.requests.pop(self._number, None)
        self._inner.close()
        if self._sleeper is not None:
            self._sleeper.cancel()

    def sender_died(self) -> None:
        """Let go of the store's side."""
        self._inner.close()

    def _dispatch(self, signal: Signal) -> tuple[float, Signal]:
        """Say when the signal is delivered, and as what."""
        process, plan = self.wire.process, self.wire.plan
        fault = None if self._is_first else plan.draw(SIGNAL_FAULTS)
        self._is_first = False
        due_at = process.loop.time() + plan.latency_seconds()
        if fault is FaultKind.LATE_SIGNAL:
            due_at += plan.delay_seconds()
        elif fault is FaultKind.LOST_SIGNAL:
            due_at += plan.rates.resync_ms / 1000
            signal = Signal(signal.prefix, 0)
        process.loop.note(f"{process.name} signal {signal.prefix} {signal.revision}{f': {fault}' if fault else ''}")
        return due_at, signal


def _sent(data: Sequence[Buffer]) -> list[bytes]:
    """Return the bytes as they are now: a request that arrives late does not see what its sender did meanwhile."""
    return [bytes(buffer) for buffer in data]


def _part_of(data: Sequence[bytes], plan: FaultPlan) -> bytes:
    whole = b"".join(data)
    return whole[: plan.part_of(len(whole))]


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
