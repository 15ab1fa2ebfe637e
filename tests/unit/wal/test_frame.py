"""A frame's bytes: where things lie, what is refused, and what a newer writer may add."""

import struct

import pytest
from crc32c import crc32c

from headrace.errors import Corrupt, Unsupported
from headrace.model.batches import BatchSummary
from headrace.model.ids import DomainId, StreamId, WriterId
from headrace.objects.port import Buffer
from headrace.wal.frame import ENTRY_BYTES, FOOTER_BYTES, HEADER_BYTES, Chunk, FrameBuilder, SealedFrame, parse_frame

WRITER = WriterId("0123456789abcdef0123456789abcdef")


def batch(data: Buffer, *, records: int = 1, base_ms: int = 10, max_ms: int = 10) -> BatchSummary:
    return BatchSummary(
        size_bytes=len(data), record_count=records, base_timestamp_ms=base_ms, max_timestamp_ms=max_ms
    )


def seal(builder: FrameBuilder, *, frame_number: int = 7) -> SealedFrame:
    return builder.seal(writer=WRITER, frame_number=frame_number, domain=DomainId(3), created_at_ms=-5)


def two_streams() -> SealedFrame:
    builder = FrameBuilder()
    builder.add(StreamId(9), b"nine", [batch(b"nine", records=2, base_ms=50, max_ms=60)])
    builder.add(StreamId(4), b"four", [batch(b"four", base_ms=-1, max_ms=-1)])
    builder.add(StreamId(9), b"NI", [batch(b"N", records=3, base_ms=40, max_ms=41), batch(b"I")])
    return seal(builder)


def resealed(frame: bytes) -> bytes:
    """Give damaged or extended bytes a checksum that holds, so that the other checks are reached."""
    body = frame[:-FOOTER_BYTES]
    return body + crc32c(body).to_bytes(4, "big")


def patched(frame: bytes, at: int, pattern: str, value: int) -> bytes:
    raw = bytearray(frame)
    struct.pack_into(pattern, raw, at, value)
    return resealed(bytes(raw))


def test_bytes_lie_where_the_design_says() -> None:
    raw = b"".join(two_streams().buffers)
    index_byte = HEADER_BYTES + 10
    assert raw[:4] == b"HRWF"
    assert struct.unpack_from(">HHI", raw, 4) == (1, HEADER_BYTES, 0)
    assert raw[12:28].hex() == WRITER
    assert struct.unpack_from(">QIqIQ", raw, 28) == (7, 3, -5, 2, index_byte)
    assert raw[HEADER_BYTES:index_byte] == b"fournineNI"
    first = struct.unpack_from(">HHQQQIIqq", raw, index_byte)
    second = struct.unpack_from(">HHQQQIIqq", raw, index_byte + ENTRY_BYTES)
    assert first == (ENTRY_BYTES, 0, 4, HEADER_BYTES, 4, 1, 1, -1, -1)
    assert second == (ENTRY_BYTES, 0, 9, HEADER_BYTES + 4, 6, 6, 3, 10, 60)
    assert int.from_bytes(raw[-4:], "big") == crc32c(raw[:-4])


def test_tickets_tell_where_each_add_lies() -> None:
    sealed = two_streams()
    raw = b"".join(sealed.buffers)
    assert [raw[p.start_byte : p.end_byte] for p in sealed.positions] == [b"nine", b"four", b"NI"]


def test_buffers_are_handed_on_and_never_copied() -> None:
    data = memoryview(bytearray(b"batch"))
    builder = FrameBuilder()
    builder.add(StreamId(1), data, [batch(data)])
    assert any(buffer is data for buffer in seal(builder).buffers)


def test_size_is_known_before_the_frame_is_sealed() -> None:
    builder = FrameBuilder()
    assert builder.is_empty
    for stream in (5, 2, 5):
        builder.add(StreamId(stream), b"abc", [batch(b"abc")])
    sealed = seal(builder)
    assert builder.size_bytes == sealed.size_bytes == len(b"".join(sealed.buffers))
    assert builder.add_count == 3
    assert not builder.is_empty


def test_parsing_gives_back_header_chunks_and_bodies() -> None:
    sealed = two_streams()
    frame = parse_frame(memoryview(b"".join(sealed.buffers)))
    assert frame.header.writer == WRITER
    assert (frame.header.frame_number, frame.header.domain, frame.header.created_at_ms) == (7, 3, -5)
    assert (frame.header.chunk_count, frame.header.chunk_index_byte) == (2, HEADER_BYTES + 10)
    assert frame.chunks == sealed.chunks
    assert [bytes(frame.body(chunk)) for chunk in frame.chunks] == [b"four", b"nineNI"]


def test_bytes_behind_the_frame_are_left_alone() -> None:
    sealed = two_streams()
    frame = parse_frame(memoryview(b"".join(sealed.buffers) + b"next"))
    assert frame.size_bytes == sealed.size_bytes
    assert frame.chunks == sealed.chunks


def test_batches_that_do_not_fill_their_buffer_are_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="3 bytes in a buffer of 4"):
        FrameBuilder().add(StreamId(1), b"four", [batch(b"abc")])


def test_a_longer_header_and_longer_entries_of_a_newer_writer_are_read() -> None:
    more_header, more_entry = b"new header field", b"new"
    header_bytes, entry_bytes = HEADER_BYTES + len(more_header), ENTRY_BYTES + len(more_entry)
    raw = struct.pack(">4sHHI16sQIqIQ", b"HRWF", 1, header_bytes, 8, bytes(16), 1, 0, 0, 2, header_bytes + 5)
    raw += more_header + b"aabbb"
    raw += struct.pack(">HHQQQIIqq", entry_bytes, 2, 1, header_bytes, 2, 1, 1, 0, 0) + more_entry
    raw += struct.pack(">HHQQQIIqq", entry_bytes, 0, 2, header_bytes + 2, 3, 1, 1, 0, 0) + more_entry
    frame = parse_frame(memoryview(resealed(raw + bytes(4))))
    assert [bytes(frame.body(chunk)) for chunk in frame.chunks] == [b"aa", b"bbb"]
    assert [chunk.flags for chunk in frame.chunks] == [2, 0]


def test_a_newer_version_is_refused_with_what_to_do() -> None:
    raw = patched(b"".join(two_streams().buffers), 4, ">H", 2)
    with pytest.raises(Unsupported, match=r"byte 4096 has version 2, this release reads up to 1: upgrade"):
        parse_frame(memoryview(raw), at_byte=4096)


INDEX_BYTE = HEADER_BYTES + 10


@pytest.mark.parametrize(
    ("at", "pattern", "value", "said"),
    [
        (0, ">I", 0, "the magic"),
        (4, ">H", 0, "a version from 1"),
        (6, ">H", HEADER_BYTES - 1, "a header of at least"),
        (6, ">H", HEADER_BYTES + 1, "a body from"),
        (6, ">H", 0xFFFF, "a chunk index between"),
        (48, ">I", 0xFFFFFFFF, "chunks in the bytes left"),
        (48, ">I", 1, "bodies up to the index"),
        (52, ">Q", 2**64 - 1, "a chunk index between"),
        (52, ">Q", HEADER_BYTES - 1, "a chunk index between"),
        (INDEX_BYTE, ">H", ENTRY_BYTES - 1, "an entry length from"),
        (INDEX_BYTE, ">H", 0xFFFF, "an entry length from"),
        (INDEX_BYTE, ">H", ENTRY_BYTES + 1, "an index entry of"),
        (INDEX_BYTE + 4, ">Q", 9, "a stream behind 9"),
        (INDEX_BYTE + 12, ">Q", 2**63, "a body from"),
        (INDEX_BYTE + 20, ">Q", 2**63, "a body from"),
        (INDEX_BYTE + 20, ">Q", 3, "a body from"),
        (INDEX_BYTE + ENTRY_BYTES + 20, ">Q", 5, "bodies up to the index"),
    ],
)
def test_a_lie_under_a_good_checksum_is_refused(at: int, pattern: str, value: int, said: str) -> None:
    raw = patched(b"".join(two_streams().buffers), at, pattern, value)
    with pytest.raises(Corrupt, match=said):
        parse_frame(memoryview(raw))


def test_damage_is_named_with_frame_and_position() -> None:
    raw = bytearray(b"".join(two_streams().buffers))
    raw[HEADER_BYTES] ^= 1
    footer_byte = 1000 + len(raw) - FOOTER_BYTES
    with pytest.raises(Corrupt, match=rf"WAL frame 7 is damaged at byte {footer_byte}: expected the checksum"):
        parse_frame(memoryview(raw), at_byte=1000)


def test_chunks_of_one_frame_are_values() -> None:
    sealed = two_streams()
    assert sealed.chunks[0] == Chunk(
        stream=StreamId(4),
        start_byte=HEADER_BYTES,
        size_bytes=4,
        record_count=1,
        batch_count=1,
        min_timestamp_ms=-1,
        max_timestamp_ms=-1,
    )
