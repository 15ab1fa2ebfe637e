"""Record batches as they come back from a WAL object: check them, and give them their offsets.

An index entry's extent is a run of accepted batches, back to back, as produced: their base offsets are what the
client wrote. Whoever serves them stamps the offsets that the commit gave; base offset and leader epoch lie outside
the batch's CRC.

Must stay true: bytes that are not the batches that were written raise `Corrupt`, with object and position. They are
never skipped, because a skipped batch would be a lost offset.
"""

from collections.abc import Iterator

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


def _open(view: memoryview, at_byte: int, source: ObjectKey, start_byte: int) -> BatchView:
    try:
        batch = BatchView(view, at_byte)
        batch.check()
    except InvalidBatch as error:
        raise Corrupt(f"object {source} is damaged at byte {start_byte + at_byte}: {error}") from error
    return batch
