"""Record batches for tests: made from values, and opened again."""

from collections.abc import Sequence

from headrace.model.batches import NO_PRODUCER, NO_SEQUENCE
from headrace.records.batch import iter_batches
from headrace.records.columns import ColumnBuilder
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of, records_of


def make_batch(
    values: Sequence[bytes],
    *,
    at_ms: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """Return one batch, as a producer would send it."""
    records = [Record(offset=n, timestamp_ms=at_ms + n, value=value) for n, value in enumerate(values)]
    columns = columns_of(records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence)
    return bytes(BatchEncoder().encode(columns))


def read_batches(data: memoryview) -> list[Record]:
    """Return the records of batches that lie back to back."""
    builder = ColumnBuilder()
    for view in iter_batches(data):
        builder.append(view)
    return list(records_of(builder.columns()))
