"""The bytes that the load makes by itself: subscriptions, assignments, and commits that are only patched."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.groups_beside_kafka.commit_frame import KEY, VERSION, CommitFrame
from benchmarks.groups_beside_kafka.consumer_protocol import (
    assign_range,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from headrace.model.error_codes import ErrorCode
from headrace.wire.headers import encode_response, parse_request
from headrace.wire.messages import OffsetCommitResponse

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40)


def test_a_subscription_has_the_fields_of_version_3() -> None:
    assert encode_subscription(["ab"]) == struct.pack(">hih2siiih", 3, 1, 2, b"ab", -1, 0, -1, -1)


@given(names, st.lists(st.integers(0, 2**31 - 1), max_size=20))
def test_assignments_round_trip(topic: str, partitions: list[int]) -> None:
    assert decode_assignment(encode_assignment(topic, partitions)) == {topic: partitions}


def test_an_assignment_without_bytes_is_empty_and_one_that_is_cut_short_is_refused() -> None:
    assert decode_assignment(b"") == {}
    with pytest.raises(ValueError, match="ends too early"):
        decode_assignment(encode_assignment("topic", [1, 2])[:-8])


@given(st.sets(st.text(max_size=5), min_size=1, max_size=30), st.integers(0, 200))
def test_ranges_cover_all_partitions_once_and_evenly(member_ids: set[str], partitions: int) -> None:
    shares = assign_range(member_ids, partitions)
    assert set(shares) == member_ids
    assert sorted(number for share in shares.values() for number in share) == list(range(partitions))
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1


def _frame(partitions: list[int]) -> CommitFrame:
    return CommitFrame(
        client_id="load", group_id="group", member_id="me", epoch=4, topic="topic", partitions=partitions
    )


def _answer(codes: dict[int, int]) -> bytes:
    topic = OffsetCommitResponse.OffsetCommitResponseTopic(
        name="topic",
        partitions=[
            OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=number, error_code=code)
            for number, code in codes.items()
        ],
    )
    return b"".join(encode_response(KEY, VERSION, 9, OffsetCommitResponse(topics=[topic])))[4:]


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.lists(st.integers(0, 2**31 - 1), max_size=15))
def test_a_patched_commit_is_the_commit_one_would_encode(
    correlation_id: int, offset: int, partitions: list[int]
) -> None:
    frame = _frame(partitions)
    frame.encode(1, 77)
    encoded = frame.encode(correlation_id, offset)
    assert struct.unpack_from(">i", encoded)[0] == len(encoded) - 4
    header, request = parse_request(memoryview(encoded)[4:])
    assert (header.request_api_key, header.request_api_version) == (KEY, VERSION)
    assert (header.correlation_id, header.client_id) == (correlation_id, "load")
    assert (request.group_id, request.member_id, request.generation_id_or_member_epoch) == ("group", "me", 4)
    (topic,) = request.topics
    assert topic.name == "topic"
    assert [(one.partition_index, one.committed_offset) for one in topic.partitions] == [
        (partition, offset) for partition in partitions
    ]


def test_an_answer_is_read_only_where_it_is_not_the_usual_one() -> None:
    frame = _frame([3, 4])
    assert frame.first_error(_answer({3: 0, 4: 0})) is ErrorCode.NONE
    assert frame.first_error(_answer({4: 0, 3: 0})) is ErrorCode.NONE
    assert frame.first_error(_answer({3: 0, 4: ErrorCode.STALE_MEMBER_EPOCH})) is ErrorCode.STALE_MEMBER_EPOCH
