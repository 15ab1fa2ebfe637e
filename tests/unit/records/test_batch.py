"""The header is read in place, and every lie in it is named."""

import pytest

from headrace.model.batches import BatchSummary
from headrace.model.ids import ProducerId
from headrace.records.batch import BatchView, Codec, iter_batches
from headrace.records.problems import InvalidBatch, Problem

from .making import Batch, marker, record


def problem_of(batch: Batch | memoryview) -> Problem:
    """Check a batch as a producer's and return what is wrong with it."""
    data = batch.build() if isinstance(batch, Batch) else batch
    with pytest.raises(InvalidBatch) as caught:
        BatchView(data).check_produced()
    return caught.value.problem


def test_view_shows_the_header_and_copies_nothing() -> None:
    data = Batch(base_offset=7, leader_epoch=3, producer_id=5, producer_epoch=1, base_sequence=9).build()
    view = BatchView(data)
    view.check_produced()
    assert (view.base_offset, view.leader_epoch, view.last_offset, view.end_offset) == (7, 3, 7, 8)
    assert view.codec is Codec.NONE
    assert view.data.obj is data.obj
    assert view.body == record()


def test_summary_tells_what_the_log_needs() -> None:
    batch = Batch(attributes=0x10, producer_id=5, producer_epoch=1, base_sequence=9, max_timestamp_ms=2000)
    data = batch.build()
    assert BatchView(data).summary() == BatchSummary(
        size_bytes=len(data),
        record_count=1,
        base_timestamp_ms=1000,
        max_timestamp_ms=2000,
        producer_id=ProducerId(5),
        producer_epoch=1,
        base_sequence=9,
        is_transactional=True,
    )


def test_batches_back_to_back_are_split_where_they_lie() -> None:
    first, second = Batch(base_offset=3).build(), Batch(base_offset=4, body=record(value=b"longer")).build()
    joined = memoryview(bytes(first) + bytes(second))
    views = list(iter_batches(joined))
    assert [view.base_offset for view in views] == [3, 4]
    assert [view.data for view in views] == [first, second]


def test_nothing_holds_no_batches() -> None:
    assert list(iter_batches(memoryview(b""))) == []


def test_split_stops_at_a_batch_that_is_cut_off() -> None:
    joined = memoryview(bytes(Batch().build()) * 2)[:-1]
    batches = iter_batches(joined)
    next(batches)
    with pytest.raises(InvalidBatch) as caught:
        next(batches)
    assert caught.value.problem is Problem.TRUNCATED


@pytest.mark.parametrize("size", [0, 1, 12, 16, 17, 60, 61])
def test_batch_that_is_cut_off_is_truncated_wherever_the_cut_lies(size: int) -> None:
    assert problem_of(Batch().build()[:size]) is Problem.TRUNCATED


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (Batch(length_error=1), Problem.TRUNCATED),
        (Batch(length_error=2**31 - 200), Problem.TRUNCATED),
        (Batch(length_error=-20), Problem.LENGTH),
        (Batch(length_error=-(2**31) + 1), Problem.LENGTH),
        (Batch(length_error=-1), Problem.CHECKSUM),
        (Batch(magic=0), Problem.MAGIC),
        (Batch(magic=1), Problem.MAGIC),
        (Batch(magic=3), Problem.MAGIC),
        (Batch(attributes=5), Problem.CODEC),
        (Batch(attributes=7), Problem.CODEC),
        (Batch(record_count=0), Problem.COUNT),
        (Batch(record_count=-1), Problem.COUNT),
        (Batch(record_count=2), Problem.COUNT),
        (Batch(record_count=2**31 - 1), Problem.COUNT),
        (Batch(last_offset_delta=1), Problem.COUNT),
        (Batch(last_offset_delta=-1, record_count=0), Problem.COUNT),
        (Batch(last_offset_delta=2**31 - 1, record_count=-(2**31)), Problem.COUNT),
        (Batch(base_offset=2**63 - 1), Problem.COUNT),
        (Batch(attributes=0x20, body=marker(commit=True)), Problem.ATTRIBUTES),
        (Batch(attributes=0x40), Problem.ATTRIBUTES),
        (Batch(attributes=0x08), Problem.TIMESTAMP),
        (Batch(producer_id=5, producer_epoch=0, base_sequence=-1), Problem.PRODUCER),
        (Batch(producer_id=5, producer_epoch=-1, base_sequence=0), Problem.PRODUCER),
        (Batch(producer_id=-2, producer_epoch=0, base_sequence=0), Problem.PRODUCER),
        (Batch(attributes=0x10), Problem.PRODUCER),
    ],
)
def test_a_header_that_lies_is_refused_with_its_reason(batch: Batch, problem: Problem) -> None:
    assert problem_of(batch) is problem


def test_message_of_an_old_format_is_named_as_such_although_it_is_short() -> None:
    old = bytes(8) + (14).to_bytes(4, "big") + bytes(4) + b"\x00" + bytes(9)
    assert problem_of(memoryview(old)) is Problem.MAGIC


def test_any_flipped_bit_behind_the_crc_is_noticed() -> None:
    data = Batch().build()
    for position in range(17, len(data)):
        data[position] ^= 0x10
        assert problem_of(data) is Problem.CHECKSUM, position
        data[position] ^= 0x10
    BatchView(data).check_produced()


@pytest.mark.parametrize(
    "batch",
    [
        Batch(last_offset_delta=9),
        Batch(body=b"", record_count=0, last_offset_delta=4),
        Batch(attributes=0x30, producer_id=5, producer_epoch=1, body=marker(commit=False)),
        Batch(attributes=0x08),
        Batch(attributes=0x40),
    ],
    ids=["gaps", "emptied by compaction", "control", "append time", "delete horizon"],
)
def test_stored_batches_may_be_what_producers_may_not_send(batch: Batch) -> None:
    view = BatchView(batch.build())
    view.check()
    with pytest.raises(InvalidBatch):
        view.check_produced()


def test_max_timestamp_below_the_base_is_taken_because_clients_send_it() -> None:
    BatchView(Batch(base_timestamp_ms=5, max_timestamp_ms=3).build()).check_produced()


def test_sequence_may_wrap_around_within_a_batch() -> None:
    body = record(0) + record(1)
    batch = Batch(
        body=body, record_count=2, last_offset_delta=1, producer_id=1, producer_epoch=0, base_sequence=2**31 - 1
    )
    BatchView(batch.build()).check_produced()
