"""Rows become batches as the topic wants them, in runs of bounded memory, and no offset is left out."""

import itertools

import pytest

from headrace.errors import Corrupt
from headrace.fetch.rebuilding import BATCH_BYTES, MAX_HOLE_BATCHES, RUN_BYTES, BatchShape, rebuild, shape_of
from headrace.fetch.runs import Run
from headrace.model.topics import TopicRules
from headrace.records.batch import HEADER_BYTES, BatchView, Codec, iter_batches
from headrace.records.columns import ColumnBuilder, Columns
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.testing.batches import read_batches

AS_PRODUCED = BatchShape()
FAR = 2**31


def records(count: int, *, first_offset: int = 0, value: bytes = b"some value " * 10) -> list[Record]:
    return [Record(offset=first_offset + n, timestamp_ms=n, value=value) for n in range(count)]


def batches_of(runs: list[Run]) -> list[BatchView]:
    views = [view for run in runs for view in iter_batches(run.data)]
    for view in views:
        view.check()
    return views


def check_cover(runs: list[Run], start_offset: int, end_offset: int) -> None:
    """Runs and the batches in them lie end to end."""
    assert (runs[0].start_offset, runs[-1].end_offset) == (start_offset, end_offset)
    for run in runs:
        views = list(iter_batches(run.data))
        assert (views[0].base_offset, views[-1].end_offset) == (run.start_offset, run.end_offset)
    for before, after in itertools.pairwise(batches_of(runs)):
        assert before.end_offset == after.base_offset


def mixed(*codecs: Codec) -> Columns:
    """Return the columns of batches with these codecs, three records each."""
    builder = ColumnBuilder()
    for n, codec in enumerate(codecs):
        batch = BatchEncoder(codec=codec).encode(columns_of(records(3, first_offset=3 * n)))
        builder.append(BatchView(batch))
    return builder.columns()


def test_runs_hold_about_a_mebibyte_each_in_memory_of_their_own() -> None:
    rows = records(5000, value=bytes(1000))
    runs = rebuild(columns_of(rows), 0, 5000, AS_PRODUCED)
    check_cover(runs, 0, 5000)
    assert len(runs) == 4
    assert all(RUN_BYTES <= len(run.data) <= RUN_BYTES + BATCH_BYTES for run in runs[:-1])
    assert all(run.data.obj.__class__ is bytes and len(run.data.obj) == len(run.data) for run in runs)
    assert [record for run in runs for record in read_batches(run.data)] == rows


def test_batches_stay_below_what_the_topic_allows() -> None:
    rules = TopicRules(max_message_bytes=2000)
    runs = rebuild(columns_of(records(200)), 0, 200, shape_of(rules))
    assert all(view.size_bytes <= 2000 for view in batches_of(runs))
    check_cover(runs, 0, 200)


def test_record_that_alone_is_larger_than_the_topic_allows_is_still_readable() -> None:
    rows = [*records(1), *records(1, first_offset=1, value=bytes(5000)), *records(1, first_offset=2)]
    runs = rebuild(columns_of(rows), 0, 3, shape_of(TopicRules(max_message_bytes=1000)))
    assert [view.record_count for view in batches_of(runs)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("compression", "codec"),
    [("uncompressed", Codec.NONE), ("gzip", Codec.GZIP), ("snappy", Codec.SNAPPY), ("lz4", Codec.LZ4)],
)
def test_topic_says_how_batches_are_compressed(compression: str, codec: Codec) -> None:
    rules = TopicRules(max_message_bytes=1_000_000, compression=compression)
    runs = rebuild(mixed(Codec.ZSTD, Codec.NONE), 0, 6, shape_of(rules))
    assert [view.codec for view in batches_of(runs)] == [codec]


def test_level_of_the_topic_counts() -> None:
    rows = columns_of([Record(offset=n, timestamp_ms=n, value=b"%d" % n**5) for n in range(3000)])
    sizes = [
        sum(len(run.data) for run in rebuild(rows, 0, 3000, BatchShape(codec=Codec.ZSTD, level=level)))
        for level in (1, 19)
    ]
    assert sizes[1] < sizes[0]


def test_rows_keep_the_codec_they_were_produced_with() -> None:
    codecs = [Codec.ZSTD, Codec.ZSTD, Codec.NONE, Codec.GZIP, Codec.NONE]
    runs = rebuild(mixed(*codecs), 0, 15, shape_of(TopicRules(max_message_bytes=1_000_000)))
    assert [(view.codec, view.record_count) for view in batches_of(runs)] == [
        (Codec.ZSTD, 6),
        (Codec.NONE, 3),
        (Codec.GZIP, 3),
        (Codec.NONE, 3),
    ]


def test_topic_that_is_not_known_means_as_produced() -> None:
    assert shape_of(None) == AS_PRODUCED


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("end", [11, 20])
def test_holes_before_between_and_behind_rows_are_covered(start: int, end: int) -> None:
    rows = [*records(1, first_offset=5), *records(1, first_offset=10)]
    runs = rebuild(columns_of(rows), start, end, AS_PRODUCED)
    check_cover(runs, start, end)
    assert [record.offset for run in runs for record in read_batches(run.data)] == [5, 10]


def test_nothing_but_hole_is_an_empty_batch() -> None:
    for columns in (None, columns_of([])):
        (run,) = rebuild(columns, 7, 12, AS_PRODUCED)
        check_cover([run], 7, 12)
        assert len(run.data) == HEADER_BYTES


def test_holes_of_more_than_two_billion_offsets_take_several_empty_batches() -> None:
    runs = rebuild(None, 5, 5 + 3 * FAR + 1, AS_PRODUCED)
    check_cover(runs, 5, 5 + 3 * FAR + 1)
    assert [view.record_count for view in batches_of(runs)] == [0, 0, 0, 0]


def test_rows_far_apart_are_joined_by_empty_batches() -> None:
    rows = [record for at in (3 * FAR, 7 * FAR) for record in records(2, first_offset=at)]
    runs = rebuild(columns_of(rows), 1, 12 * FAR, AS_PRODUCED)
    check_cover(runs, 1, 12 * FAR)
    assert [record.offset for run in runs for record in read_batches(run.data)] == [row.offset for row in rows]


def test_hole_that_no_log_can_have_is_damage() -> None:
    with pytest.raises(Corrupt, match="more than a log can lose"):
        rebuild(None, 0, (MAX_HOLE_BATCHES + 1) * FAR, AS_PRODUCED)
