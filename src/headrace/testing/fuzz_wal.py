"""Fuzz targets for the bytes of the WAL: whatever comes in, the answer is data that was written or a clear error.

A target takes bytes and raises only if our code is wrong. `tools/fuzz.py` drives them guided by coverage, the tests
drive them with seeded mutations.
"""

from crc32c import crc32c

from headrace.errors import Corrupt, Unsupported
from headrace.model.batches import BatchSummary
from headrace.model.ids import DomainId, ObjectKey, StreamId, WriterId
from headrace.wal.chunks import iter_chunk
from headrace.wal.frame import FOOTER_BYTES, HEADER_BYTES, FrameBuilder, parse_frame
from headrace.wal.scan import scan_segment

_SOURCE = ObjectKey("fuzz")


def fuzz_frame(data: bytes) -> None:
    """Parse the bytes as a frame, once as they are and once with a checksum that holds; scan them as a segment."""
    _check_parse(data)
    if len(data) > FOOTER_BYTES:
        # Behind a good checksum lie the checks that random bytes would never reach.
        body = data[:-FOOTER_BYTES]
        _check_parse(body + crc32c(body).to_bytes(FOOTER_BYTES, "big"))
    _check_scan(data)


def fuzz_chunk(data: bytes) -> None:
    """Read the bytes as an extent of record batches."""
    next_byte = 0
    try:
        for batch in iter_chunk(data, source=_SOURCE, start_byte=0):
            assert bytes(batch.data) == data[next_byte : next_byte + batch.size_bytes]
            next_byte += batch.size_bytes
    except Corrupt:
        return
    assert next_byte == len(data)


def frame_seeds() -> list[bytes]:
    """Return whole frames and segments, for a fuzzer to start from."""
    one, many = FrameBuilder(), FrameBuilder()
    one.add(StreamId(1), b"body", [_summary(4)])
    for stream in (7, 3, 2**64 - 1, 3):
        many.add(StreamId(stream), b"batch-of-%d" % (stream % 10), [_summary(5), _summary(5)])
    frames = [_seal(one, frame_number=1), _seal(many, frame_number=2)]
    return [*frames, b"".join(frames), b"".join(frames) + bytes(100)]


def _summary(size_bytes: int) -> BatchSummary:
    return BatchSummary(size_bytes=size_bytes, record_count=3, base_timestamp_ms=-1, max_timestamp_ms=99)


def _seal(builder: FrameBuilder, *, frame_number: int) -> bytes:
    writer = WriterId("00112233445566778899aabbccddeeff")
    sealed = builder.seal(writer=writer, frame_number=frame_number, domain=DomainId(0), created_at_ms=1)
    return b"".join(sealed.buffers)


def _check_parse(data: bytes) -> None:
    try:
        frame = parse_frame(memoryview(data))
    except (Corrupt, Unsupported):
        return
    assert HEADER_BYTES + FOOTER_BYTES <= frame.size_bytes <= len(data)
    end_byte = frame.size_bytes - FOOTER_BYTES
    assert crc32c(data[:end_byte]) == int.from_bytes(data[end_byte : frame.size_bytes], "big")
    assert len(frame.chunks) == frame.header.chunk_count
    streams = [chunk.stream for chunk in frame.chunks]
    assert streams == sorted(set(streams))
    for chunk, next_ in zip(frame.chunks, frame.chunks[1:], strict=False):
        assert chunk.start_byte + chunk.size_bytes == next_.start_byte
    for chunk in frame.chunks:
        assert chunk.start_byte >= HEADER_BYTES
        assert chunk.start_byte + chunk.size_bytes <= frame.header.chunk_index_byte
        assert len(frame.body(chunk)) == chunk.size_bytes


def _check_scan(data: bytes) -> None:
    scan = scan_segment(data)
    next_byte = 0
    for located in scan.frames:
        assert located.start_byte == next_byte
        next_byte += located.frame.size_bytes
    assert scan.end_byte == next_byte <= len(data)
