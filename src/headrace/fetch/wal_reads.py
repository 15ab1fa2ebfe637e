"""Read entries from WAL objects: neighbours in one piece, one request per object, objects at once.

Every batch is checked, and the offsets that the commit gave are stamped in the memory that was read into.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO

from headrace.fetch.runs import Run
from headrace.index.objects import wal_object_key
from headrace.index.values import IndexEntry
from headrace.model.extents import WalExtent
from headrace.model.ids import DomainId, ObjectId, ObjectKey
from headrace.objects.port import Buffer, ByteRange, ObjectStore
from headrace.runtime.executor import Executor
from headrace.wal.chunks import stamp_offsets

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
