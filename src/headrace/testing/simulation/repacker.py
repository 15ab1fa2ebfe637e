"""Swaps runs of small WAL extents for packed ones, in two steps each: drives the swap rule as its users will.

It reads folded entries, writes their bytes into one staged object, and swaps them in. A crash at any point leaves the
log as it was, or with one step done.
"""

from collections.abc import Sequence

from headrace.errors import Corrupt, Exists, Missing
from headrace.index.commit import ObjectClosed
from headrace.index.objects import seal_object, stage_objects, wal_object_id, wal_object_key
from headrace.index.rule import StalePlan
from headrace.index.swap import Swap, replacement_for, swap_entries
from headrace.index.values import INDEX_ENTRY, STREAM_HEAD, IndexEntry
from headrace.index.writers import register_writer
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectId, SessionId, StreamId, WriterId
from headrace.objects.port import Buffer, ByteRange, ObjectStore
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints
from headrace.runtime.rng import Rng

MAX_ENTRIES = 6


class Repacker:
    """Repacks one run of one stream per tick."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        writer: WriterId,
        session: SessionId,
        metadata: MetadataStore,
        objects: ObjectStore,
        clock: Clock,
        crash_points: CrashPoints,
        rng: Rng,
    ) -> None:
        self._keys = keys
        self._writer = writer
        self._session = session
        self._metadata = metadata
        self._objects = objects
        self._clock = clock
        self._crash_points = crash_points
        self._rng = rng
        self._is_registered = False
        self._next_number = 0

    async def tick(self) -> None:
        """Repack a run, if there is one worth it; a plan that grew stale is dropped."""
        if not self._is_registered:
            rule = register_writer(self._keys, self._writer, session=self._session, now_ms=self._clock.now_ms())
            await rule.apply(self._metadata, session=self._session)
            self._is_registered = True
        stream = StreamId(self._rng.randrange(0, 3))
        entries = await self._plan(stream)
        if len(entries) < 2:
            return
        try:
            await self._repack(stream, entries)
        except (StalePlan, ObjectClosed, Exists, Missing, Corrupt):
            # Trimmed, swapped or collected meanwhile; what is really damaged shows when the history is checked.
            return

    async def _plan(self, stream: StreamId) -> list[IndexEntry]:
        raw = await self._metadata.get(self._keys.head(stream))
        if raw is None:
            return []
        log_start = STREAM_HEAD.decode(raw.value, raw.key).log_start
        found = await self._metadata.range(self._keys.entries(stream, after_offset=log_start, limit=MAX_ENTRIES))
        return [INDEX_ENTRY.decode(item.value, item.key) for item in found]

    async def _repack(self, stream: StreamId, entries: Sequence[IndexEntry]) -> None:
        pieces = [await self._bytes_of(entry) for entry in entries]
        packed = await self._write(pieces)
        middle = len(entries) // 2
        start_byte = 0
        for step, step_pieces in ((entries[:middle], pieces[:middle]), (entries[middle:], pieces[middle:])):
            size_bytes = sum(len(piece) for piece in step_pieces)
            replacement = replacement_for(step, WalExtent(packed, start_byte, size_bytes))
            start_byte += size_bytes
            swap = Swap(stream=stream, planned=step, replacements=[replacement])
            await swap_entries(self._keys, swap, now_ms=self._clock.now_ms()).apply(self._metadata)
            self._crash_points.reach(CrashPoint.SWAP_AFTER_STEP)
        await seal_object(self._keys, packed, now_ms=self._clock.now_ms()).apply(self._metadata)

    async def _bytes_of(self, entry: IndexEntry) -> Buffer:
        extent = entry.extent
        assert isinstance(extent, WalExtent)
        wanted = ByteRange(start_byte=extent.start_byte, size_bytes=extent.size_bytes)
        key = wal_object_key(self._keys.domain, extent.object_id)
        (data,) = await self._objects.get_ranges(key, [wanted])
        return data

    async def _write(self, pieces: Sequence[Buffer]) -> ObjectId:
        packed = wal_object_id(self._writer, self._next_number)
        self._next_number += 1
        stage = stage_objects(
            self._keys, [packed], writer=self._writer, is_segment=False, now_ms=self._clock.now_ms()
        )
        await stage.apply(self._metadata)
        await self._objects.put_if_absent(wal_object_key(self._keys.domain, packed), pieces)
        return packed
