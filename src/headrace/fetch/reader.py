"""Read a stream's batches from WAL objects, as the offset index names them.

1. Locate the entries from an offset on; memory answers where it can.
2. Read their byte ranges, one request per object.
3. Check every batch and stamp the offsets that the commit gave.

Must stay true: an offset is never skipped. An object that is missing means that the plan was old: drop what is
remembered and plan again; it is damage only if the fresh index still names it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import Corrupt, Missing, Unsupported
from headrace.index.cache import IndexCache
from headrace.index.objects import wal_object_key
from headrace.index.values import IndexEntry
from headrace.model.extents import WalExtent
from headrace.model.ids import DomainId, ObjectId, StreamId
from headrace.objects.port import Buffer, ByteRange, ObjectStore
from headrace.wal.chunks import stamp_offsets

MAX_PLANS = 3
"""How often a read is planned anew because objects vanished under it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Batches back to back, with their offsets, checked. `start_offset` may lie before the offset asked for."""

    start_offset: int
    end_offset: int
    data: memoryview


class LogReader:
    """Reads from any broker's or job's process; it needs no leader and holds no state but the cache."""

    def __init__(self, *, domain: DomainId, cache: IndexCache, objects: ObjectStore) -> None:
        self._domain = domain
        self._cache = cache
        self._objects = objects

    async def read(self, stream: StreamId, offset: int, *, max_bytes: int) -> list[Run]:
        """Return whole entries from the one that holds `offset` on: at least one, then up to `max_bytes`.

        Nothing is returned if the stream does not hold the offset. Raises `Corrupt` where stored bytes are not
        those that were committed.
        """
        missing: Missing | None = None
        for _ in range(MAX_PLANS):
            entries = _within(await self._cache.locate(stream, offset), max_bytes)
            if not entries:
                return []
            try:
                return await self._read(entries)
            except Missing as error:
                missing = error
                self._cache.view.forget_folded(stream)
                await self._cache.refresh()
        raise Corrupt(f"stream {stream} at offset {offset}: the index names an object that is not there: {missing}")

    async def _read(self, entries: Sequence[IndexEntry]) -> list[Run]:
        runs: list[Run] = []
        for object_id, group in _by_object(entries):
            key = wal_object_key(self._domain, object_id)
            ranges = [ByteRange(start_byte=e.start_byte, size_bytes=e.size_bytes) for _, e in group]
            buffers = await self._objects.get_ranges(key, ranges)
            for (entry, extent), buffer in zip(group, buffers, strict=True):
                runs.append(self._stamped(entry, extent, buffer))
        return runs

    def _stamped(self, entry: IndexEntry, extent: WalExtent, buffer: Buffer) -> Run:
        data = bytearray(buffer)
        stamp_offsets(
            data,
            entry.start_offset,
            end_offset=entry.end_offset,
            source=wal_object_key(self._domain, extent.object_id),
            start_byte=extent.start_byte,
        )
        return Run(start_offset=entry.start_offset, end_offset=entry.end_offset, data=memoryview(data).toreadonly())


def _within(entries: Sequence[IndexEntry], max_bytes: int) -> list[IndexEntry]:
    """Return the first entry, and those behind it while they fit."""
    chosen: list[IndexEntry] = []
    left = max_bytes
    for entry in entries:
        if chosen and not isinstance(entry.extent, WalExtent):
            break  # what lies before it can be read
        left -= _wal_extent(entry).size_bytes
        if chosen and left < 0:
            break
        chosen.append(entry)
    return chosen


def _by_object(entries: Sequence[IndexEntry]) -> list[tuple[ObjectId, list[tuple[IndexEntry, WalExtent]]]]:
    """Return consecutive entries of the same object together, so that one request reads them."""
    groups: list[tuple[ObjectId, list[tuple[IndexEntry, WalExtent]]]] = []
    for entry in entries:
        extent = _wal_extent(entry)
        if not groups or groups[-1][0] != extent.object_id:
            groups.append((extent.object_id, []))
        groups[-1][1].append((entry, extent))
    return groups


def _wal_extent(entry: IndexEntry) -> WalExtent:
    if not isinstance(entry.extent, WalExtent):
        raise Unsupported(
            f"offsets {entry.start_offset} to {entry.end_offset} lie in a table, which this release cannot read back"
        )
    return entry.extent
