"""Compress and open the bodies of batches, never into more bytes than the caller allows.

What is opened comes from strangers, and a compressed header may claim anything. So every decoder learns the limit
before it allocates, and a claim is compared with the limit before it is believed. Memory stays within about twice the
limit plus the input, whatever the input says.

Several frames in one body are treated as the Java client treats them: gzip members, zstd frames and xerial streams
are read to the end, lz4 is one frame. Unlike the Java client we refuse bytes behind the last frame instead of
dropping them: a record that is there must not vanish.
"""

import zlib
from collections.abc import Callable
from typing import Final

import cramjam
import lz4.frame
import zstandard

from headrace.records.batch import Codec
from headrace.records.problems import InvalidBatch, Problem
from headrace.records.zstd_frames import split_zstd_frames

MAX_FRAMES: Final = 1024
"""Frames or members in one body. Producers write one; a megabyte of empty members would cost a second of CPU."""

GZIP_WBITS: Final = 31
GZIP_STEP_BYTES: Final = 1 << 18
"""What a gzip member is given at first: the library copies all it was given and did not use, for every member."""
ZSTD_LEVEL: Final = 3
LZ4_STEP_BYTES: Final = 1 << 16
XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
XERIAL_BLOCK_BYTES: Final = 32 * 1024
SNAPPY_MAX_PREAMBLE_BYTES: Final = 5


def compress(codec: Codec, data: bytes | bytearray | memoryview, *, level: int | None = None) -> bytes | memoryview:
    """Compress a body as the Java client would: xerial-framed snappy, lz4 with independent blocks.

    `level` is the codec's own; `None` takes its default, and snappy knows none.
    """
    return _COMPRESSORS[codec](memoryview(data), level)


def decompress(codec: Codec, data: memoryview, *, max_output_bytes: int) -> bytes | memoryview:
    """Open a body. Return the input itself where nothing is compressed.

    Raise `InvalidBatch` with `TOO_LARGE` as soon as the output is known to pass the limit, and with `COMPRESSION`
    when the bytes are not what the codec says.
    """
    assert max_output_bytes >= 0, "a limit is not negative"
    return _DECOMPRESSORS[codec](data, max_output_bytes)


def _too_large(codec: Codec, limit_bytes: int, claim_bytes: int | None = None) -> InvalidBatch:
    claim = f"claims {claim_bytes} bytes" if claim_bytes is not None else "goes on"
    return InvalidBatch(Problem.TOO_LARGE, f"{codec.name.lower()} body {claim} past the limit of {limit_bytes} bytes")


def _damaged(codec: Codec, reason: object) -> InvalidBatch:
    return InvalidBatch(Problem.COMPRESSION, f"{codec.name.lower()} body cannot be opened: {reason}")


def _stored(data: memoryview, max_output_bytes: int) -> memoryview:
    if len(data) > max_output_bytes:
        raise _too_large(Codec.NONE, max_output_bytes, len(data))
    return data


def _compress_gzip(data: memoryview, level: int | None) -> bytes:
    stream = zlib.compressobj(level=zlib.Z_DEFAULT_COMPRESSION if level is None else level, wbits=GZIP_WBITS)
    return stream.compress(data) + stream.flush()


def _decompress_gzip(data: memoryview, max_output_bytes: int) -> bytes:
    parts: list[bytes] = []
    room_bytes = max_output_bytes
    position = 0
    for _ in range(MAX_FRAMES):
        stream = zlib.decompressobj(wbits=GZIP_WBITS)
        step_bytes = GZIP_STEP_BYTES
        while not stream.eof:
            piece = data[position : position + step_bytes]
            if not piece:
                raise _damaged(Codec.GZIP, "it ends in the middle of a member")
            try:
                # One byte more than there is room for tells "full" from "too much"; zero would mean no limit.
                part = stream.decompress(piece, room_bytes + 1)
            except zlib.error as error:
                raise _damaged(Codec.GZIP, error) from None
            if len(part) > room_bytes:
                raise _too_large(Codec.GZIP, max_output_bytes)
            parts.append(part)
            room_bytes -= len(part)
            position += len(piece) - len(stream.unused_data)
            step_bytes *= 2
        if position == len(data):
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise _damaged(Codec.GZIP, f"more than {MAX_FRAMES} members")


def _compress_snappy(data: memoryview, _level: int | None) -> bytes:
    parts = [XERIAL_HEADER]
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + XERIAL_BLOCK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, max_output_bytes: int) -> memoryview:
    """Open xerial framing or, without its magic, one raw block."""
    blocks = _xerial_blocks(data) if _is_xerial(data, 0) else [data]
    sizes = [_snappy_size(block) for block in blocks]
    if sum(sizes) > max_output_bytes:
        raise _too_large(Codec.SNAPPY, max_output_bytes, sum(sizes))
    output = memoryview(bytearray(sum(sizes)))
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        try:
            cramjam.snappy.decompress_raw_into(block, output[position : position + size])
        except cramjam.DecompressionError as error:
            raise _damaged(Codec.SNAPPY, error) from None
        position += size
    return output.toreadonly()


def _is_xerial(data: memoryview, position: int) -> bool:
    return bytes(data[position : position + len(XERIAL_MAGIC)]) == XERIAL_MAGIC


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks: list[memoryview] = []
    position = 0
    while position < len(data):
        if _is_xerial(data, position):
            # A second header in mid-stream is what joined xerial streams look like; the Java reader skips it, too.
            position += len(XERIAL_HEADER)
            if position > len(data):
                raise _damaged(Codec.SNAPPY, "it ends in the xerial header")
            continue
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        if size < 0 or size > len(data) - position:
            raise _damaged(Codec.SNAPPY, f"a xerial block of {size} bytes does not fit at byte {position}")
        blocks.append(data[position : position + size])
        position += size
    return blocks


def _snappy_size(block: memoryview) -> int:
    """Read how long a raw block says it becomes: a plain varint of at most 32 bits."""
    size = 0
    for index, byte in enumerate(block[:SNAPPY_MAX_PREAMBLE_BYTES]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if size >= 1 << 32:
                break
            return size
    raise _damaged(Codec.SNAPPY, "it does not begin with a length")


def _compress_lz4(data: memoryview, level: int | None) -> bytes:
    # Kafka's reader takes independent blocks only, and 64 KiB blocks are what its writer makes.
    frame = lz4.frame.compress(
        data,
        compression_level=level or 0,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        content_checksum=False,
        store_size=False,
    )
    return bytes(frame)


def _decompress_lz4(data: memoryview, max_output_bytes: int) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    parts: list[bytes] = []
    room_bytes = max_output_bytes
    # The step bounds what one call allocates. It grows with the input, because each call copies the input's rest.
    step_bytes = max(LZ4_STEP_BYTES, 4 * len(data))
    source: memoryview | bytes = data
    while not stream.eof:
        try:
            part = stream.decompress(source, max_length=min(step_bytes, room_bytes + 1))
        except (RuntimeError, EOFError) as error:
            raise _damaged(Codec.LZ4, error) from None
        if len(part) > room_bytes:
            raise _too_large(Codec.LZ4, max_output_bytes)
        if not part and not stream.eof:
            raise _damaged(Codec.LZ4, "it ends in the middle of the frame")
        parts.append(part)
        room_bytes -= len(part)
        source = b""
    if stream.unused_data:
        raise _damaged(Codec.LZ4, f"{len(stream.unused_data)} bytes behind the frame")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_zstd(data: memoryview, level: int | None) -> bytes:
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL if level is None else level).compress(data)


def _decompress_zstd(data: memoryview, max_output_bytes: int) -> bytes:
    frames = split_zstd_frames(data, max_frames=MAX_FRAMES)
    decompressor = zstandard.ZstdDecompressor()
    parts: list[bytes] = []
    room_bytes = max_output_bytes
    for frame, most_bytes in frames:
        part = _open_zstd_frame(decompressor, frame, most_bytes, room_bytes, max_output_bytes)
        parts.append(part)
        room_bytes -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _open_zstd_frame(
    decompressor: zstandard.ZstdDecompressor,
    frame: memoryview,
    most_bytes: int,
    room_bytes: int,
    max_output_bytes: int,
) -> bytes:
    claim_bytes = _zstd_claim(frame)
    # The library allocates what a frame claims, whatever limit it was given: so the claim is judged first. And it
    # takes a frame that claims to be empty for empty, without a look inside.
    if claim_bytes > room_bytes:
        raise _too_large(Codec.ZSTD, max_output_bytes, claim_bytes)
    if claim_bytes > most_bytes or claim_bytes == 0 < most_bytes:
        raise _damaged(Codec.ZSTD, f"claims {claim_bytes} bytes, its blocks hold up to {most_bytes}")
    try:
        part = decompressor.decompress(frame, max_output_size=max(1, min(room_bytes + 1, most_bytes)))
    except zstandard.ZstdError as error:
        # The frame is whole, so where it claims no size this one error means that the output did not fit.
        if claim_bytes < 0 and room_bytes < most_bytes and "full frame" in str(error):
            raise _too_large(Codec.ZSTD, max_output_bytes) from None
        raise _damaged(Codec.ZSTD, error) from None
    if len(part) > room_bytes:
        raise _too_large(Codec.ZSTD, max_output_bytes)
    return part


def _zstd_claim(frame: memoryview) -> int:
    """Return the size that a frame states, or −1 if it states none."""
    try:
        return zstandard.frame_content_size(frame)
    except zstandard.ZstdError as error:
        raise _damaged(Codec.ZSTD, error) from None


_COMPRESSORS: Final[dict[Codec, Callable[[memoryview, int | None], bytes | memoryview]]] = {
    Codec.NONE: lambda data, _level: data,
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: _compress_zstd,
}
_DECOMPRESSORS: Final[dict[Codec, Callable[[memoryview, int], bytes | memoryview]]] = {
    Codec.NONE: _stored,
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
