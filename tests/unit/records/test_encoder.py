"""Columns become batches that hold the same records, within the limit, holes included."""

from struct import pack

import pytest

from headrace.records.batch import BatchView, Codec, iter_batches
from headrace.records.columns import ColumnBuilder, Columns
from headrace.records.encoder import BatchEncoder
from headrace.records.kernel import Kernel, Part
from headrace.records.problems import InvalidBatch, Problem
from headrace.records.record import Record, columns_of, records_of

from .making import Batch, marker, record


def plain(count: int, first_offset: int = 0, value: bytes = b"v") -> list[Record]:
    return [Record(offset=first_offset + row, timestamp_ms=1000 + row, value=value) for row in range(count)]


def decoded(batches: memoryview, kernel: Kernel) -> Columns:
    builder = ColumnBuilder(kernel=kernel)
    for view in iter_batches(batches):
        view.check()
        builder.append(view)
    return builder.columns()


def test_batch_comes_back_byte_for_byte(kernel: Kernel) -> None:
    body = record(0, 0, b"k", b"v", ((b"a", None), (b"\xff", b"1"))) + record(1, -3) + record(2, 9, b"", None)
    original = Batch(
        body=body,
        base_offset=50,
        leader_epoch=-1,
        record_count=3,
        last_offset_delta=2,
        max_timestamp_ms=1009,
        attributes=0x10,
        producer_id=9,
        producer_epoch=2,
        base_sequence=2**31 - 2,
    ).build()
    assert BatchEncoder(kernel=kernel).encode(decoded(original, kernel)) == original


def test_control_batch_comes_back_byte_for_byte(kernel: Kernel) -> None:
    original = Batch(
        body=marker(commit=True), leader_epoch=-1, attributes=0x30, producer_id=9, producer_epoch=2
    ).build()
    assert BatchEncoder(kernel=kernel).encode(decoded(original, kernel)) == original


def test_compacted_batch_comes_back_byte_for_byte(kernel: Kernel) -> None:
    body = record(2) + record(5) + record(6)
    original = Batch(body=body, leader_epoch=-1, base_offset=10, record_count=3, last_offset_delta=9).build()
    assert BatchEncoder(kernel=kernel).encode(decoded(original, kernel)) == original


@pytest.mark.parametrize("codec", Codec)
def test_every_codec_round_trips_within_the_limit(kernel: Kernel, codec: Codec) -> None:
    records = plain(500, value=b"some value " * 5)
    batches = BatchEncoder(codec=codec, max_batch_bytes=4000, kernel=kernel).encode(columns_of(records))
    views = list(iter_batches(batches))
    assert len(views) > 5
    assert all(view.size_bytes <= 4000 and view.codec is codec for view in views)
    assert list(records_of(decoded(batches, kernel))) == records


def test_batch_is_filled_to_the_last_byte_of_the_limit(kernel: Kernel) -> None:
    columns = columns_of(plain(2))
    size = len(BatchEncoder(kernel=kernel).encode(columns))
    exact = BatchEncoder(max_batch_bytes=size, kernel=kernel).encode(columns)
    assert [view.record_count for view in iter_batches(exact)] == [2]
    tight = BatchEncoder(max_batch_bytes=size - 1, kernel=kernel).encode(columns)
    assert [view.record_count for view in iter_batches(tight)] == [1, 1]


def test_record_larger_than_the_limit_stands_alone(kernel: Kernel) -> None:
    records = [*plain(1), *plain(1, 1, bytes(200_000)), *plain(1, 2)]
    batches = BatchEncoder(max_batch_bytes=100, kernel=kernel).encode(columns_of(records))
    assert [view.record_count for view in iter_batches(batches)] == [1, 1, 1]
    assert list(records_of(decoded(batches, kernel))) == records


def test_body_that_does_not_shrink_stays_uncompressed(kernel: Kernel) -> None:
    batches = BatchEncoder(codec=Codec.GZIP, kernel=kernel).encode(columns_of(plain(1)))
    assert BatchView(batches).codec is Codec.NONE


def test_batches_cover_holes_between_before_and_behind_the_rows(kernel: Kernel) -> None:
    records = [*plain(1, 5), *plain(1, 9, bytes(300)), *plain(1, 12)]
    columns = columns_of(records)
    batches = BatchEncoder(max_batch_bytes=100, kernel=kernel).encode(columns, start_offset=2, end_offset=20)
    ranges = [(view.base_offset, view.end_offset) for view in iter_batches(batches)]
    assert ranges == [(2, 9), (9, 12), (12, 20)]
    assert list(records_of(decoded(batches, kernel))) == records


def test_columns_without_rows_become_an_empty_batch(kernel: Kernel) -> None:
    batches = BatchEncoder(kernel=kernel).encode(columns_of([]), start_offset=7, end_offset=10)
    (view,) = iter_batches(batches)
    view.check()
    assert (view.base_offset, view.end_offset, view.record_count) == (7, 10, 0)


def test_nothing_at_all_becomes_nothing(kernel: Kernel) -> None:
    assert len(BatchEncoder(kernel=kernel).encode(columns_of([]))) == 0


def joined(*parts: Columns, kernel: Kernel) -> Columns:
    encoded = [bytes(BatchEncoder(kernel=kernel).encode(part)) for part in parts]
    return decoded(memoryview(b"".join(encoded)), kernel)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"producer_id": 1}, {"producer_id": 2}),
        ({"producer_id": 1, "producer_epoch": 1}, {"producer_id": 1, "producer_epoch": 2}),
        ({"producer_id": 1, "base_sequence": 0}, {"producer_id": 1, "base_sequence": 9}),
        ({"attributes": 0}, {"attributes": 0x10}),
        ({"attributes": 0x10}, {"attributes": 0x30}),
        ({"attributes": 0}, {"attributes": 0x08}),
        ({"attributes": 0x08}, {"attributes": 0x08}),
    ],
)
def test_rows_that_cannot_share_a_batch_do_not(kernel: Kernel, first: dict[str, int], second: dict[str, int]) -> None:
    one = columns_of([Record(offset=row, timestamp_ms=5) for row in range(2)], **first)
    two = columns_of([Record(offset=row, timestamp_ms=6) for row in range(2, 4)], **second)
    both = joined(one, two, kernel=kernel)
    batches = BatchEncoder(kernel=kernel).encode(both)
    assert [view.record_count for view in iter_batches(batches)] == [2, 2]
    again = decoded(batches, kernel)
    assert again.buffers == both.buffers


def test_rows_that_can_share_a_batch_do(kernel: Kernel) -> None:
    one = columns_of(plain(2), producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    two = columns_of(plain(2, 2), producer_id=1, producer_epoch=0, base_sequence=0)
    batches = BatchEncoder(kernel=kernel).encode(joined(one, two, kernel=kernel))
    assert [view.record_count for view in iter_batches(batches)] == [4]


def test_append_time_is_kept(kernel: Kernel) -> None:
    columns = columns_of([Record(offset=row, timestamp_ms=777) for row in range(3)], attributes=0x08)
    batches = BatchEncoder(kernel=kernel).encode(columns)
    (view,) = iter_batches(batches)
    assert view.is_log_append_time and view.max_timestamp_ms == 777
    assert list(decoded(batches, kernel).timestamp_ms) == [777] * 3


def test_offsets_too_far_apart_for_one_batch_are_kept(kernel: Kernel) -> None:
    records = [*plain(1, 0), *plain(1, 2**31 - 1), *plain(1, 2**31), *plain(1, 2**62)]
    batches = BatchEncoder(kernel=kernel).encode(columns_of(records))
    assert [view.record_count for view in iter_batches(batches)] == [2, 1, 1]
    assert list(records_of(decoded(batches, kernel))) == records


def test_max_timestamp_is_the_largest_of_the_rows(kernel: Kernel) -> None:
    records = [Record(offset=row, timestamp_ms=time) for row, time in enumerate([5, -1, 2**63 - 1, -(2**63)])]
    batches = BatchEncoder(kernel=kernel).encode(columns_of(records))
    view = BatchView(batches)
    assert (view.base_timestamp_ms, view.max_timestamp_ms) == (5, 2**63 - 1)
    assert list(records_of(decoded(batches, kernel))) == records


@pytest.mark.parametrize("offsets", [[3, 3], [3, 2], [-1, 0]])
def test_rows_out_of_order_are_refused(kernel: Kernel, offsets: list[int]) -> None:
    columns = columns_of([Record(offset=offset, timestamp_ms=0) for offset in offsets])
    with pytest.raises(InvalidBatch) as caught:
        BatchEncoder(kernel=kernel).encode(columns, end_offset=10)
    assert caught.value.problem is Problem.COLUMNS


@pytest.mark.parametrize("max_batch_bytes", [1, 10_000])
def test_rows_out_of_order_are_refused_across_batches(kernel: Kernel, max_batch_bytes: int) -> None:
    columns = columns_of([Record(offset=offset, timestamp_ms=0) for offset in (5, 3, 8)])
    with pytest.raises(InvalidBatch, match="record 1 of the columns: its offset is not behind"):
        BatchEncoder(max_batch_bytes=max_batch_bytes, kernel=kernel).encode(columns)


@pytest.mark.parametrize(("start", "end"), [(0, 5), (1, 9), (-3, 9)])
def test_rows_outside_the_given_range_are_refused(kernel: Kernel, start: int, end: int) -> None:
    columns = columns_of(plain(6))
    with pytest.raises(InvalidBatch) as caught:
        BatchEncoder(kernel=kernel).encode(columns, start_offset=start, end_offset=end)
    assert caught.value.problem is Problem.COLUMNS


def damaged(part: Part, content: bytes) -> Columns:
    columns = columns_of(
        [Record(offset=row, timestamp_ms=0, key=b"k", value=b"v", headers=((b"h", b"x"),)) for row in range(3)]
    )
    buffers = list(columns.buffers)
    buffers[part] = memoryview(content)
    return Columns(row_count=3, header_count=3, start_offset=0, end_offset=3, buffers=tuple(buffers))


@pytest.mark.parametrize("part", [Part.KEY_OFFSETS, Part.VALUE_OFFSETS, Part.HEADER_OFFSETS, Part.HEADER_KEY_OFFSETS])
@pytest.mark.parametrize("offsets", [[0, 1, 2, 2**31 - 1], [0, 2, 1, 2], [-4, -3, -2, -1]])
def test_offsets_that_point_astray_are_refused(kernel: Kernel, part: Part, offsets: list[int]) -> None:
    content = pack("=4i", *offsets)
    with pytest.raises(InvalidBatch) as caught:
        BatchEncoder(kernel=kernel).encode(damaged(part, content))
    assert caught.value.problem is Problem.COLUMNS


@pytest.mark.parametrize("part", [part for part in Part if not part.name.endswith(("_DATA", "_VALIDITY"))])
def test_columns_that_are_too_short_are_refused(kernel: Kernel, part: Part) -> None:
    with pytest.raises(InvalidBatch) as caught:
        BatchEncoder(kernel=kernel).encode(damaged(part, b""))
    assert caught.value.problem is Problem.COLUMNS


def test_result_that_is_still_held_survives_the_next_call(kernel: Kernel) -> None:
    encoder = BatchEncoder(kernel=kernel)
    first = encoder.encode(columns_of(plain(1, value=b"first")))
    kept = bytes(first)
    encoder.encode(columns_of(plain(1, value=b"other")))
    assert first == kept


def test_buffer_is_used_again_when_nobody_looks(kernel: Kernel) -> None:
    encoder = BatchEncoder(kernel=kernel)
    first = id(encoder.encode(columns_of(plain(1))).obj)
    assert id(encoder.encode(columns_of(plain(2))).obj) == first


def test_rows_keep_their_codec_where_none_is_given(kernel: Kernel) -> None:
    codecs = [Codec.NONE, Codec.ZSTD, Codec.ZSTD, Codec.LZ4, Codec.NONE]
    builder = ColumnBuilder(kernel=kernel)
    for number, codec in enumerate(codecs):
        rows = columns_of(plain(3, 3 * number, b"some value " * 9))
        for view in iter_batches(BatchEncoder(codec=codec, kernel=kernel).encode(rows)):
            builder.append(view)
    columns = builder.columns()
    batches = BatchEncoder(codec=None, kernel=kernel).encode(columns)
    assert [(view.codec, view.record_count) for view in iter_batches(batches)] == [
        (Codec.NONE, 3),
        (Codec.ZSTD, 6),
        (Codec.LZ4, 3),
        (Codec.NONE, 3),
    ]
    assert list(records_of(decoded(batches, kernel))) == list(records_of(columns))


def test_rows_with_other_kinds_and_one_codec_are_kept_apart_as_ever(kernel: Kernel) -> None:
    one = columns_of(plain(2), attributes=0x10)
    two = columns_of(plain(2, 2), attributes=0)
    batches = BatchEncoder(codec=None, kernel=kernel).encode(joined(one, two, kernel=kernel))
    assert [view.record_count for view in iter_batches(batches)] == [2, 2]


@pytest.mark.parametrize("attributes", [[5, 5, 5], [0, 0, 7]])
def test_codec_that_does_not_exist_is_refused(kernel: Kernel, attributes: list[int]) -> None:
    with pytest.raises(InvalidBatch) as caught:
        BatchEncoder(codec=None, kernel=kernel).encode(damaged(Part.ATTRIBUTES, pack("=3h", *attributes)))
    assert caught.value.problem is Problem.COLUMNS


def test_attributes_that_are_too_short_are_refused_where_rows_keep_their_codec(kernel: Kernel) -> None:
    with pytest.raises(InvalidBatch) as caught:
        BatchEncoder(codec=None, kernel=kernel).encode(damaged(Part.ATTRIBUTES, pack("=2h", 0, 0)))
    assert caught.value.problem is Problem.COLUMNS


def test_level_of_a_codec_counts(kernel: Kernel) -> None:
    columns = columns_of([Record(offset=row, timestamp_ms=0, value=b"%d" % row**5) for row in range(2000)])
    quick, small = (
        len(BatchEncoder(codec=Codec.GZIP, levels={Codec.GZIP: level}, kernel=kernel).encode(columns))
        for level in (1, 9)
    )
    assert small < quick


def test_first_buffer_may_be_too_small(kernel: Kernel) -> None:
    columns = columns_of(plain(300))
    expected = bytes(BatchEncoder(kernel=kernel).encode(columns))
    assert BatchEncoder(first_buffer_bytes=0, kernel=kernel).encode(columns) == expected
