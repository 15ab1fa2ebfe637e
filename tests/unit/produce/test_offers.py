"""Where answers go, and what is remembered of batches that were given up."""

import asyncio

import pytest

from headrace.errors import Retryable
from headrace.index.values import PartResult, PartStatus
from headrace.model.batches import BatchSummary
from headrace.model.ids import ProducerId, StreamId
from headrace.produce import offers
from headrace.produce.offers import Appended, GivenUp, NewPart, Offer

STREAM = StreamId(3)


def part(sequence: int, *, epoch: int = 0, producer: int = 7, stream: StreamId = STREAM) -> NewPart:
    batch = BatchSummary(
        size_bytes=4,
        record_count=1,
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        producer_id=ProducerId(producer),
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return NewPart(stream, memoryview(bytearray(4)), (batch,))


def offer(sequence: int, *, epoch: int = 0, producer: int = 7, stream: StreamId = STREAM) -> Offer:
    return Offer(part(sequence, epoch=epoch, producer=producer, stream=stream), Appended(1), 0)


# Answers


async def test_request_is_done_when_each_part_has_its_result_in_the_order_of_the_parts() -> None:
    appended = Appended(2)
    first, second = (Offer(part(n), appended, n) for n in range(2))
    accepted, error = PartResult(PartStatus.ACCEPTED, 5, 0, 0), Retryable("busy")
    second.settle(error)
    assert not appended.done.done()
    first.settle(accepted)
    assert appended.done.done() and appended.results == [accepted, error]


async def test_results_are_kept_when_nobody_waits_any_more() -> None:
    appended = Appended(1)
    appended.done.cancel()
    Offer(part(0), appended, 0).settle(Retryable("busy"))
    assert appended.results[0] is not None


async def test_second_answer_to_the_same_part_is_a_mistake_of_ours() -> None:
    appended = Appended(1)
    appended.settle(0, Retryable("busy"))
    with pytest.raises(AssertionError, match="twice"):
        appended.settle(0, Retryable("busy"))


# What was given up


async def test_first_batch_that_was_given_up_is_where_the_producer_must_begin() -> None:
    given_up = GivenUp()
    assert given_up.begins_by(offer(9)) is None
    for sequence in (5, 3, 8):
        given_up.note(offer(sequence))
    assert given_up.begins_by(offer(9)) == 3


async def test_producers_and_streams_are_told_apart_and_plain_producers_are_not_remembered() -> None:
    given_up = GivenUp()
    given_up.note(offer(3))
    given_up.note(offer(-1, producer=-1, epoch=-1))
    assert given_up.begins_by(offer(9, producer=8)) is None
    assert given_up.begins_by(offer(9, stream=StreamId(4))) is None
    assert given_up.begins_by(offer(-1, producer=-1, epoch=-1)) is None


@pytest.mark.parametrize("status", [PartStatus.ACCEPTED, PartStatus.DUPLICATE])
async def test_producer_is_forgotten_once_the_stream_knows_it(status: PartStatus) -> None:
    given_up = GivenUp()
    given_up.note(offer(3))
    given_up.note_result(offer(9), PartResult(PartStatus.OUT_OF_ORDER_SEQUENCE))
    assert given_up.begins_by(offer(9)) == 3
    given_up.note_result(offer(3), PartResult(status, 0, 0, 0))
    assert given_up.begins_by(offer(9)) is None


async def test_newer_epoch_counts_and_an_older_one_says_nothing() -> None:
    given_up = GivenUp()
    given_up.note(offer(5, epoch=0))
    assert given_up.begins_by(offer(9, epoch=1)) is None
    given_up.note(offer(0, epoch=1))
    assert given_up.begins_by(offer(9, epoch=1)) == 0
    given_up.note(offer(2, epoch=0))
    assert given_up.begins_by(offer(9, epoch=1)) == 0, "a late word of an older epoch changes nothing"


async def test_what_was_never_taken_counts_as_well() -> None:
    given_up = GivenUp()
    given_up.note(part(4))
    assert given_up.begins_by(offer(9)) == 4


async def test_oldest_is_forgotten_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "MAX_GIVEN_UP", 2)
    given_up = GivenUp()
    for producer in range(3):
        given_up.note(offer(1, producer=producer))
    assert [given_up.begins_by(offer(9, producer=producer)) for producer in range(3)] == [None, 1, 1]


async def test_futures_belong_to_the_running_loop() -> None:
    assert Appended(1).done.get_loop() is asyncio.get_running_loop()
