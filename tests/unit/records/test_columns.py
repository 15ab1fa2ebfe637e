"""Both kernels turn batches into the same columns, and refuse the same lies."""

import tracemalloc

import pytest

from headrace.records.batch import BatchView, Codec
from headrace.records.columns import BuilderFull, ColumnBuilder, Walked, walk
from headrace.records.kernel import Kernel, Part
from headrace.records.problems import InvalidBatch, Problem
from headrace.records.record import Record, records_of

from .making import Batch, marker, nullable, record, varint


def records_in(batch: Batch, kernel: Kernel) -> list[Record]:
    builder = ColumnBuilder(kernel=kernel)
    builder.append(BatchView(batch.build()))
    return list(records_of(builder.columns()))


def test_every_field_of_a_record_arrives(kernel: Kernel) -> None:
    headers = ((b"a", b"1"), (b"a", None), (b"\xff\xfe", b""), (b"", b"2"))
    body = record(0, 0, b"k", b"v", headers) + record(1, -5, b"", b"") + record(2, 7, None, None)
    batch = Batch(body=body, base_offset=100, record_count=3, last_offset_delta=2)
    assert records_in(batch, kernel) == [
        Record(offset=100, timestamp_ms=1000, key=b"k", value=b"v", headers=headers),
        Record(offset=101, timestamp_ms=995, key=b"", value=b""),
        Record(offset=102, timestamp_ms=1007),
    ]


@pytest.mark.parametrize("codec", Codec)
def test_every_codec_is_opened(kernel: Kernel, codec: Codec) -> None:
    body = b"".join(record(row, 0, None, b"value" * 20) for row in range(50))
    batch = Batch(body=body, attributes=int(codec), record_count=50, last_offset_delta=49)
    assert [read.value for read in records_in(batch, kernel)] == [b"value" * 20] * 50


def test_producer_fields_are_per_record_and_sequences_wrap(kernel: Kernel) -> None:
    body = b"".join(record(row) for row in range(3))
    batch = Batch(body=body, record_count=3, last_offset_delta=2, attributes=0x10, producer_id=2**40)
    batch.producer_epoch, batch.base_sequence = 12, 2**31 - 2
    builder = ColumnBuilder(kernel=kernel)
    builder.append(BatchView(batch.build()))
    columns = builder.columns()
    assert list(columns.producer_id) == [2**40] * 3
    assert list(columns.producer_epoch) == [12] * 3
    assert list(columns.sequence) == [2**31 - 2, 2**31 - 1, 0]
    assert list(columns.attributes) == [0x10] * 3


def test_gaps_from_compaction_keep_their_offsets(kernel: Kernel) -> None:
    body = record(2) + record(5) + record(6)
    batch = Batch(body=body, base_offset=10, record_count=3, last_offset_delta=9)
    builder = ColumnBuilder(kernel=kernel)
    builder.append(BatchView(batch.build()))
    columns = builder.columns()
    assert list(columns.offset) == [12, 15, 16]
    assert (columns.start_offset, columns.end_offset) == (10, 20)


@pytest.mark.parametrize("attributes", [0, 1, 4])
def test_empty_batch_gives_no_rows_and_its_range(kernel: Kernel, attributes: int) -> None:
    builder = ColumnBuilder(kernel=kernel)
    batch = Batch(body=b"", attributes=attributes, base_offset=10, record_count=0, last_offset_delta=4).build()
    builder.append(BatchView(batch))
    assert builder.columns().row_count == 0
    assert (builder.columns().start_offset, builder.columns().end_offset) == (10, 15)


def test_control_batch_is_a_row_like_any_other_and_says_so(kernel: Kernel) -> None:
    batch = Batch(body=marker(commit=True), attributes=0x30, producer_id=5, producer_epoch=1)
    builder = ColumnBuilder(kernel=kernel)
    builder.append(BatchView(batch.build()))
    columns = builder.columns()
    assert list(columns.attributes) == [0x30]
    assert list(columns.sequence) == [-1]
    assert [read.key for read in records_of(columns)] == [b"\x00\x00\x00\x01"]


def test_timestamps_wrap_as_in_java(kernel: Kernel) -> None:
    # -1 and the largest long in one batch: the delta leaves 64 bits, and the sum comes back.
    body = record(0, 0) + record(1, -(2**63))
    batch = Batch(body=body, base_timestamp_ms=-1, record_count=2, last_offset_delta=1)
    assert [read.timestamp_ms for read in records_in(batch, kernel)] == [-1, 2**63 - 1]


def test_many_batches_share_one_set_of_columns(kernel: Kernel) -> None:
    builder = ColumnBuilder(kernel=kernel)
    for number in range(20):
        body = record(0, 0, None if number % 3 else b"k", b"%d" % number, ((b"h", None),) * (number % 4))
        builder.append(BatchView(Batch(body=body, base_offset=number).build()))
    read = list(records_of(builder.columns()))
    assert [one.value for one in read] == [b"%d" % number for number in range(20)]
    assert [one.key is None for one in read] == [number % 3 != 0 for number in range(20)]
    assert [len(one.headers) for one in read] == [number % 4 for number in range(20)]
    assert builder.columns().null_key_count == 13


FIELD_AT_END = b"\x00" + varint(0) + varint(0)


def framed(content: bytes) -> bytes:
    return varint(len(content)) + content


@pytest.mark.parametrize(
    "body",
    [
        b"\x80" * 6 + b"\x00",
        b"\xff\xff\xff\xff\x1f" + bytes(10),
        varint(-1) + bytes(10),
        varint(100) + bytes(10),
        varint(0) + bytes(10),
        framed(b"\x00" + b"\xff" * 9 + b"\x02" + bytes(6)),
        framed(b"\x00" + b"\xff" * 12),
        framed(FIELD_AT_END + varint(-2) + bytes(6)),
        framed(FIELD_AT_END + varint(2**31 - 1) + bytes(6)),
        framed(FIELD_AT_END + varint(-(2**31)) + bytes(6)),
        framed(FIELD_AT_END + varint(7) + bytes(6)),
        framed(FIELD_AT_END + nullable(None) + varint(-3) + bytes(4)),
        framed(FIELD_AT_END + nullable(None) + nullable(None) + varint(-1)),
        framed(FIELD_AT_END + nullable(None) + nullable(None) + varint(2**31 - 1)),
        framed(FIELD_AT_END + nullable(None) + nullable(None) + varint(1) + varint(0)),
        framed(FIELD_AT_END + nullable(None) + nullable(None) + varint(1) + varint(-1) + varint(0)),
        framed(FIELD_AT_END + nullable(None) + nullable(None) + varint(1) + varint(5) + bytes(3)),
        framed(FIELD_AT_END + nullable(None) + nullable(None) + varint(1) + varint(0) + varint(-2)),
        framed(FIELD_AT_END + nullable(None) + nullable(None) + varint(1) + varint(0) + varint(1)),
        framed(FIELD_AT_END + nullable(None) + nullable(None) + varint(0) + b"\x00"),
        framed(b"\x00" + varint(0) + b"\x80\x80\x80\x80"),
        record(-1),
        record(1),
        record(2**31 - 1),
    ],
)
def test_a_record_that_lies_is_refused(kernel: Kernel, body: bytes) -> None:
    view = BatchView(Batch(body=body).build())
    builder = ColumnBuilder(kernel=kernel)
    with pytest.raises(InvalidBatch) as caught:
        builder.append(view)
    assert caught.value.problem is Problem.RECORD
    with pytest.raises(InvalidBatch) as walked:
        walk(view, dense=False, kernel=kernel)
    assert str(walked.value) == str(caught.value)


@pytest.mark.parametrize(("count", "last_offset_delta"), [(2, 2), (1, 1), (100, 100), (2**31 - 1, 2**31 - 1), (0, 0)])
def test_a_count_that_lies_is_refused(kernel: Kernel, count: int, last_offset_delta: int) -> None:
    body = record(0) + record(1)
    if count == 2:
        body += b"\x00"
    batch = Batch(body=body, record_count=count, last_offset_delta=last_offset_delta)
    with pytest.raises(InvalidBatch) as caught:
        records_in(batch, kernel)
    assert caught.value.problem is Problem.COUNT


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 5)])
def test_offsets_must_rise_and_stay_within_the_batch(kernel: Kernel, deltas: tuple[int, int]) -> None:
    batch = Batch(body=b"".join(record(delta) for delta in deltas), record_count=2, last_offset_delta=3)
    with pytest.raises(InvalidBatch, match="offset is not behind"):
        records_in(batch, kernel)


def test_a_count_of_two_billion_allocates_nothing(kernel: Kernel) -> None:
    view = BatchView(Batch(record_count=2**31 - 1, last_offset_delta=2**31 - 1, body=record() * 5).build())
    builder = ColumnBuilder(kernel=kernel)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidBatch):
            builder.append(view)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_memory_of_columns_is_bounded_by_the_bytes_they_came_from(kernel: Kernel) -> None:
    # The smallest records and headers there are cost the most column bytes per byte of input.
    many_headers = record(0, 0, None, None, ((b"", None),) * 3000)
    tiny = b"".join(record(row, 0, None, None) for row in range(1, 3000))
    view = BatchView(Batch(body=many_headers + tiny, record_count=3000, last_offset_delta=2999).build())
    builder = ColumnBuilder(kernel=kernel)
    builder.append(view)
    assert sum(len(buffer) for buffer in builder.columns().buffers) < 16 * view.size_bytes


def test_a_batch_that_fails_leaves_the_builder_as_it_was(kernel: Kernel) -> None:
    builder = ColumnBuilder(kernel=kernel)
    good = Batch(body=record(0, 0, b"k", None, ((b"h", b"x"),))).build()
    builder.append(BatchView(good))
    before = list(records_of(builder.columns()))
    bad = Batch(
        body=record(0, 0, None, b"zzz", ((b"h", None),)) + record(1)[:-1], record_count=2, last_offset_delta=1
    )
    with pytest.raises(InvalidBatch):
        builder.append(BatchView(bad.build()))
    assert list(records_of(builder.columns())) == before
    builder.append(BatchView(good))
    assert list(records_of(builder.columns())) == before * 2


def test_clear_keeps_buffers_that_nobody_sees(kernel: Kernel) -> None:
    builder = ColumnBuilder(kernel=kernel)
    view = BatchView(Batch(body=record(value=b"x" * 1000)).build())
    builder.append(view)
    buffer = builder.columns().buffers[Part.VALUE_DATA].obj
    first_id = id(buffer)
    del buffer
    builder.clear()
    builder.append(view)
    assert id(builder.columns().buffers[Part.VALUE_DATA].obj) == first_id


def test_columns_that_are_still_held_survive_a_clear(kernel: Kernel) -> None:
    builder = ColumnBuilder(kernel=kernel)
    builder.append(BatchView(Batch(body=record(key=None, value=b"first")).build()))
    held = builder.columns()
    builder.clear()
    assert builder.row_count == 0
    builder.append(BatchView(Batch(body=record(key=b"key", value=b"other")).build()))
    assert [read.value for read in records_of(held)] == [b"first"]
    assert [read.key for read in records_of(builder.columns())] == [b"key"]


def test_opened_batch_obeys_the_limit(kernel: Kernel) -> None:
    batch = Batch(body=record(value=bytes(5000)), attributes=int(Codec.ZSTD)).build()
    with pytest.raises(InvalidBatch) as caught:
        ColumnBuilder(max_open_bytes=5000, kernel=kernel).append(BatchView(batch))
    assert caught.value.problem is Problem.TOO_LARGE


def test_full_builder_says_so_and_stays_usable(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.records.columns.MAX_INT32", 1500)
    builder = ColumnBuilder(kernel=kernel)
    view = BatchView(Batch(body=record(value=bytes(1000))).build())
    builder.append(view)
    with pytest.raises(BuilderFull, match="leave no room"):
        builder.append(view)
    assert builder.row_count == 1
    builder.clear()
    builder.append(view)


def test_many_small_batches_do_not_pass_what_offsets_can_say(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.records.columns.MAX_INT32", 3000)
    builder = ColumnBuilder(kernel=kernel)
    view = BatchView(Batch(body=record(value=bytes(300))).build())
    for _ in range(10):
        builder.append(view)
    # The buffers double as they grow, and must not grow past the limit by that.
    with pytest.raises(BuilderFull, match="leave no room"):
        builder.append(view)
    assert (builder.row_count, builder.data_bytes) == (10, 3000)


def test_walk_tells_the_true_timestamps_without_columns(kernel: Kernel) -> None:
    body = record(0, 0) + record(1, 50) + record(2, -5) + record(3, 50)
    view = BatchView(Batch(body=body, record_count=4, last_offset_delta=3, max_timestamp_ms=1).build())
    assert walk(view, dense=True, kernel=kernel) == Walked(
        min_timestamp_ms=995, max_timestamp_ms=1050, max_timestamp_offset_delta=1
    )


def test_walk_holds_producers_to_offsets_without_gaps(kernel: Kernel) -> None:
    view = BatchView(Batch(body=record(0) + record(2), record_count=2, last_offset_delta=2).build())
    walk(view, dense=False, kernel=kernel)
    with pytest.raises(InvalidBatch, match="offset is not behind"):
        walk(view, dense=True, kernel=kernel)
