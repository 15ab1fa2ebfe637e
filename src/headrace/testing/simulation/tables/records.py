"""What clients of this scenario send: batches with keys, headers, nulls and codecs, and some that cannot be opened.

A record is compared by its imprint: all that a consumer sees of it, in bytes. A batch that cannot be opened has one
imprint per offset, made of its sealed body.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.errors import HeadraceError
from headrace.model.batches import NO_PRODUCER, NO_SEQUENCE, BatchSummary
from headrace.records.batch import BatchView, Codec, iter_batches
from headrace.records.columns import ColumnBuilder, Columns
from headrace.records.encoder import BatchEncoder
from headrace.records.problems import InvalidBatch
from headrace.records.record import Header, Record, columns_of, records_of
from headrace.records.stamping import ATTRIBUTES_AT, stamp_crc
from headrace.runtime.rng import Rng

SEALED = b"sealed "
"""What the imprints of records begin with that nobody can open."""

MAX_RECORDS = 4
SEALED_RATE = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One batch, and the imprints of its records in their order."""

    data: bytes
    imprints: Sequence[bytes]

    @property
    def summary(self) -> BatchSummary:
        return BatchView(memoryview(self.data)).summary()


def imprint_of(record: Record) -> bytes:
    """Return all that a consumer sees of a record but its offset."""
    return msgspec.msgpack.encode((record.timestamp_ms, record.key, record.value, record.headers))


def imprints_of(columns: Columns) -> dict[int, bytes]:
    """Return the imprints of all rows by their offsets."""
    return {record.offset: imprint_of(record) for record in records_of(columns)}


def read_imprints(data: memoryview) -> list[tuple[int, bytes]]:
    """Return offset and imprint of every record of batches that lie back to back, in their order."""
    found: list[tuple[int, bytes]] = []
    for view in iter_batches(data):
        builder = ColumnBuilder()
        try:
            builder.append(view)
        except InvalidBatch:
            offsets = range(view.base_offset, view.end_offset)
            found += [(offset, _sealed(view, offset - view.base_offset)) for offset in offsets]
        else:
            found += [(record.offset, imprint_of(record)) for record in records_of(builder.columns())]
    return found


def make_sent(
    names: Sequence[bytes],
    *,
    rng: Rng,
    at_ms: int,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
) -> Sent:
    """Return a batch with one record per name; a name is found nowhere else, so neither is an imprint."""
    records = [_record(offset, name, rng, at_ms) for offset, name in enumerate(names)]
    columns = columns_of(records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence)
    if rng.random() < SEALED_RATE:
        return _make_sealed(columns)
    codec = (Codec.NONE, Codec.NONE, Codec.GZIP, Codec.ZSTD, Codec.LZ4)[rng.randrange(0, 5)]
    data = bytes(BatchEncoder(codec=codec).encode(columns))
    return Sent(data=data, imprints=[imprint_of(record) for record in records])


def _record(offset: int, name: bytes, rng: Rng, at_ms: int) -> Record:
    kind = rng.randrange(0, 5)
    headers: tuple[Header, ...] = ((b"h", name), (b"h", None), (b"", b""))[: rng.randrange(0, 4)]
    return Record(
        offset=offset,
        timestamp_ms=at_ms + rng.randrange(-50, 50),
        key=(name, b"", None, None, name)[kind],
        value=(b"", name, name, name * 9, None)[kind],
        headers=headers,
    )


def _make_sealed(columns: Columns) -> Sent:
    """Return a batch that says it is compressed and is not: its checksum is right, its body cannot be opened."""
    data = bytearray(BatchEncoder().encode(columns))
    data[ATTRIBUTES_AT + 1] |= Codec.GZIP
    stamp_crc(memoryview(data))
    view = BatchView(memoryview(data))
    try:
        ColumnBuilder().append(view)
    except HeadraceError:
        return Sent(data=bytes(data), imprints=[_sealed(view, number) for number in range(view.record_count)])
    raise AssertionError("what is no gzip cannot be opened as gzip")


def _sealed(view: BatchView, number: int) -> bytes:
    return b"%s%d of %s" % (SEALED, number, bytes(view.body))
