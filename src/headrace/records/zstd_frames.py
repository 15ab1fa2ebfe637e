"""Find the frames of a zstd body without decompressing it.

The library neither tells where a frame ends nor whether it is whole, and allocates whatever a frame claims. The block
headers tell all three for a few bytes' reading: where each frame ends, and how much its blocks can hold at most.
"""

from typing import Final

from headrace.records.problems import InvalidBatch, Problem

ZSTD_BLOCK_BYTES: Final = 128 * 1024
"""No block of any zstd frame becomes longer than this; decoders refuse one that does."""

MAX_BLOCKS: Final = 1 << 16
"""Blocks in one body: 8 GiB when they are full, and a bound on the time that a body of empty ones can take."""

_FRAME_MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC: Final = 0x184D2A50
_SKIPPABLE_HEADER_BYTES: Final = 8
_BLOCK_HEADER_BYTES: Final = 3
_CHECKSUM_BYTES: Final = 4
_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_RLE_BLOCK: Final = 1
_COMPRESSED_BLOCK: Final = 2


def split_zstd_frames(data: memoryview, *, max_frames: int) -> list[tuple[memoryview, int]]:
    """Return each frame with the most bytes it can become; raise `InvalidBatch` unless the body is whole frames."""
    frames: list[tuple[memoryview, int]] = []
    position = 0
    budget = MAX_BLOCKS
    for _ in range(max_frames):
        start = position
        magic = int.from_bytes(data[start : start + 4], "little")
        if magic == _FRAME_MAGIC:
            position, block_count, most_bytes = _walk_frame(data, start, budget)
            budget -= block_count
            frames.append((data[start:position], most_bytes))
        elif magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
            position += _SKIPPABLE_HEADER_BYTES + int.from_bytes(data[start + 4 : start + 8], "little")
        else:
            raise _damaged(f"no frame begins at byte {start} of {len(data)}")
        if position == len(data):
            return frames
        if position > len(data):
            raise _damaged("it ends in the middle of a frame")
    raise _damaged(f"more than {max_frames} frames")


def _walk_frame(data: memoryview, start: int, max_blocks: int) -> tuple[int, int, int]:
    """Return where the frame ends, how many blocks it has and the most bytes they become.

    An end behind the data means that the frame is cut off.
    """
    if start + 5 > len(data):
        return len(data) + 1, 0, 0
    descriptor = data[start + 4]
    is_single_segment = descriptor & 0x20
    content_size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6] or (1 if is_single_segment else 0)
    window_bytes = 0 if is_single_segment else 1
    position = start + 5 + window_bytes + _DICTIONARY_ID_BYTES[descriptor & 3] + content_size_bytes
    most_bytes = 0
    for block_count in range(1, max_blocks + 1):
        header = int.from_bytes(data[position : position + _BLOCK_HEADER_BYTES], "little")
        kind, size = header >> 1 & 3, header >> 3
        most_bytes += ZSTD_BLOCK_BYTES if kind == _COMPRESSED_BLOCK else min(size, ZSTD_BLOCK_BYTES)
        position += _BLOCK_HEADER_BYTES + (1 if kind == _RLE_BLOCK else size)
        if position > len(data):
            return position, block_count, most_bytes
        if header & 1:
            return position + (_CHECKSUM_BYTES if descriptor & 0x04 else 0), block_count, most_bytes
    raise _damaged(f"more than {MAX_BLOCKS} blocks")


def _damaged(reason: str) -> InvalidBatch:
    return InvalidBatch(Problem.COMPRESSION, f"zstd body cannot be opened: {reason}")
