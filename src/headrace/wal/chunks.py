"""Record batches as they come back from a WAL object: check them, and give them their offsets.

An index entry's extent is a run of accepted batches, back to back, as produced: their base offsets are what the
client wrote. Whoever serves them stamps the offsets that the commit gave; base offset and leader epoch lie outside
the batch's CRC.

Must stay true: bytes that are not the batches that were written raise `Corrupt`, with object and position. They are
never skipped, because a skipped batch would be a lost offset.
"""

from collections.abc import Iterator
from typing import NamedTuple

from headrace.errors import Corrupt
from headrace.model.ids import ObjectKey
from headrace.objects.port import Buffer
from headrace.records.batch import BatchView
from headrace.records.problems import InvalidBatch
from headrace.records.stamping import NO_LEADER_EPOCH, stamp_offset


def iter_chunk(data: Buffer, *, source: ObjectKey, start_byte: int) -> Iterator[BatchView]:
    """Go through the batches of an extent that lies at `start_byte` of `source`; sizes, format and CRC are checked.

    Raises `Corrupt` at the first batch that is not what was written, or not whole.
    """
    view = memoryview(data).toreadonly()
    next_byte = 0
    while next_byte < len(view):
        batch = _open(view, next_byte, source, start_byte)
        yield batch
        next_byte += batch.size_bytes


def stamp_offsets(
    data: bytearray | memoryview, start_offset: int, *, end_offset: int, source: ObjectKey, start_byte: int
) -> None:
    """Write base offsets into the batches of an extent, in place; the entry says where they must end.

    Every batch is checked before the first one is stamped. Raises `Corrupt` if the batches do not cover exactly the
    offsets from `start_offset` to `end_offset`.
    """
    placed: list[tuple[int, int, int]] = []  # first byte, size, base offset
    next_byte, next_offset = 0, start_offset
    for batch in iter_chunk(data, source=source, start_byte=start_byte):
        placed.append((next_byte, batch.size_bytes, next_offset))
        next_byte += batch.size_bytes
        next_offset += batch.last_offset_delta + 1
    if next_offset != end_offset:
        raise Corrupt(
            f"object {source} holds offsets {start_offset} to {next_offset} in the {len(data)} bytes "
            f"from {start_byte} on, but the index says that they end at {end_offset}"
        )
    view = memoryview(data)
    for first_byte, size_bytes, base_offset in placed:
        batch_bytes = view[first_byte : first_byte + size_bytes]
        stamp_offset(batch_bytes, base_offset=base_offset, leader_epoch=NO_LEADER_EPOCH)


class ChunkPart(NamedTuple):
    """Bytes of an extent and the offsets they hold; `why` says what is wrong, empty if nothing is."""

    start_byte: int
    end_byte: int
    start_offset: int
    end_offset: int
    why: str = ""


def survey_chunk(data: Buffer, start_offset: int, *, end_offset: int, size_bytes: int) -> list[ChunkPart]:
    """Say which bytes of a damaged extent are still batches that were written, and where their offsets lie.

    `data` may be shorter than the `size_bytes` that the index names. There are up to three parts: intact batches from
    the beginning, whose offsets are counted up; the damage; and intact batches at the end, whose offsets are counted
    down. So nothing that a damaged header says of its offsets is believed. All of it is damage where the batches do
    not fit the offsets of the index.
    """
    batches, why = _walk(memoryview(data).toreadonly(), size_bytes)
    whole = ChunkPart(
        0, size_bytes, start_offset, end_offset, why or "its batches cover other offsets than the index"
    )
    counts = [count for _, _, count in batches]
    if None not in counts:
        covered = sum(count for count in counts if count is not None)
        return (
            [ChunkPart(0, size_bytes, start_offset, end_offset)] if covered == end_offset - start_offset else [whole]
        )
    first = counts.index(None)
    last = len(counts) - 1 - counts[::-1].index(None)
    intact_end = start_offset + sum(count for count in counts[:first] if count is not None)
    intact_start = end_offset - sum(count for count in counts[last + 1 :] if count is not None)
    if intact_start - intact_end < last - first + 1:
        return [whole]
    first_byte, last_byte = batches[first][0], batches[last][1]
    parts = [
        ChunkPart(0, first_byte, start_offset, intact_end),
        ChunkPart(first_byte, last_byte, intact_end, intact_start, why),
        ChunkPart(last_byte, size_bytes, intact_start, end_offset),
    ]
    return [part for part in parts if part.end_byte > part.start_byte]


def _walk(view: memoryview, size_bytes: int) -> tuple[list[tuple[int, int, int | None]], str]:
    """Return the batches of an extent (first byte, end byte, count of offsets or `None`), and the first problem.

    Behind a batch whose length cannot be believed, all the rest counts as one that is wrong.
    """
    batches: list[tuple[int, int, int | None]] = []
    why = ""
    at_byte = 0
    while at_byte < size_bytes:
        end_byte, count = size_bytes, None
        try:
            batch = BatchView(view, at_byte)
            end_byte = at_byte + batch.size_bytes
            batch.check()
            count = batch.last_offset_delta + 1
        except InvalidBatch as error:
            is_short = len(view) < size_bytes and end_byte == size_bytes
            why = why or (f"the object ends {size_bytes - len(view)} bytes too early" if is_short else str(error))
        batches.append((at_byte, end_byte, count))
        at_byte = end_byte
    return batches, why


def _open(view: memoryview, at_byte: int, source: ObjectKey, start_byte: int) -> BatchView:
    try:
        batch = BatchView(view, at_byte)
        batch.check()
    except InvalidBatch as error:
        raise Corrupt(f"object {source} is damaged at byte {start_byte + at_byte}: {error}") from error
    return batch
