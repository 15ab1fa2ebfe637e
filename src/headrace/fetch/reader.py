"""Read a stream's batches from WAL objects, as the offset index names them.

1. Locate the entries from an offset on; memory answers where it can.
2. Read their byte ranges: neighbours in one piece, one request per object, objects at once.
3. Check every batch and stamp the offsets that the commit gave, in the memory that was read into.

Must stay true: an offset is never skipped. An object that is missing means that the plan was old: drop what is
remembered and plan again; it is damage only if the fresh index still names it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from io import BytesIO

from headrace.errors import Corrupt, Missing, Unsupported
from headrace.fetch.budget import ReadBudget
from headrace.fetch.runs import Run
from headrace.index.cache import ENTRIES_PER_READ, IndexCache
from headrace.index.objects import wal_object_key
from headrace.index.values import IndexEntry
from headrace.model.extents import WalExtent
from headrace.model.ids import DomainId, ObjectId, ObjectKey, StreamId
from headrace.objects.port import Buffer, ByteRange, ObjectStore
from headrace.runtime.executor import Executor, InlineExecutor
from headrace.wal.chunks import stamp_offsets

__all__ = ["MAX_PLANS", "LogReader", "Run"]

MAX_PLANS = 3
"""How often a read is planned anew because objects vanished under it."""

MAX_ENTRIES = 1024
"""How many entries one read takes at most, however small they are."""

MORE_ENTRIES_PER_READ = 512
"""How many entries are asked for at once, after the first page was found to hold few bytes."""

MAX_GAP_BYTES = 16 * 1024
"""Ranges of an object that lie closer are read in one piece: other streams' bytes between them are thrown away."""

MAX_OBJECTS_AT_ONCE = 8
"""How many objects one read asks for at the same time."""

LOOP_MAX_BYTES = 256 * 1024
"""More bytes than this are checked on a thread: on the loop they would keep everybody waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Bytes of one object that are read together, and the entries in them."""

    wanted: ByteRange
    entries: list[tuple[IndexEntry, WalExtent]]


class LogReader:
    """Reads from any broker's or job's process; it needs no leader and holds no state but the cache."""

    def __init__(
        self, *, domain: DomainId, cache: IndexCache, objects: ObjectStore, executor: Executor | None = None
    ) -> None:
        """Without an executor all work is done where the caller runs."""
        self._domain = domain
        self._cache = cache
        self._objects = objects
        self._executor = executor or InlineExecutor()

    async def read(
        self, stream: StreamId, offset: int, *, max_bytes: int, budget: ReadBudget | None = None
    ) -> list[Run]:
        """Return whole entries from the one that holds `offset` on: at least one, then up to `max_bytes`.

        Nothing is returned if the stream does not hold the offset. Raises `Corrupt` where stored bytes are not
        those that were committed. With a budget, the bytes are lent from it while they are being read.
        """
        missing: Missing | None = None
        for _ in range(MAX_PLANS):
            entries = await self._plan(stream, offset, max_bytes)
            if not entries:
                return []
            size_bytes = sum(_wal_extent(entry).size_bytes for entry in entries)
            try:
                async with budget.lend(size_bytes) if budget is not None else nullcontext():
                    return await self._read(entries, size_bytes)
            except Missing as error:
                missing = error
                self._cache.view.forget_folded(stream)
                await self._cache.refresh()
        raise Corrupt(f"stream {stream} at offset {offset}: the index names an object that is not there: {missing}")

    async def _plan(self, stream: StreamId, offset: int, max_bytes: int) -> list[IndexEntry]:
        """Return the entries to read. Where they are small, one page of the index is not enough."""
        chosen: list[IndexEntry] = []
        left, limit = max_bytes, ENTRIES_PER_READ
        while not chosen or (left > 0 and len(chosen) < MAX_ENTRIES):
            head = self._cache.view.head(stream)
            if chosen and head is not None and offset >= head.high_watermark:
                break  # nothing is known to lie behind: no reason to ask the store
            page = await self._cache.locate(stream, offset, limit=limit)
            for entry in page:
                if chosen and not isinstance(entry.extent, WalExtent):
                    return chosen  # what lies before it can be read
                left -= _wal_extent(entry).size_bytes
                if chosen and left < 0:
                    return chosen
                chosen.append(entry)
            if not page:
                break
            offset, limit = page[-1].end_offset, MORE_ENTRIES_PER_READ
        return chosen

    async def _read(self, entries: Sequence[IndexEntry], size_bytes: int) -> list[Run]:
        groups = _by_object(entries)
        if len(groups) == 1:
            parts = [await self._read_object(*groups[0], size_bytes)]
        else:
            slots = asyncio.Semaphore(MAX_OBJECTS_AT_ONCE)

            async def in_turn(object_id: ObjectId, pieces: list[_Piece]) -> list[Run]:
                async with slots:
                    return await self._read_object(object_id, pieces, size_bytes)

            found = await asyncio.gather(*(in_turn(*group) for group in groups), return_exceptions=True)
            parts = []
            for part in found:
                if isinstance(part, BaseException):
                    raise part
                parts.append(part)
        return parts[0] if len(parts) == 1 else [run for part in parts for run in part]

    async def _read_object(self, object_id: ObjectId, pieces: list[_Piece], size_bytes: int) -> list[Run]:
        key = wal_object_key(self._domain, object_id)
        buffers = await self._objects.get_ranges(key, [piece.wanted for piece in pieces])
        if size_bytes <= LOOP_MAX_BYTES:
            return _open(key, pieces, buffers)
        return await self._executor.run(partial(_open, key, pieces, buffers))


def _open(key: ObjectKey, pieces: Sequence[_Piece], buffers: list[Buffer]) -> list[Run]:
    """Check and stamp what was read; `buffers` is used up."""
    runs: list[Run] = []
    buffers.reverse()
    for piece in pieces:
        memory = _own_last(buffers)
        for entry, extent in piece.entries:
            first_byte = extent.start_byte - piece.wanted.start_byte
            data = memory[first_byte : first_byte + extent.size_bytes]
            stamp_offsets(
                data, entry.start_offset, end_offset=entry.end_offset, source=key, start_byte=extent.start_byte
            )
            runs.append(Run(start_offset=entry.start_offset, end_offset=entry.end_offset, data=data.toreadonly()))
    return runs


def _own_last(buffers: list[Buffer]) -> memoryview:
    """Take the last buffer off the list and return its bytes as memory that is ours to write into.

    A `BytesIO` takes `bytes` over without a copy as long as nobody else refers to them, and copies them before the
    first write if somebody does. So the reference must leave the list, and no name here may hold it.
    """
    if type(buffers[-1]) is bytes:
        return BytesIO(buffers.pop()).getbuffer()
    return memoryview(bytearray(buffers.pop()))


def _by_object(entries: Sequence[IndexEntry]) -> list[tuple[ObjectId, list[_Piece]]]:
    """Return consecutive entries of the same object together, those that lie close in one piece."""
    groups: list[tuple[ObjectId, list[_Piece]]] = []
    for entry in entries:
        extent = _wal_extent(entry)
        if not groups or groups[-1][0] != extent.object_id:
            groups.append((extent.object_id, []))
        pieces = groups[-1][1]
        last = pieces[-1].wanted if pieces else None
        end_byte = extent.start_byte + extent.size_bytes
        if last is not None and 0 <= extent.start_byte - last.end_byte <= MAX_GAP_BYTES:
            wanted = ByteRange(start_byte=last.start_byte, size_bytes=end_byte - last.start_byte)
            pieces[-1] = _Piece(wanted=wanted, entries=pieces[-1].entries)
        else:
            wanted = ByteRange(start_byte=extent.start_byte, size_bytes=extent.size_bytes)
            pieces.append(_Piece(wanted=wanted, entries=[]))
        pieces[-1].entries.append((entry, extent))
    return groups


def _wal_extent(entry: IndexEntry) -> WalExtent:
    if not isinstance(entry.extent, WalExtent):
        raise Unsupported(
            f"offsets {entry.start_offset} to {entry.end_offset} lie in a table, which this release cannot read back"
        )
    return entry.extent
