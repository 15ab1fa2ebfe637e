"""A WAL frame: what one flush writes, many streams of one domain together.

    header      magic "HRWF", version, header length, flags, writer, frame number, domain, creation time,
                chunk count, byte of the chunk index
    bodies      one per stream, in ascending stream order, back to back: record batches exactly as produced
    index       per body: entry length, flags, stream, byte, length, records, batches, min and max timestamp
    footer      CRC-32C over everything before it

Integers are big-endian; byte positions count from the frame's first byte. A newer writer may append fields
to the header and to index entries, and set flags that an older reader may ignore: readers go by the stored
lengths. Whatever an older reader must not misread raises the version, and is refused with `Unsupported`.

Must stay true:
- Building never copies or joins what was handed over.
- Bytes that were not written as one frame raise `Corrupt` or `Unsupported`, and nothing else; what a lying
  count or length asks for is never allocated.
- The index says what was offered. Only the offset index says what was accepted.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from crc32c import crc32c

from headrace.errors import Corrupt, Unsupported
from headrace.model.batches import BatchSummary
from headrace.model.ids import DomainId, StreamId, WriterId
from headrace.objects.port import Buffer, ByteRange

MAGIC = b"HRWF"
VERSION = 1

_HEADER = struct.Struct(">4sHHI16sQIqIQ")
_ENTRY = struct.Struct(">HHQQQIIqq")
_FOOTER = struct.Struct(">I")

HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size
FOOTER_BYTES = _FOOTER.size


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    """Who wrote a frame, as which of its frames, when, and where its chunk index begins."""

    writer: WriterId
    frame_number: int
    domain: DomainId
    created_at_ms: int
    chunk_count: int
    chunk_index_byte: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One stream's part of a frame; `start_byte` counts from the frame's first byte.

    `min_timestamp_ms` is the least base timestamp of the batches: a record inside a batch may lie before it.
    """

    stream: StreamId
    start_byte: int
    size_bytes: int
    record_count: int
    batch_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    flags: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFrame:
    """A frame that is ready to be written.

    `buffers` are the header, the bodies as they were handed over, and index with footer; written back to
    back they are the frame. `positions` tells, by ticket, where each add lies in the frame.
    """

    buffers: list[Buffer]
    size_bytes: int
    chunks: list[Chunk]
    positions: list[ByteRange]


class _StreamPart:
    """What was added for one stream so far."""

    __slots__ = ("adds", "batch_count", "max_timestamp_ms", "min_timestamp_ms", "record_count", "size_bytes")

    def __init__(self, first: BatchSummary) -> None:
        self.adds: list[tuple[int, Buffer, int]] = []  # ticket, data, size
        self.size_bytes = 0
        self.record_count = 0
        self.batch_count = 0
        self.min_timestamp_ms = first.base_timestamp_ms
        self.max_timestamp_ms = first.max_timestamp_ms

    def count(self, batch: BatchSummary) -> None:
        self.record_count += batch.record_count
        self.batch_count += 1
        if batch.base_timestamp_ms < self.min_timestamp_ms:
            self.min_timestamp_ms = batch.base_timestamp_ms
        if batch.max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = batch.max_timestamp_ms


class FrameBuilder:
    """Collects batches of many streams and seals them into one frame, once.

    The buffers are kept, not copied: whoever adds one leaves it alone until the frame is written.
    """

    __slots__ = ("_add_count", "_body_bytes", "_parts")

    def __init__(self) -> None:
        self._parts: dict[StreamId, _StreamPart] = {}
        self._add_count = 0
        self._body_bytes = 0

    @property
    def size_bytes(self) -> int:
        """How large the frame would be if it were sealed now."""
        return HEADER_BYTES + self._body_bytes + len(self._parts) * ENTRY_BYTES + FOOTER_BYTES

    @property
    def is_empty(self) -> bool:
        return self._add_count == 0

    @property
    def add_count(self) -> int:
        return self._add_count

    def add(self, stream: StreamId, data: Buffer, batches: Sequence[BatchSummary]) -> int:
        """Take one stream's batches, back to back in `data`, and return a ticket: 0, 1, 2…

        Adds to the same stream stay in the order of their arrival.
        """
        part = self._parts.get(stream)
        if part is None:
            part = self._parts[stream] = _StreamPart(batches[0])
        size_bytes = len(data)
        summed_bytes = 0
        for batch in batches:
            part.count(batch)
            summed_bytes += batch.size_bytes
        assert summed_bytes == size_bytes, f"batches of {summed_bytes} bytes in a buffer of {size_bytes}"
        ticket = self._add_count
        part.adds.append((ticket, data, size_bytes))
        part.size_bytes += size_bytes
        self._add_count = ticket + 1
        self._body_bytes += size_bytes
        return ticket

    def seal(
        self, *, writer: WriterId, frame_number: int, domain: DomainId, created_at_ms: int, flags: int = 0
    ) -> SealedFrame:
        """Lay the frame out and compute its checksum."""
        assert self._add_count > 0, "a frame without a chunk is never written"
        streams = sorted(self._parts)
        bodies, chunks, positions = self._lay_out(streams)
        index_byte = HEADER_BYTES + self._body_bytes
        header = _HEADER.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            flags,
            _writer_bytes(writer),
            frame_number,
            domain,
            created_at_ms,
            len(streams),
            index_byte,
        )
        index = b"".join([_encode_entry(chunk) for chunk in chunks])
        crc = crc32c(header)
        for body in bodies:
            crc = crc32c(body, crc)
        crc = crc32c(index, crc)
        buffers = [header, *bodies, index + _FOOTER.pack(crc)]
        return SealedFrame(buffers=buffers, size_bytes=self.size_bytes, chunks=chunks, positions=positions)

    def _lay_out(self, streams: Sequence[StreamId]) -> tuple[list[Buffer], list[Chunk], list[ByteRange]]:
        bodies: list[Buffer] = []
        chunks: list[Chunk] = []
        by_ticket: list[tuple[int, int]] = [(0, 0)] * self._add_count
        next_byte = HEADER_BYTES
        for stream in streams:
            part = self._parts[stream]
            chunks.append(
                Chunk(
                    stream=stream,
                    start_byte=next_byte,
                    size_bytes=part.size_bytes,
                    record_count=part.record_count,
                    batch_count=part.batch_count,
                    min_timestamp_ms=part.min_timestamp_ms,
                    max_timestamp_ms=part.max_timestamp_ms,
                )
            )
            for ticket, data, size_bytes in part.adds:
                bodies.append(data)
                by_ticket[ticket] = (next_byte, size_bytes)
                next_byte += size_bytes
        return bodies, chunks, [ByteRange(start_byte=start, size_bytes=size) for start, size in by_ticket]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame that was read back and found whole."""

    header: FrameHeader
    chunks: list[Chunk]
    size_bytes: int
    data: memoryview

    def body(self, chunk: Chunk) -> memoryview:
        """Return one chunk's record batches, without copying them."""
        return self.data[chunk.start_byte : chunk.start_byte + chunk.size_bytes]


def parse_frame(data: memoryview, *, at_byte: int = 0) -> Frame:
    """Read the frame that `data` begins with; what follows the frame is left alone.

    `at_byte` is where `data` lies in its object, for the messages. Raises `Corrupt`, and `Unsupported` for
    a newer version.
    """
    data = data.toreadonly()
    if len(data) < HEADER_BYTES + FOOTER_BYTES:
        _refuse(None, at_byte, f"at least {HEADER_BYTES + FOOTER_BYTES} bytes", len(data))
    magic, version, header_bytes, _, writer, number, domain, created, count, index_byte = _HEADER.unpack_from(data)
    if magic != MAGIC:
        _refuse(None, at_byte, f"the magic {MAGIC!r}", magic)
    if version > VERSION:
        raise Unsupported(
            f"WAL frame at byte {at_byte} has version {version}, this release reads up to {VERSION}: upgrade it"
        )
    if version < 1:
        _refuse(number, at_byte, f"a version from 1 to {VERSION}", version)
    if header_bytes < HEADER_BYTES:
        _refuse(number, at_byte, f"a header of at least {HEADER_BYTES} bytes", header_bytes)
    chunks, end_byte = _parse_index(data, number, at_byte, header_bytes, index_byte, count)
    (stored_crc,) = _FOOTER.unpack_from(data, end_byte)
    crc = crc32c(data[:end_byte])
    if crc != stored_crc:
        _refuse(number, at_byte + end_byte, f"the checksum {crc:#010x} that the bytes have", f"{stored_crc:#010x}")
    header = FrameHeader(
        writer=WriterId(writer.hex()),
        frame_number=number,
        domain=DomainId(domain),
        created_at_ms=created,
        chunk_count=count,
        chunk_index_byte=index_byte,
    )
    size_bytes = end_byte + FOOTER_BYTES
    return Frame(header=header, chunks=chunks, size_bytes=size_bytes, data=data[:size_bytes])


def _parse_index(
    data: memoryview, number: int, at_byte: int, header_bytes: int, index_byte: int, count: int
) -> tuple[list[Chunk], int]:
    """Return the chunks and the byte behind the index; bodies must fill the space between header and index."""
    limit = len(data) - FOOTER_BYTES
    if not header_bytes <= index_byte <= limit:
        _refuse(number, at_byte, f"a chunk index between bytes {header_bytes} and {limit}", index_byte)
    if count > (limit - index_byte) // ENTRY_BYTES:
        _refuse(number, at_byte, f"at most {(limit - index_byte) // ENTRY_BYTES} chunks in the bytes left", count)
    chunks: list[Chunk] = []
    entry_byte, body_byte, last_stream = index_byte, header_bytes, -1
    for _ in range(count):
        if entry_byte + ENTRY_BYTES > limit:
            _refuse(number, at_byte + entry_byte, f"an index entry of {ENTRY_BYTES} bytes", limit - entry_byte)
        length, flags, stream, start, size, records, batches, oldest, newest = _ENTRY.unpack_from(data, entry_byte)
        if not ENTRY_BYTES <= length <= limit - entry_byte:
            _refuse(number, at_byte + entry_byte, f"an entry length from {ENTRY_BYTES} to what is left", length)
        if stream <= last_stream:
            _refuse(number, at_byte + entry_byte, f"a stream behind {last_stream}", stream)
        if start != body_byte or size > index_byte - start:
            found = f"{size} bytes from {start} on"
            _refuse(number, at_byte + entry_byte, f"a body from {body_byte} on, before {index_byte}", found)
        chunks.append(
            Chunk(
                stream=StreamId(stream),
                start_byte=start,
                size_bytes=size,
                record_count=records,
                batch_count=batches,
                min_timestamp_ms=oldest,
                max_timestamp_ms=newest,
                flags=flags,
            )
        )
        entry_byte, body_byte, last_stream = entry_byte + length, start + size, stream
    if body_byte != index_byte:
        _refuse(number, at_byte, f"bodies up to the index at byte {index_byte}", f"an end at {body_byte}")
    return chunks, entry_byte


def _encode_entry(chunk: Chunk) -> bytes:
    return _ENTRY.pack(
        ENTRY_BYTES,
        chunk.flags,
        chunk.stream,
        chunk.start_byte,
        chunk.size_bytes,
        chunk.record_count,
        chunk.batch_count,
        chunk.min_timestamp_ms,
        chunk.max_timestamp_ms,
    )


def _writer_bytes(writer: WriterId) -> bytes:
    raw = bytes.fromhex(writer)
    assert len(raw) == 16, f"a writer has 32 hexadecimal digits, not {writer!r}"
    return raw


def _refuse(frame_number: int | None, at_byte: int, expected: str, found: object) -> NoReturn:
    name = "WAL frame" if frame_number is None else f"WAL frame {frame_number}"
    raise Corrupt(f"{name} is damaged at byte {at_byte}: expected {expected}, found {found}")
