"""Where a frame's bytes go: into a shared segment on local disk, or an object of its own on a remote store.

Must stay true:
- An object has a staged record before its first byte exists, so no crash can leak it.
- A segment's bytes are written at most once. After any doubt it is *retired*: it takes no further frame, and
  it is sealed once every frame in it has met its fate.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.index.objects import seal_object, stage_objects, wal_object_id, wal_object_key
from headrace.index.values import OBJECT_RECORD, ObjectState
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import ObjectId, WriterId
from headrace.objects.port import Buffer, ObjectStore, Segment, SegmentStore
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementLimits:
    """When a segment is full or old, and how far objects are staged ahead."""

    segment_max_bytes: int
    segment_max_age_ms: int
    staged_ahead: int
    staged_max_age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Durable bytes: which object, and where in it."""

    object_id: ObjectId
    start_byte: int
    end_byte: int


class Placement(Protocol):
    """Makes frames durable, one `place` after another, in order."""

    async def place(self, buffers: Sequence[Buffer], size_bytes: int) -> Placed:
        """Write a frame. Raises `Retryable` or `OutcomeUnknown`; either way these bytes will never be committed."""
        ...

    def settled(self, object_id: ObjectId, *, in_doubt: bool) -> None:
        """Hear that a placed frame has met its fate; doubt on the way retires its object."""
        ...

    async def tidy(self, *, everything: bool = False) -> None:
        """Seal what is done with: retired segments, old ones, and at the end everything."""
        ...


def open_placement(
    *,
    keys: DomainKeys,
    writer: WriterId,
    metadata: MetadataStore,
    objects: ObjectStore,
    clock: Clock,
    crash_points: CrashPoints,
    limits: PlacementLimits,
) -> Placement:
    """Return the placement that suits the store."""
    staging = _Staging(keys, writer, metadata, clock, crash_points)
    if objects.segments is not None:
        return SegmentPlacement(staging, objects, objects.segments, limits)
    return ObjectPlacement(staging, objects, limits)


class _Staging:
    """Numbers and stages a writer's objects."""

    def __init__(
        self,
        keys: DomainKeys,
        writer: WriterId,
        metadata: MetadataStore,
        clock: Clock,
        crash_points: CrashPoints,
    ) -> None:
        self.keys = keys
        self.metadata = metadata
        self.clock = clock
        self.crash_points = crash_points
        self._writer = writer
        self._next_number = 0

    async def stage(self, count: int, *, is_segment: bool) -> list[ObjectId]:
        """Stage fresh objects. Numbers of a failed try are not used again: their fate may be unknown."""
        first = self._next_number
        self._next_number += count
        objects = [wal_object_id(self._writer, first + n) for n in range(count)]
        rule = stage_objects(
            self.keys, objects, writer=self._writer, is_segment=is_segment, now_ms=self.clock.now_ms()
        )
        await rule.apply(self.metadata)
        self.crash_points.reach(CrashPoint.WRITER_AFTER_STAGE)
        return objects


class _OpenSegment:
    """A segment and how many of its frames have not met their fate yet."""

    __slots__ = ("is_retired", "object_id", "opened_at_ms", "segment", "unsettled_count")

    def __init__(self, object_id: ObjectId, segment: Segment, opened_at_ms: int) -> None:
        self.object_id = object_id
        self.segment = segment
        self.opened_at_ms = opened_at_ms
        self.unsettled_count = 0
        self.is_retired = False


class SegmentPlacement:
    """Appends frames to one segment, one after another, until it is full, old or in doubt."""

    def __init__(
        self, staging: _Staging, objects: ObjectStore, segments: SegmentStore, limits: PlacementLimits
    ) -> None:
        self._staging = staging
        self._objects = objects
        self._segments = segments
        self._limits = limits
        self._current: _OpenSegment | None = None
        self._unsealed: dict[ObjectId, _OpenSegment] = {}
        self._placing = asyncio.Lock()

    async def place(self, buffers: Sequence[Buffer], size_bytes: int) -> Placed:
        current = await self._segment_for(size_bytes)
        # No await up to here: the segment gives this frame its place before it can be asked for another.
        current.unsettled_count += 1
        try:
            start_byte = await current.segment.append(buffers)
        except HeadraceError:
            self.settled(current.object_id, in_doubt=True)
            raise
        return Placed(object_id=current.object_id, start_byte=start_byte, end_byte=start_byte + size_bytes)

    async def _segment_for(self, size_bytes: int) -> _OpenSegment:
        """Return the segment that takes the next frame; only one frame at a time begins a new one."""
        async with self._placing:
            current = self._current
            if current is None or not self._has_room(current, size_bytes):
                current = await self._begin(size_bytes)
            return current

    def _has_room(self, current: _OpenSegment, size_bytes: int) -> bool:
        if current.is_retired or self._is_old(current):
            return False
        return current.segment.size_bytes + size_bytes <= self._limits.segment_max_bytes

    def _is_old(self, current: _OpenSegment) -> bool:
        age_ms = self._staging.clock.now_ms() - current.opened_at_ms
        return age_ms >= self._limits.segment_max_age_ms

    async def _begin(self, size_bytes: int) -> _OpenSegment:
        self._retire_current()
        (object_id,) = await self._staging.stage(1, is_segment=True)
        key = wal_object_key(self._staging.keys.domain, object_id)
        capacity_bytes = max(size_bytes, self._limits.segment_max_bytes)
        segment = await self._segments.create_segment(key, capacity_bytes=capacity_bytes)
        self._current = _OpenSegment(object_id, segment, self._staging.clock.now_ms())
        self._unsealed[object_id] = self._current
        return self._current

    def _retire_current(self) -> None:
        if self._current is not None:
            self._current.is_retired = True
            self._current = None

    def settled(self, object_id: ObjectId, *, in_doubt: bool) -> None:
        segment = self._unsealed[object_id]
        segment.unsettled_count -= 1
        if in_doubt:
            segment.is_retired = True

    async def tidy(self, *, everything: bool = False) -> None:
        current = self._current
        if current is not None and (everything or current.is_retired or self._is_old(current)):
            self._retire_current()
        for segment in list(self._unsealed.values()):
            if segment.is_retired and segment.unsettled_count == 0:
                await self._seal(segment)

    async def _seal(self, segment: _OpenSegment) -> None:
        """Close the file, then the record: a crash in between leaves an open record, which a collector finishes.

        Every frame has met its fate, so nothing behind the file's end is going to be committed.
        """
        staging = self._staging
        await segment.segment.seal()
        staging.crash_points.reach(CrashPoint.WRITER_AFTER_SEAL)
        rule = seal_object(staging.keys, segment.object_id, now_ms=staging.clock.now_ms())
        record = await rule.apply(staging.metadata)
        if record is None or record.state is ObjectState.CONDEMNED:
            # It was condemned before our first byte: nothing will ever name it, and its collector may have passed by.
            await self._objects.delete([segment.segment.key])
        self._unsealed.pop(segment.object_id, None)


class ObjectPlacement:
    """Writes each frame as an immutable object of its own; ids are staged ahead, so that a flush is one PUT."""

    def __init__(self, staging: _Staging, objects: ObjectStore, limits: PlacementLimits) -> None:
        self._staging = staging
        self._objects = objects
        self._limits = limits
        self._ready: deque[tuple[ObjectId, int]] = deque()
        self._doubtful: list[ObjectId] = []

    async def place(self, buffers: Sequence[Buffer], size_bytes: int) -> Placed:
        object_id = await self._next_object()
        key = wal_object_key(self._staging.keys.domain, object_id)
        await self._objects.put_if_absent(key, buffers)
        return Placed(object_id=object_id, start_byte=0, end_byte=size_bytes)

    async def _next_object(self) -> ObjectId:
        """Take a staged id that is young enough to be committed before its age condemns it."""
        oldest_ms = self._staging.clock.now_ms() - self._limits.staged_max_age_ms // 2
        while True:
            while self._ready:
                object_id, staged_at_ms = self._ready.popleft()
                if staged_at_ms >= oldest_ms:
                    return object_id
            now_ms = self._staging.clock.now_ms()
            staged = await self._staging.stage(self._limits.staged_ahead, is_segment=False)
            self._ready.extend((object_id, now_ms) for object_id in staged)

    def settled(self, object_id: ObjectId, *, in_doubt: bool) -> None:
        if in_doubt:
            self._doubtful.append(object_id)

    async def tidy(self, *, everything: bool = False) -> None:
        """Delete objects that were written after their staged record had been condemned: nobody else knows them."""
        keys = self._staging.keys
        doubtful, self._doubtful = self._doubtful, []
        try:
            while doubtful:
                raw = await self._staging.metadata.get(keys.object(doubtful[-1]))
                if raw is None or OBJECT_RECORD.decode(raw.value, raw.key).state is ObjectState.CONDEMNED:
                    await self._objects.delete([wal_object_key(keys.domain, doubtful[-1])])
                doubtful.pop()
        finally:
            self._doubtful += doubtful
