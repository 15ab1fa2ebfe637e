"""Memory stores that follow a script, and a writer on top of them: for tests of the flows.

A script says what happens to the next calls of one kind. A call without a step simply goes through.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from headrace.errors import HeadraceError
from headrace.fetch.reader import LogReader
from headrace.index.cache import IndexCache
from headrace.index.streams import create_streams
from headrace.index.values import (
    LOG_RECORD,
    OBJECT_RECORD,
    WRITER_STATE,
    LogRecord,
    ObjectRecord,
    PartResult,
    StreamKind,
    WriterState,
)
from headrace.metadata.keys import DomainKeys
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Committed, Decision, Key, Reads, Seen, Unit, Versioned
from headrace.model.ids import DomainId, ObjectId, ObjectKey, SessionId, StreamId, WriterId
from headrace.objects.memory import MemoryObjects, MemorySegment
from headrace.objects.port import Buffer, ByteRange
from headrace.produce.placement import Placement, PlacementLimits, open_placement
from headrace.produce.settlement import FRAME_MAX_PARTS, GROUP_MAX_PARTS, WriterLimits
from headrace.produce.writer import LogWriter
from headrace.records.batch import iter_batches
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.rng import seeded_rng
from headrace.testing.batches import make_batch, read_batches
from headrace.testing.clock import ManualClock

T = TypeVar("T")

WRITER = WriterId("a1" * 16)


class Step(Protocol):
    """What becomes of one call: it may run `work`, before or after it waits or raises."""

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T: ...


class Refuse:
    """Raise, and have no effect."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        raise self._error


class Lose:
    """Have the effect, then raise."""

    def __init__(self, error: HeadraceError) -> None:
        self._error = error

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        await work()
        raise self._error


class Hold:
    """Wait until the test lets go; then go through, or raise."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error
        self._released = asyncio.Event()

    def release(self) -> None:
        self._released.set()

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        await self._released.wait()
        if self._error is not None:
            raise self._error
        return await work()


class Meanwhile:
    """Let something else happen, then go through."""

    def __init__(self, happen: Callable[[], Awaitable[object]]) -> None:
        self._happen = happen

    async def __call__(self, work: Callable[[], Awaitable[T]]) -> T:
        await self._happen()
        return await work()


class Script:
    """Steps per kind of call, and how many calls of each kind there were."""

    def __init__(self) -> None:
        self._steps: defaultdict[str, deque[Step]] = defaultdict(deque)
        self.calls: Counter[str] = Counter()

    def plan(self, kind: str, *steps: Step) -> None:
        self._steps[kind].extend(steps)

    async def play(self, kind: str, work: Callable[[], Awaitable[T]]) -> T:
        self.calls[kind] += 1
        if not self._steps[kind]:
            return await work()
        return await self._steps[kind].popleft()(work)


class ScriptedMetadata(MemoryMetadata):
    """Kinds: `get`, and for transactions the name of the rule: `commit_frame`, `stage_objects`…"""

    def __init__(self, script: Script) -> None:
        super().__init__(seeded_rng(3))
        self._script = script

    async def get(self, key: Key) -> Versioned | None:
        through = super().get
        return await self._script.play("get", lambda: through(key))

    async def transact(
        self,
        units: Sequence[Unit],
        reads: Reads,
        decide: Callable[[Seen], Decision[T]],
        *,
        session: SessionId | None = None,
    ) -> Committed[T]:
        through = super().transact
        rule = decide.__qualname__.partition(".")[0]
        return await self._script.play(rule, lambda: through(units, reads, decide, session=session))


class ScriptedObjects(MemoryObjects):
    """Kinds: `put`, `create`, `append`, `seal`, `seal_segment`, `read`, `delete`."""

    def __init__(self, clock: ManualClock, script: Script, *, is_remote: bool) -> None:
        super().__init__(clock)
        self._script = script
        self._is_remote = is_remote

    @property
    def segments(self) -> "ScriptedObjects | None":  # type: ignore[override]
        return None if self._is_remote else self

    async def put_if_absent(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        through = super().put_if_absent
        await self._script.play("put", lambda: through(key, data))

    async def create_segment(self, key: ObjectKey, *, capacity_bytes: int) -> MemorySegment:
        through = super().create_segment
        made = await self._script.play("create", lambda: through(key, capacity_bytes=capacity_bytes))
        return _ScriptedSegment(made, self._script)

    async def seal_segment(self, key: ObjectKey, *, size_bytes: int) -> None:
        through = super().seal_segment
        await self._script.play("seal_segment", lambda: through(key, size_bytes=size_bytes))

    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        through = super().get_ranges
        return await self._script.play("read", lambda: through(key, ranges))

    async def delete(self, keys: Iterable[ObjectKey]) -> None:
        through = super().delete
        await self._script.play("delete", lambda: through(keys))


class _ScriptedSegment(MemorySegment):
    def __init__(self, made: MemorySegment, script: Script) -> None:
        super().__init__(made.key, made._stored, made._clock)
        self._script = script

    async def append(self, data: Sequence[Buffer]) -> int:
        through = super().append
        return await self._script.play("append", lambda: through(data))

    async def seal(self) -> None:
        await self._script.play("seal", super().seal)


class WriterKit:
    """One writer on scripted stores, with a clock that stands still."""

    def __init__(
        self,
        *,
        is_remote: bool = False,
        buffer_max_bytes: int = 1_000_000,
        frame_max_bytes: int = 100_000,
        frames_in_flight: int = 1,
        small_frames_in_flight: int | None = None,
        linger_ms: int = 0,
        commit_attempts: int = 3,
        frame_max_parts: int = FRAME_MAX_PARTS,
        group_max_parts: int = GROUP_MAX_PARTS,
        segment_max_bytes: int = 100_000,
        segment_max_age_ms: int = 60_000,
        staged_ahead: int = 2,
        staged_max_age_ms: int = 600_000,
    ) -> None:
        self.keys = DomainKeys(DomainId(0))
        self.clock = ManualClock()
        self.script = Script()
        self.metadata = ScriptedMetadata(self.script)
        self.objects = ScriptedObjects(self.clock, self.script, is_remote=is_remote)
        self.cache = IndexCache(self.metadata, self.keys, max_folded_entries=100)
        self.placement: Placement = open_placement(
            keys=self.keys,
            writer=WRITER,
            metadata=self.metadata,
            objects=self.objects,
            clock=self.clock,
            crash_points=NoCrashes(),
            limits=PlacementLimits(
                segment_max_bytes=segment_max_bytes,
                segment_max_age_ms=segment_max_age_ms,
                staged_ahead=staged_ahead,
                staged_max_age_ms=staged_max_age_ms,
            ),
        )
        self.writer = LogWriter(
            keys=self.keys,
            writer=WRITER,
            metadata=self.metadata,
            placement=self.placement,
            clock=self.clock,
            crash_points=NoCrashes(),
            limits=WriterLimits(
                buffer_max_bytes=buffer_max_bytes,
                frame_max_bytes=frame_max_bytes,
                frames_in_flight=frames_in_flight,
                small_frames_in_flight=small_frames_in_flight or frames_in_flight,
                linger_ms=linger_ms,
                commit_attempts=commit_attempts,
                retry_backoff_ms=100,
                producer_expiration_ms=86_400_000,
                frame_max_parts=frame_max_parts,
                group_max_parts=group_max_parts,
            ),
            cache=self.cache,
        )
        self.session = SessionId("")
        self.streams: list[StreamId] = []

    async def start(self, streams: int = 1) -> list[StreamId]:
        """Create streams and start the writer."""
        owners = [f"topic-{n}" for n in range(streams)]
        rule = create_streams(self.keys, owners, kind=StreamKind.PARTITION, now_ms=self.clock.now_ms())
        self.streams = await rule.apply(self.metadata)
        self.session = await self.metadata.open_session(timeout_ms=5_000)
        await self.writer.start(self.session)
        return self.streams

    def offer(
        self, stream: StreamId, *values: bytes, producer: int = -1, sequence: int = -1, epoch: int = 0
    ) -> "asyncio.Task[PartResult]":
        """Begin to append one batch; the task's result is the answer."""
        data = make_batch(
            values, producer_id=producer, producer_epoch=-1 if producer < 0 else epoch, base_sequence=sequence
        )
        batches = [view.summary() for view in iter_batches(memoryview(data))]
        offered = asyncio.create_task(self.writer.append(stream, data, batches))
        offered.add_done_callback(_look_at)
        return offered

    async def taken(
        self, stream: StreamId, *values: bytes, producer: int = -1, sequence: int = -1
    ) -> "asyncio.Task[PartResult]":
        """Begin to append one batch and let everything run that can run."""
        offered = self.offer(stream, *values, producer=producer, sequence=sequence)
        await self.clock.settle()
        return offered

    async def append(self, stream: StreamId, *values: bytes) -> int:
        """Append one batch and return its first offset."""
        return (await self.offer(stream, *values)).base_offset

    async def values(self, stream: StreamId, *, start_offset: int = 0) -> list[bytes | None]:
        """Return what another process reads from the stream, in order of offsets, which must be contiguous."""
        cache = IndexCache(self.metadata, self.keys, max_folded_entries=100)
        reader = LogReader(domain=self.keys.domain, cache=cache, objects=self.objects)
        found: list[bytes | None] = []
        while runs := await reader.read(stream, start_offset + len(found), max_bytes=1_000_000):
            for run in runs:
                for record in read_batches(run.data):
                    if record.offset < start_offset:
                        continue  # a batch that begins before it is sent whole
                    due = start_offset + len(found)
                    assert record.offset == due, f"offset {record.offset} where {due} was due"
                    found.append(record.value)
        return found

    async def log(self) -> list[LogRecord]:
        """Return the commit records of frames."""
        found = await self.metadata.range(self.keys.log_range(0, limit=1000))
        records = [LOG_RECORD.decode(item.value, item.key) for item in found]
        return [record for record in records if record.writer]

    async def object(self, number: int) -> ObjectRecord | None:
        """Return the record of the writer's n-th object."""
        raw = await self.metadata.get(self.keys.object(ObjectId(f"{WRITER}-{number:08d}")))
        return None if raw is None else OBJECT_RECORD.decode(raw.value, raw.key)

    async def state(self) -> WriterState | None:
        """Return what the store knows of the writer."""
        raw = await self.metadata.get(self.keys.writer(WRITER))
        return None if raw is None else WRITER_STATE.decode(raw.value, raw.key)


def _look_at(offered: "asyncio.Task[PartResult]") -> None:
    """Take note of the answer, so that one which a test does not care about is not reported as overlooked."""
    if not offered.cancelled():
        offered.exception()


def batch_bytes(*values: bytes) -> int:
    """Return how large a batch of these values is."""
    return len(make_batch(values))
