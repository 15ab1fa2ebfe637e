"""Read the WAL bytes of a slice, in order, through windows of bounded size.

Pieces of one object that lie close together are read as one range, several ranges of an object in one call, and some
calls are under way while their predecessors are worked on. A piece that is larger than a window comes in several.

Must stay true: whatever the slice, no more than `READ_AHEAD_BYTES` and one call's bytes are held here.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from headrace.index.objects import wal_object_key
from headrace.model.ids import DomainId, ObjectId
from headrace.objects.port import Buffer, ByteRange, ObjectStore
from headrace.pipeline.plans import WalPiece

READ_BYTES = 4 * 1024 * 1024
"""How many bytes one call asks for, gaps included."""

READ_AHEAD_BYTES = 8 * 1024 * 1024
"""How many bytes are asked for ahead of the window that is being worked on."""

MAX_READS_AT_ONCE = 8
"""How many calls are under way at once: small objects of a remote store would otherwise come one by one."""

MAX_GAP_BYTES = 16 * 1024
"""Parts of an object that lie closer are read in one range: other streams' bytes between them are thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Bytes of one piece, in the order of the piece; `start_byte` counts in its object."""

    piece: WalPiece
    start_byte: int
    data: memoryview

    @property
    def is_last(self) -> bool:
        """Whether the piece ends here."""
        return self.start_byte + len(self.data) == self.piece.extent.start_byte + self.piece.extent.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one window will show."""

    piece: WalPiece
    wanted: ByteRange


@dataclass(slots=True, kw_only=True)
class _Read:
    """One call: parts of one object, neighbours in one range."""

    object_id: ObjectId
    ranges: list[ByteRange] = field(default_factory=list)
    parts: list[list[_Part]] = field(default_factory=list)
    size_bytes: int = 0

    def try_add(self, part: _Part) -> bool:
        """Take the part if it lies in this object and there is room for it; there always is for the first."""
        wanted = part.wanted
        if part.piece.extent.object_id != self.object_id or self.size_bytes + wanted.size_bytes > READ_BYTES:
            return False
        last = self.ranges[-1] if self.ranges else None
        if last is not None and 0 <= wanted.start_byte - last.end_byte <= MAX_GAP_BYTES:
            joined = ByteRange(start_byte=last.start_byte, size_bytes=wanted.end_byte - last.start_byte)
            self.size_bytes += joined.size_bytes - last.size_bytes
            self.ranges[-1] = joined
            self.parts[-1].append(part)
        else:
            self.size_bytes += wanted.size_bytes
            self.ranges.append(wanted)
            self.parts.append([part])
        return True


async def read_windows(
    objects: ObjectStore, domain: DomainId, pieces: Sequence[WalPiece]
) -> AsyncGenerator[list[Window], None]:
    """Go through the bytes of the pieces, in order, all windows of one call together; close it if you leave it early.

    A frame of a busy log is some hundred kilobytes: window by window, handing them to a thread would cost more than
    what it does with them.

    Raises `Missing` if an object is gone, `Corrupt` if it is too short.
    """
    ahead: deque[tuple[_Read, asyncio.Task[list[Buffer]]]] = deque()
    ahead_bytes = 0
    reads = _plan(pieces)
    next_read = next(reads, None)
    try:
        while ahead or next_read is not None:
            while (
                next_read is not None
                and len(ahead) < MAX_READS_AT_ONCE
                and (not ahead or ahead_bytes + next_read.size_bytes <= READ_AHEAD_BYTES)
            ):
                key = wal_object_key(domain, next_read.object_id)
                ahead.append((next_read, asyncio.create_task(objects.get_ranges(key, next_read.ranges))))
                ahead_bytes += next_read.size_bytes
                next_read = next(reads, None)
            read, reading = ahead[0]
            buffers = await reading
            ahead.popleft()
            ahead_bytes -= read.size_bytes
            yield list(_windows(read, buffers))
    finally:
        for _, reading in ahead:
            reading.cancel()
        await asyncio.gather(*(reading for _, reading in ahead), return_exceptions=True)


def _plan(pieces: Iterable[WalPiece]) -> Iterator[_Read]:
    """Cut the pieces into calls, lazily: a backlog has very many of them."""
    read: _Read | None = None
    for part in _parts(pieces):
        if read is not None and read.try_add(part):
            continue
        if read is not None:
            yield read
        read = _Read(object_id=part.piece.extent.object_id)
        read.try_add(part)
    if read is not None:
        yield read


def _parts(pieces: Iterable[WalPiece]) -> Iterator[_Part]:
    for piece in pieces:
        start_byte, end_byte = piece.extent.start_byte, piece.extent.start_byte + piece.extent.size_bytes
        while start_byte < end_byte:
            size_bytes = min(READ_BYTES, end_byte - start_byte)
            yield _Part(piece=piece, wanted=ByteRange(start_byte=start_byte, size_bytes=size_bytes))
            start_byte += size_bytes


def _windows(read: _Read, buffers: Sequence[Buffer]) -> Iterator[Window]:
    for wanted, parts, buffer in zip(read.ranges, read.parts, buffers, strict=True):
        view = memoryview(buffer).toreadonly()
        for part in parts:
            first_byte = part.wanted.start_byte - wanted.start_byte
            data = view[first_byte : first_byte + part.wanted.size_bytes]
            yield Window(piece=part.piece, start_byte=part.wanted.start_byte, data=data)
