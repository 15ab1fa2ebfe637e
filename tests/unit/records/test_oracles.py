"""What other clients write we read, and what we write they read, record for record."""

import warnings
from types import SimpleNamespace
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import cramjam
import pytest

from headrace.records.batch import BatchView, Codec
from headrace.records.columns import ColumnBuilder, walk
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of, records_of

with warnings.catch_warnings():
    # kafka-python loads its schemas through a deprecated call while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    import kafka.record.default_records as kafka_records

BASE_TIMESTAMP_MS = 1_700_000_000_000
RECORDS = [
    Record(
        offset=row,
        timestamp_ms=BASE_TIMESTAMP_MS + (row * 7919) % 1000,
        key=None if row % 3 == 0 else b"" if row % 7 == 0 else b"key-%d" % row,
        value=None if row % 11 == 0 else b"value " * (row % 40),
        headers=tuple(
            (f"größe{number}".encode(), None if number % 2 else b"x" * number) for number in range(row % 4)
        ),
    )
    for row in range(300)
]
OTHERS = {"aiokafka": aiokafka_records, "kafka-python": kafka_records}


@pytest.fixture(params=OTHERS)
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    # kafka-python frames snappy itself and takes the raw blocks from python-snappy, for which cramjam stands in.
    raw_snappy = SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)),
    )
    monkeypatch.setattr(kafka.codec, "snappy", raw_snappy)
    return OTHERS[request.param]


def written_by(other: Any, codec: Codec, records: list[Record], **fields: int) -> bytes:
    arguments = {"is_transactional": 0, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1} | fields
    builder = other.DefaultRecordBatchBuilder(
        magic=2, compression_type=int(codec), batch_size=10_000_000, **arguments
    )
    for record in records:
        headers = [(key.decode(), value) for key, value in record.headers]
        builder.append(record.offset, record.timestamp_ms, record.key, record.value, headers)
    return bytes(builder.build())


def read_by(other: Any, data: bytes) -> list[Record]:
    batch = other.DefaultRecordBatch(data)
    assert batch.validate_crc()
    return [
        Record(
            offset=read.offset,
            timestamp_ms=read.timestamp,
            key=read.key,
            value=read.value,
            headers=tuple((key.encode(), value) for key, value in read.headers),
        )
        for read in batch
    ]


@pytest.mark.parametrize("codec", Codec)
def test_batches_of_other_clients_are_read(other: Any, codec: Codec) -> None:
    data = written_by(other, codec, RECORDS, is_transactional=1, producer_id=9, producer_epoch=2, base_sequence=5)
    view = BatchView(memoryview(data))
    view.check_produced()
    assert view.codec is codec
    assert walk(view, dense=True).max_timestamp_ms == view.max_timestamp_ms
    builder = ColumnBuilder()
    builder.append(view)
    columns = builder.columns()
    assert list(records_of(columns)) == RECORDS
    assert set(columns.producer_id) == {9}
    assert list(columns.sequence) == list(range(5, 305))


@pytest.mark.parametrize("codec", Codec)
def test_our_batches_are_read_by_other_clients(other: Any, codec: Codec) -> None:
    data = BatchEncoder(codec=codec).encode(columns_of(RECORDS, producer_id=9, producer_epoch=2, base_sequence=5))
    view = BatchView(data)
    assert view.codec is codec and view.size_bytes == len(data)
    assert read_by(other, bytes(data)) == RECORDS


def test_uncompressed_batch_equals_the_other_clients_byte_for_byte(other: Any) -> None:
    theirs = written_by(other, Codec.NONE, RECORDS, producer_id=9, producer_epoch=2, base_sequence=5)
    ours = BatchEncoder().encode(columns_of(RECORDS, producer_id=9, producer_epoch=2, base_sequence=5))
    # The leader epoch differs: clients write 0 or -1 there, and the broker stamps it.
    assert theirs[:12] == bytes(ours[:12])
    assert theirs[16:] == bytes(ours[16:])


def test_batch_with_holes_is_read_by_other_clients(other: Any) -> None:
    sparse = RECORDS[5:200:7]
    data = BatchEncoder(codec=Codec.ZSTD).encode(columns_of(sparse), start_offset=2, end_offset=400)
    assert read_by(other, bytes(data)) == sparse


def test_empty_batch_is_read_by_other_clients(other: Any) -> None:
    data = BatchEncoder().encode(columns_of([]), start_offset=2, end_offset=9)
    assert read_by(other, bytes(data)) == []
    assert other.DefaultRecordBatch(bytes(data)).next_offset == 9
