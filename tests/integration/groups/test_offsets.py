"""Committed offsets, without members: what simple consumers and admin clients commit, ask for and lose."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition

from headrace.model.error_codes import ErrorCode
from tests.integration.clients.librdkafka import admin, create_topic, quiet
from tests.integration.clients.messages import CALL_LIMIT_SECONDS
from tests.integration.clients.waiting import eventually
from tests.integration.groups.group_wire import Claim, GroupClient
from tests.integration.groups.team import fill

NewName = Callable[[str], str]

LONGEST_METADATA = 4096
PARTITIONS = 3


@pytest.fixture
def topic(bootstrap: str, new_name: NewName) -> str:
    name = new_name("offsets")
    create_topic(bootstrap, name, PARTITIONS)
    return name


@pytest.fixture
def client(port: int) -> Iterator[GroupClient]:
    with GroupClient(port) as connected:
        yield connected


@pytest.fixture
def consumer(bootstrap: str, new_name: NewName) -> Iterator[Consumer]:
    """A consumer that takes partitions by itself, as no group's member, and commits all the same."""
    simple = Consumer(
        quiet(
            {
                "bootstrap.servers": bootstrap,
                "group.id": new_name("simple"),
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
    )
    try:
        yield simple
    finally:
        simple.close()


def next_offset(consumer: Consumer) -> int | None:
    """Read one record and return its offset."""
    message = eventually("a record", lambda: consumer.poll(0.1))
    assert message is not None and message.error() is None
    return message.offset()


def test_a_consumer_without_a_group_of_members_commits_and_goes_on_from_there(
    bootstrap: str, topic: str, consumer: Consumer
) -> None:
    fill(bootstrap, topic, PARTITIONS, 10)
    consumer.assign([TopicPartition(topic, 1, 4)])
    assert next_offset(consumer) == 4
    consumer.commit(asynchronous=False)
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    found = consumer.committed(places, CALL_LIMIT_SECONDS)
    assert [place.offset for place in found] == [OFFSET_INVALID, 5, OFFSET_INVALID]
    consumer.unassign()
    consumer.assign([TopicPartition(topic, 1)])  # from where the group has stopped
    assert next_offset(consumer) == 5


def test_a_commit_may_go_back_and_the_last_one_counts(topic: str, consumer: Consumer) -> None:
    for offset in (7, 3, 5):
        consumer.commit(offsets=[TopicPartition(topic, 0, offset, metadata=f"at {offset}")], asynchronous=False)
        (found,) = consumer.committed([TopicPartition(topic, 0)], CALL_LIMIT_SECONDS)
        assert (found.offset, found.metadata) == (offset, f"at {offset}")


def test_metadata_may_be_as_long_as_the_limit_and_no_longer(
    client: GroupClient, topic: str, new_name: NewName
) -> None:
    # Not through confluent-kafka: it sends one byte more than it was given.
    claim, longest = Claim(group=new_name("noted")), "x" * LONGEST_METADATA
    assert client.commit(claim, topic, {0: 1}, metadata=longest) == {0: ErrorCode.NONE}
    for too_long in (longest + "x", "x" * 32_767):
        assert client.commit(claim, topic, {0: 2}, metadata=too_long) == {0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert client.committed(claim.group, topic, 0) == {0: 1}


def test_one_partition_that_cannot_be_committed_does_not_sink_its_neighbours(
    client: GroupClient, topic: str, new_name: NewName
) -> None:
    group = new_name("neighbours")
    assert client.commit(Claim(group=group), topic, {0: 1, PARTITIONS: 2, -1: 3, 2: 4}) == {
        0: ErrorCode.NONE,
        PARTITIONS: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        -1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        2: ErrorCode.NONE,
    }
    assert client.committed(group, topic, 0, 1, 2, PARTITIONS) == {0: 1, 1: -1, 2: 4, PARTITIONS: -1}
    unknown = client.commit(Claim(group=group), f"{topic}-unknown", {0: 1})
    assert unknown == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_what_nobody_has_committed_is_no_error(client: GroupClient, topic: str, new_name: NewName) -> None:
    group = new_name("nobody")
    assert client.committed(group, topic, 0, 99) == {0: -1, 99: -1}
    assert client.committed(group, f"{topic}-unknown", 0) == {0: -1}
    assert group not in client.listed(), "a question does not create a group"


def test_offsets_go_with_their_topic_and_a_topic_of_the_same_name_begins_without(
    bootstrap: str, client: GroupClient, topic: str, new_name: NewName
) -> None:
    group, other = new_name("vanishing"), f"{topic}-other"
    create_topic(bootstrap, other, 1)
    fill(bootstrap, topic, PARTITIONS, 5)
    for name in (topic, other):
        assert client.commit(Claim(group=group), name, {0: 1}) == {0: ErrorCode.NONE}
    operator = admin(bootstrap)
    operator.delete_topics([topic], request_timeout=CALL_LIMIT_SECONDS)[topic].result(CALL_LIMIT_SECONDS)
    eventually("its offsets are gone", lambda: client.committed(group, topic, 0) == {0: -1})

    def created() -> bool:
        try:
            create_topic(bootstrap, topic, PARTITIONS)
        except KafkaException:
            return False
        return True

    eventually("the name is free again", created)
    assert client.committed(group, topic, 0) == {0: -1}
    assert client.committed(group, other, 0) == {0: 1}
    assert client.commit(Claim(group=group), topic, {1: 2}) == {1: ErrorCode.NONE}
    assert client.committed(group, topic, 0, 1) == {0: -1, 1: 2}


def test_offsets_are_there_for_whoever_joins_later(
    bootstrap: str, client: GroupClient, topic: str, new_name: NewName
) -> None:
    """An operator sets offsets of a group that has no members yet; the first members begin there."""
    fill(bootstrap, topic, PARTITIONS, 10)
    group = new_name("prepared")
    assert set(client.commit(Claim(group=group), topic, {0: 8, 1: 9, 2: 10}).values()) == {ErrorCode.NONE}
    for protocol in ("classic", "consumer"):
        member = Consumer(
            quiet(
                {
                    "bootstrap.servers": bootstrap,
                    "group.id": group,
                    "group.protocol": protocol,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                }
            )
        )
        seen: set[tuple[int | None, int | None]] = set()

        def read(member: Consumer = member, seen: set[tuple[int | None, int | None]] = seen) -> bool:
            for message in member.consume(10, timeout=0.1):
                assert message.error() is None, message.error()
                seen.add((message.partition(), message.offset()))
            return len(seen) == 3

        try:
            member.subscribe([topic])
            eventually("what was left", read)
            assert seen == {(0, 8), (0, 9), (1, 9)}
        finally:
            member.close()
