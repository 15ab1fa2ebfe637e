"""Read entries from WAL objects: neighbours in one piece, one request per object, objects at once.

Every batch is checked, and the offsets that the commit gave are stamped in the memory that was read into.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO

from headrace.errors import Corrupt, Missing
from headrace.fetch.damage import Damage
from headrace.fetch.runs import Run
from headrace.index.objects import wal_object_key
from headrace.index.values import IndexEntry
from headrace.model.extents import WalExtent
from headrace.model.ids import DomainId, ObjectId, ObjectKey
from headrace.objects.port import Buffer, ByteRange, ObjectStore
from headrace.runtime.executor import Executor
from headrace.wal.chunks import stamp_offsets, survey_chunk

MAX_GAP_BYTES = 16 * 1024
"""Ranges of an object that lie closer are read in one piece: other streams' bytes between them are thrown away."""

MAX_OBJECTS_AT_ONCE = 8
"""How many objects one read asks for at the same time."""

LOOP_MAX_BYTES = 256 * 1024
"""More bytes than this are checked on a thread: on the loop they would keep everybody waiting."""

WalEntry = tuple[IndexEntry, WalExtent]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Bytes of one object that are read together, and the entries in them."""

    wanted: ByteRange
    entries: list[WalEntry]


class WalReader:
    """Brings entries from the object store."""

    def __init__(self, *, domain: DomainId, objects: ObjectStore, executor: Executor) -> None:
        self._domain = domain
        self._objects = objects
        self._executor = executor

    async def read(self, entries: Sequence[WalEntry]) -> list[Run]:
        """Return one run per entry. Raises `Missing` if an object is gone, and `Corrupt` for damage."""
        size_bytes = sum(extent.size_bytes for _, extent in entries)
        groups = _by_object(entries)
        if len(groups) == 1:
            return await self._read_object(*groups[0], size_bytes)
        slots = asyncio.Semaphore(MAX_OBJECTS_AT_ONCE)

        async def in_turn(object_id: ObjectId, pieces: list[_Piece]) -> list[Run]:
            async with slots:
                return await self._read_object(object_id, pieces, size_bytes)

        runs: list[Run] = []
        for part in await asyncio.gather(*(in_turn(*group) for group in groups), return_exceptions=True):
            if isinstance(part, BaseException):
                raise part
            runs += part
        return runs

    async def salvage(self, entries: Sequence[WalEntry], offset: int) -> list[Run | Damage]:
        """Read entries again that could not be read, up to the first damage that hides `offset` or lies behind it.

        Everything is read a second time, and what is wrong again a third time by itself: a store may answer badly
        once. Only then it is damage. An object that is not there is damage, too.
        """
        parts: list[Run | Damage] = []
        for object_id, pieces in _by_object(entries):
            key = wal_object_key(self._domain, object_id)
            for piece in pieces:
                again = await self._read_again(key, piece)
                for entry, extent in piece.entries:
                    found = await self._salvage_one(key, entry, extent, piece, again)
                    parts += found
                    if any(isinstance(part, Damage) and part.end_offset > offset for part in found):
                        return parts
        return parts

    async def _read_again(self, key: ObjectKey, piece: _Piece) -> Buffer | None:
        """Return a piece's bytes; `None` if the object does not have all of them."""
        try:
            return (await self._objects.get_ranges(key, [piece.wanted]))[0]
        except (Corrupt, Missing):
            return None

    async def _salvage_one(
        self, key: ObjectKey, entry: IndexEntry, extent: WalExtent, piece: _Piece, again: Buffer | None
    ) -> list[Run | Damage]:
        if again is not None:
            first_byte = extent.start_byte - piece.wanted.start_byte
            data = memoryview(again)[first_byte : first_byte + extent.size_bytes]
            found = await self._executor.run(partial(_parts_of, key, entry, extent, data))
            if not any(isinstance(part, Damage) for part in found):
                return found
        return await self._inspect(key, entry, extent)

    async def _inspect(self, key: ObjectKey, entry: IndexEntry, extent: WalExtent) -> list[Run | Damage]:
        """Read one entry, as much as there is of it."""
        try:
            data = await self._read_some(key, extent)
        except Missing as error:
            return [_damage(key, extent, entry.start_offset, entry.end_offset, str(error))]
        return await self._executor.run(partial(_parts_of, key, entry, extent, data))

    async def _read_some(self, key: ObjectKey, extent: WalExtent) -> Buffer:
        wanted = ByteRange(start_byte=extent.start_byte, size_bytes=extent.size_bytes)
        try:
            return (await self._objects.get_ranges(key, [wanted]))[0]
        except Corrupt:  # it is too short
            there_bytes = (await self._objects.head(key)).size_bytes - extent.start_byte
            if not 0 < there_bytes < extent.size_bytes:
                return b""
            wanted = ByteRange(start_byte=extent.start_byte, size_bytes=there_bytes)
            return (await self._objects.get_ranges(key, [wanted]))[0]

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


def _parts_of(key: ObjectKey, entry: IndexEntry, extent: WalExtent, data: Buffer) -> list[Run | Damage]:
    """Return what of an entry is intact, stamped, and what is not, in the order of offsets."""
    parts: list[Run | Damage] = []
    found = survey_chunk(data, entry.start_offset, end_offset=entry.end_offset, size_bytes=extent.size_bytes)
    for part in found:
        start_byte, size_bytes = extent.start_byte + part.start_byte, part.end_byte - part.start_byte
        if part.why:
            there = WalExtent(extent.object_id, start_byte, size_bytes)
            parts.append(_damage(key, there, part.start_offset, part.end_offset, part.why))
            continue
        memory = memoryview(bytearray(data[part.start_byte : part.end_byte]))
        stamp_offsets(memory, part.start_offset, end_offset=part.end_offset, source=key, start_byte=start_byte)
        parts.append(Run(start_offset=part.start_offset, end_offset=part.end_offset, data=memory.toreadonly()))
    return parts


def _damage(key: ObjectKey, extent: WalExtent, start_offset: int, end_offset: int, why: str) -> Damage:
    return Damage(
        object_key=key,
        start_byte=extent.start_byte,
        size_bytes=extent.size_bytes,
        start_offset=start_offset,
        end_offset=end_offset,
        why=why,
    )


def _own_last(buffers: list[Buffer]) -> memoryview:
    """Take the last buffer off the list and return its bytes as memory that is ours to write into.

    A `BytesIO` takes `bytes` over without a copy as long as nobody else refers to them, and copies them before the
    first write if somebody does. So the reference must leave the list, and no name here may hold it.
    """
    if type(buffers[-1]) is bytes:
        return BytesIO(buffers.pop()).getbuffer()
    return memoryview(bytearray(buffers.pop()))


def _by_object(entries: Sequence[WalEntry]) -> list[tuple[ObjectId, list[_Piece]]]:
    """Return consecutive entries of the same object together, those that lie close in one piece."""
    groups: list[tuple[ObjectId, list[_Piece]]] = []
    for entry, extent in entries:
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
