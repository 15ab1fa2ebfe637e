"""Subscriptions and assignments: the bytes that other clients write, every version, and what is refused."""

import io
import struct
import tracemalloc
import warnings
from importlib import import_module
from typing import Any

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from headrace.errors import Invalid
from headrace.model.subscriptions import (
    LAST_VERSION,
    MAX_ELEMENTS,
    Assignment,
    Subscription,
    TopicPartitions,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
    encode_subscription,
)

with warnings.catch_warnings():
    # kafka-python loads its schemas through a deprecated call while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

VERSIONS = range(LAST_VERSION + 1)

int32s = st.integers(-(2**31), 2**31 - 1)
topics = st.text(max_size=20)
user_data = st.none() | st.binary(max_size=30)
named: st.SearchStrategy[TopicPartitions] = st.lists(
    st.tuples(topics, st.lists(int32s, max_size=5).map(tuple)), max_size=4
).map(tuple)
subscriptions = st.builds(
    Subscription,
    topics=st.lists(topics, max_size=5).map(tuple),
    user_data=user_data,
    owned=named,
    generation_id=int32s,
    rack=st.none() | topics,
)
assignments = st.builds(Assignment, partitions=named, user_data=user_data)
versions = st.sampled_from(VERSIONS)

FULL = Subscription(
    topics=("orders", "größe"),
    user_data=b"\0\1",
    owned=(("orders", (0, 7)), ("größe", ())),
    generation_id=42,
    rack="eu-1a",
)


def as_of(value: Subscription, version: int) -> Subscription:
    """Return what is left of a subscription in this version."""
    return Subscription(
        topics=value.topics,
        user_data=value.user_data,
        owned=value.owned if version >= 1 else (),
        generation_id=value.generation_id if version >= 2 else -1,
        rack=value.rack if version >= 3 else None,
    )


def test_bytes_lie_where_the_protocol_says() -> None:
    value = Subscription(topics=("ab",), user_data=None, owned=(("ab", (1, 2)),), generation_id=9, rack="r")
    v0 = "00000001 0002 6162 ffffffff"
    v1 = v0 + "00000001 0002 6162 00000002 00000001 00000002"
    v2 = v1 + "00000009"
    v3 = v2 + "0001 72"
    for version, fields in enumerate((v0, v1, v2, v3)):
        assert encode_subscription(value, version).hex() == f"{version:04}" + fields.replace(" ", "")


@given(subscriptions, versions)
def test_a_subscription_comes_back_without_what_its_version_does_not_have(value: Subscription, version: int) -> None:
    raw = encode_subscription(value, version)
    assert decode_version(raw) == version
    assert decode_subscription(raw) == as_of(value, version)


@given(assignments, versions)
def test_an_assignment_comes_back(value: Assignment, version: int) -> None:
    raw = encode_assignment(value, version)
    assert decode_version(raw) == version
    assert decode_assignment(raw) == value


def kio_class(kind: str, version: int) -> tuple[Any, Any]:
    module = import_module(f"kio.schema.consumer_protocol_{kind}.v{version}.data")
    return getattr(module, f"ConsumerProtocol{kind.capitalize()}"), getattr(module, "TopicPartition", None)


def kio_bytes(message: Any) -> bytes:
    written = io.BytesIO()
    entity_writer(type(message))(written, message)
    return written.getvalue()


def as_kio(made: Any, value: TopicPartitions) -> tuple[Any, ...]:
    return tuple(made(topic=topic, partitions=partitions) for topic, partitions in value)


def from_kio(value: Any) -> TopicPartitions:
    return tuple((one.topic, one.partitions) for one in value)


@pytest.mark.parametrize("version", VERSIONS)
@given(value=subscriptions)
def test_kio_and_we_write_and_read_the_same_subscriptions(version: int, value: Subscription) -> None:
    message, inner = kio_class("subscription", version)
    fields: dict[str, Any] = {"topics": value.topics, "user_data": value.user_data}
    if version >= 1:
        fields["owned_partitions"] = as_kio(inner, value.owned)
    if version >= 2:
        fields["generation_id"] = value.generation_id
    if version >= 3:
        fields["rack_id"] = value.rack
    raw = encode_subscription(value, version)
    assert raw == struct.pack(">h", version) + kio_bytes(message(**fields))
    theirs, size_bytes = entity_reader(message)(raw, 2)
    assert 2 + size_bytes == len(raw)
    assert theirs == message(**fields)


@pytest.mark.parametrize("version", VERSIONS)
@given(value=assignments)
def test_kio_and_we_write_and_read_the_same_assignments(version: int, value: Assignment) -> None:
    message, inner = kio_class("assignment", version)
    theirs = message(assigned_partitions=as_kio(inner, value.partitions), user_data=value.user_data)
    raw = encode_assignment(value, version)
    assert raw == struct.pack(">h", version) + kio_bytes(theirs)
    read, _ = entity_reader(message)(raw, 2)
    assert (from_kio(read.assigned_partitions), read.user_data) == (value.partitions, value.user_data)


@pytest.mark.parametrize("version", VERSIONS)
@given(value=subscriptions)
def test_kafka_python_and_we_write_and_read_the_same_subscriptions(version: int, value: Subscription) -> None:
    part = ConsumerProtocolSubscription.TopicPartition
    theirs = ConsumerProtocolSubscription(
        version=version,
        topics=list(value.topics),
        user_data=value.user_data,
        owned_partitions=[part(topic=topic, partitions=list(ids)) for topic, ids in value.owned],
        generation_id=value.generation_id,
        rack_id=value.rack,
    )
    raw = encode_subscription(value, version)
    assert raw == theirs.encode()
    read = ConsumerProtocolSubscription.decode(raw)
    assert (tuple(read.topics), read.user_data) == (value.topics, value.user_data)


@pytest.mark.parametrize("version", VERSIONS)
@given(value=assignments)
def test_kafka_python_and_we_write_and_read_the_same_assignments(version: int, value: Assignment) -> None:
    part = ConsumerProtocolAssignment.TopicPartition
    theirs = ConsumerProtocolAssignment(
        version=version,
        assigned_partitions=[part(topic=topic, partitions=list(ids)) for topic, ids in value.partitions],
        user_data=value.user_data,
    )
    raw = encode_assignment(value, version)
    assert raw == theirs.encode()
    read = ConsumerProtocolAssignment.decode(raw)
    found = tuple((one.topic, tuple(one.partitions)) for one in read.assigned_partitions)
    assert (found, read.user_data) == (value.partitions, value.user_data)


@given(subscriptions, assignments)
def test_aiokafka_and_we_agree_on_version_0(subscription: Subscription, assignment: Assignment) -> None:
    raw = encode_subscription(subscription, 0)
    assert ConsumerProtocolMemberMetadata(0, list(subscription.topics), subscription.user_data).encode() == raw
    raw = encode_assignment(assignment, 0)
    parts = [(topic, list(partitions)) for topic, partitions in assignment.partitions]
    assert ConsumerProtocolMemberAssignment(0, parts, assignment.user_data).encode() == raw


@pytest.mark.parametrize("version", [LAST_VERSION + 1, 99, 2**15 - 1])
def test_a_newer_version_is_read_as_the_newest_we_know(version: int) -> None:
    raw = struct.pack(">h", version) + encode_subscription(FULL, LAST_VERSION)[2:] + b"a new field"
    assert decode_subscription(raw) == FULL
    assert decode_version(raw) == LAST_VERSION
    assignment = Assignment(partitions=FULL.owned, user_data=b"x")
    raw = struct.pack(">h", version) + encode_assignment(assignment, LAST_VERSION)[2:] + b"a new field"
    assert decode_assignment(raw) == assignment


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_behind_the_last_field_are_passed_over(version: int) -> None:
    assert decode_subscription(encode_subscription(FULL, version) + b"more") == as_of(FULL, version)
    assignment = Assignment(partitions=FULL.owned)
    assert decode_assignment(encode_assignment(assignment, version) + b"more") == assignment


def test_an_assignment_of_no_bytes_is_empty_and_a_subscription_of_no_bytes_is_none() -> None:
    assert decode_assignment(b"") == Assignment()
    with pytest.raises(Invalid, match="a number of 2 bytes in 0"):
        decode_subscription(b"")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_is_refused(version: int) -> None:
    raw = encode_subscription(FULL, version)
    for size_bytes in range(len(raw)):
        with pytest.raises(Invalid, match="broken at byte"):
            decode_subscription(raw[:size_bytes])
    raw = encode_assignment(Assignment(partitions=FULL.owned, user_data=b"xyz"), version)
    for size_bytes in range(1, len(raw)):
        with pytest.raises(Invalid, match="broken at byte"):
            decode_assignment(raw[:size_bytes])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("ffff 00000000", "version -1"),
        ("8000 00000000", "version -32768"),
        ("0000 ffffffff", "promises -1 topics"),
        ("0000 fffffffe", "promises -2 topics"),
        ("0000 7fffffff", "promises 2147483647 topics in 0 bytes"),
        ("0000 00000002 0000", "promises 2 topics in 2 bytes"),
        ("0000 00000001 ffff", "a string is null"),
        ("0000 00000001 fffe", "a string of -2 bytes"),
        ("0000 00000001 7fff 61", "a string of 32767 bytes in 1"),
        ("0000 00000001 0001 ff", "not UTF-8"),
        ("0000 00000001 0003 eda080", "not UTF-8"),
        ("0000 00000000 fffffffe", "a run of -2 bytes"),
        ("0000 00000000 7fffffff", "a run of 2147483647 bytes in 0"),
        ("0001 00000000 ffffffff ffffffff", "promises -1 topics"),
        ("0001 00000000 ffffffff 00000001 0000", "promises 1 topics in 2 bytes"),
        ("0001 00000000 ffffffff 00000001 0000 ffffffff", "promises -1 partitions"),
        ("0001 00000000 ffffffff 00000001 0000 40000000", "promises 1073741824 partitions in 0 bytes"),
        ("0003 00000000 ffffffff 00000000 00000000 fffe", "a string of -2 bytes"),
    ],
)
def test_a_length_that_lies_is_refused_by_its_number(fields: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        decode_subscription(bytes.fromhex(fields))


def test_the_number_of_elements_is_bounded() -> None:
    empty_names = struct.pack(">hi", 0, MAX_ELEMENTS + 1) + bytes(2 * (MAX_ELEMENTS + 1)) + b"\xff" * 4
    with pytest.raises(Invalid, match=f"more than {MAX_ELEMENTS}"):
        decode_subscription(empty_names)
    half = tuple(range(MAX_ELEMENTS // 2))
    fits = Assignment(partitions=(("a", half), ("b", half[:-2])))
    assert decode_assignment(encode_assignment(fits, 0)) == fits
    with pytest.raises(Invalid, match=f"more than {MAX_ELEMENTS}"):
        decode_assignment(encode_assignment(Assignment(partitions=(("a", half), ("b", half))), 0))


def test_no_memory_is_taken_for_what_is_only_promised() -> None:
    lies = [
        bytes.fromhex("0000 7fffffff"),
        bytes.fromhex("0000 00000000 7fffffff"),
        bytes.fromhex("0001 00000000 ffffffff 00000001 0000 1fffffff"),
    ]
    tracemalloc.start()
    try:
        for raw in lies:
            with pytest.raises(Invalid):
                decode_subscription(raw)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_invalid(raw: bytes) -> None:
    for decode in (decode_subscription, decode_assignment, decode_version):
        try:
            decode(raw)
        except Invalid as refused:
            assert str(refused).isprintable()


@given(subscriptions, versions, st.data())
def test_a_damaged_subscription_is_a_value_or_invalid(value: Subscription, version: int, data: st.DataObject) -> None:
    raw = bytearray(encode_subscription(value, version))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]))
    try:
        read = decode_subscription(bytes(raw))
    except Invalid:
        return
    assert decode_subscription(encode_subscription(read, decode_version(bytes(raw)))) == read


def test_a_version_that_nobody_knows_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="version 4"):
        encode_subscription(FULL, LAST_VERSION + 1)
    with pytest.raises(AssertionError, match="version -1"):
        encode_assignment(Assignment(), -1)
