"""Copy the bytes of index entries from wherever they lie in the WAL into one upload, window by window.

Neighbours in an object are read as one range, several ranges of an object in one call, a few objects at once. Batches
are copied as they are and never opened; every one is checked on the way.

Must stay true: what is written is what the index says, batch for batch, or nothing of it is ever named. Whatever is
copied, no more than one window and what lies between its ranges is held, or one entry that is larger than that.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.errors import Corrupt, HeadraceError, Missing
from headrace.index.objects import wal_object_key
from headrace.index.values import IndexEntry
from headrace.model.extents import WalExtent
from headrace.model.ids import DomainId, ObjectId, ObjectKey
from headrace.objects.port import Buffer, ByteRange, ObjectStore, Upload
from headrace.runtime.clock import Clock
from headrace.runtime.executor import Executor
from headrace.wal.chunks import iter_chunk

WINDOW_BYTES = 2 * 1024 * 1024
"""How many bytes are read, checked and written before the next ones are asked for."""

WINDOW_ENTRIES = 1_000
"""How many entries a window has at most, however small they are: sorting them out takes a millisecond of the loop."""

MAX_GAP_BYTES = 16 * 1024
"""Ranges of an object that lie closer are read in one piece: other streams' bytes between them are thrown away."""

MAX_OBJECTS_AT_ONCE = 8
"""How many objects are read at the same time from a remote store, where a read is mostly waiting."""

MAX_FILES_AT_ONCE = 2
"""The same on local disk: appends and fetches need the threads that read and sync files, and the disk itself."""


class UnreadableEntry(Corrupt):
    """The bytes of an entry are not there, or are not those that were committed."""

    def __init__(self, entry: IndexEntry, error: HeadraceError) -> None:
        super().__init__(f"offsets {entry.start_offset} to {entry.end_offset} cannot be copied: {error}")
        self.entry = entry


@dataclass(slots=True)
class _Piece:
    """A range of one object, and the entries in it by their number in the window."""

    wanted: ByteRange
    numbers: list[int]


class Copier:
    """Copies at a bounded pace, so that whoever appends and fetches does not notice."""

    def __init__(
        self, *, domain: DomainId, objects: ObjectStore, executor: Executor, clock: Clock, bytes_per_second: int
    ) -> None:
        self._domain = domain
        self._objects = objects
        self._executor = executor
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._reads_at_once = MAX_OBJECTS_AT_ONCE if objects.segments is None else MAX_FILES_AT_ONCE

    async def copy(self, entries: Sequence[IndexEntry], upload: Upload) -> None:
        """Write the entries' batches back to back. Raises `UnreadableEntry` at the first that cannot be copied."""
        for window in _windows(entries):
            data = await self._read(window)
            checked = await self._executor.run(partial(_joined, self._domain, window, data))
            del data
            await upload.write(checked)
            await self._clock.sleep(len(checked) / self._bytes_per_second)

    async def _read(self, window: Sequence[IndexEntry]) -> list[Buffer]:
        """Return the bytes of each entry, in order."""
        found: list[Buffer] = [b""] * len(window)
        slots = asyncio.Semaphore(self._reads_at_once)

        async def read(object_id: ObjectId, pieces: Sequence[_Piece]) -> None:
            async with slots:
                key = wal_object_key(self._domain, object_id)
                buffers = await self._ranges(key, pieces, window)
            for piece, buffer in zip(pieces, buffers, strict=True):
                for number in piece.numbers:
                    extent = _extent_of(window[number])
                    first = extent.start_byte - piece.wanted.start_byte
                    found[number] = memoryview(buffer)[first : first + extent.size_bytes]

        reads = [asyncio.ensure_future(read(one, pieces)) for one, pieces in _by_object(window).items()]
        try:
            await asyncio.gather(*reads)
        finally:
            for reading in reads:
                reading.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
        return found

    async def _ranges(
        self, key: ObjectKey, pieces: Sequence[_Piece], window: Sequence[IndexEntry]
    ) -> Sequence[Buffer]:
        try:
            return await self._objects.get_ranges(key, [piece.wanted for piece in pieces])
        except (Missing, Corrupt) as error:
            await self._blame(key, [window[number] for piece in pieces for number in piece.numbers])
            raise UnreadableEntry(window[pieces[0].numbers[0]], error) from error

    async def _blame(self, key: ObjectKey, entries: Sequence[IndexEntry]) -> None:
        """Raise `UnreadableEntry` for the first of some entries that cannot be read by itself."""
        for entry in entries:
            extent = _extent_of(entry)
            wanted = ByteRange(start_byte=extent.start_byte, size_bytes=extent.size_bytes)
            try:
                await self._objects.get_ranges(key, [wanted])
            except (Missing, Corrupt) as error:
                raise UnreadableEntry(entry, error) from error


def _joined(domain: DomainId, window: Sequence[IndexEntry], data: Sequence[Buffer]) -> bytes:
    """Return the bytes of a window in one piece, once every batch of it was checked."""
    for entry, chunk in zip(window, data, strict=True):
        try:
            _check(domain, entry, chunk)
        except Corrupt as error:
            raise UnreadableEntry(entry, error) from error
    return b"".join(data)


def _check(domain: DomainId, entry: IndexEntry, data: Buffer) -> None:
    extent = _extent_of(entry)
    key = wal_object_key(domain, extent.object_id)
    next_offset = entry.start_offset
    for batch in iter_chunk(data, source=key, start_byte=extent.start_byte):
        next_offset += batch.last_offset_delta + 1
    if next_offset != entry.end_offset:
        raise Corrupt(f"object {key} holds offsets up to {next_offset} there, the index says {entry.end_offset}")


def _windows(entries: Sequence[IndexEntry]) -> Iterator[list[IndexEntry]]:
    window: list[IndexEntry] = []
    size_bytes = 0
    for entry in entries:
        size = _extent_of(entry).size_bytes
        if window and (size_bytes + size > WINDOW_BYTES or len(window) >= WINDOW_ENTRIES):
            yield window
            window, size_bytes = [], 0
        window.append(entry)
        size_bytes += size
    if window:
        yield window


def _by_object(window: Sequence[IndexEntry]) -> dict[ObjectId, list[_Piece]]:
    """Return what is read of each object, entries that lie close together in one piece."""
    pieces: dict[ObjectId, list[_Piece]] = {}
    by_place = sorted(range(len(window)), key=lambda number: _extent_of(window[number]).start_byte)
    for number in by_place:
        extent = _extent_of(window[number])
        known = pieces.setdefault(extent.object_id, [])
        end_byte = extent.start_byte + extent.size_bytes
        if known and extent.start_byte - known[-1].wanted.end_byte <= MAX_GAP_BYTES:
            start_byte = known[-1].wanted.start_byte
            end_byte = max(end_byte, known[-1].wanted.end_byte)
            known[-1].wanted = ByteRange(start_byte=start_byte, size_bytes=end_byte - start_byte)
            known[-1].numbers.append(number)
        else:
            wanted = ByteRange(start_byte=extent.start_byte, size_bytes=extent.size_bytes)
            known.append(_Piece(wanted, [number]))
    return pieces


def _extent_of(entry: IndexEntry) -> WalExtent:
    assert isinstance(entry.extent, WalExtent), f"{entry} is none of the WAL"
    return entry.extent
