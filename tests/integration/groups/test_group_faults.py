"""Group requests that cannot be: each gets its code, memory stays flat, and the group of others goes on."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import OffsetFetchRequest
from tests.integration.clients.librdkafka import create_topic
from tests.integration.clients.waiting import eventually
from tests.integration.groups.frames import JOIN_GROUP, JOIN_VERSION, GroupFrames, flexible_commit, join_body
from tests.integration.groups.group_wire import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    OFFSET_FETCH,
    STATIC_LEAVING_EPOCH,
    Claim,
    GroupClient,
    assigned_partitions,
    assignment_of,
    subscription_to,
)
from tests.integration.wire.raw import text
from tests.integration.wire.watching import MIB, closing, forget_peak, peak_memory_bytes
from tests.servers.headrace import HeadraceProcess

NewName = Callable[[str], str]

TOPIC = f"faults-{uuid.uuid4().hex[:8]}"
MAX_MEMBERS = 20
MAX_IDS_GIVEN_OUT = 10_000
PIPELINED = 500


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return {"group.max.size": str(MAX_MEMBERS), "group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module", autouse=True)
def topic(bootstrap: str) -> None:
    create_topic(bootstrap, TOPIC, 2)


@pytest.fixture
def frames(port: int) -> Iterator[GroupFrames]:
    with GroupFrames(port) as connected:
        yield connected


@pytest.fixture
def client(port: int) -> Iterator[GroupClient]:
    with GroupClient(port) as connected:
        yield connected


@pytest.fixture
def group(new_name: NewName) -> str:
    return new_name("group")


def test_join_with_a_session_timeout_out_of_range(frames: GroupFrames, group: str) -> None:
    for session_ms in (-1, 0, 5_999, 1_800_001, 2**31 - 1):
        code, _, _ = frames.join(join_body(group, session_ms=session_ms))
        assert code == ErrorCode.INVALID_SESSION_TIMEOUT, session_ms
    for session_ms in (6_000, 1_800_000):
        assert frames.join(join_body(group, session_ms=session_ms))[0] == ErrorCode.MEMBER_ID_REQUIRED


def test_join_without_a_protocol_or_with_another_than_the_group_has(frames: GroupFrames, group: str) -> None:
    inconsistent = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert frames.join(join_body(group, protocols=()))[0] == inconsistent
    assert frames.join(join_body(group, protocol_type=""))[0] == inconsistent
    generation, member_id = frames.become_only_member(group)
    assert frames.join(join_body(group, protocol_type="connect"))[0] == inconsistent
    assert frames.join(join_body(group, protocols=("roundrobin",)))[0] == inconsistent
    assert frames.join(join_body(group, protocols=()))[0] == inconsistent
    assert frames.beat(group, generation, member_id) == ErrorCode.NONE, "the group of the others goes on"


def test_a_group_without_a_name(frames: GroupFrames, client: GroupClient) -> None:
    invalid = ErrorCode.INVALID_GROUP_ID
    assert frames.join(join_body(""))[0] == invalid
    assert frames.sync("", 1, "someone") == invalid
    assert frames.beat("", 1, "someone") == invalid
    assert frames.leave("", "someone") == invalid
    joining = Claim(group="", member_id=str(uuid.uuid4()), epoch=JOINING_EPOCH)
    assert client.consumer_beat(joining, topics=[TOPIC], owned={}).error_code == ErrorCode.INVALID_REQUEST
    assert "" not in client.listed()


def test_a_member_that_nobody_knows(frames: GroupFrames, group: str) -> None:
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    for known in (f"{group}-unknown", group):
        assert frames.join(join_body(known, "nobody"))[0] == unknown
        assert frames.sync(known, 1, "nobody") == unknown
        assert frames.beat(known, 1, "nobody") == unknown
        assert frames.leave(known, "nobody") == unknown
        if known != group:
            frames.become_only_member(group)
    assert frames.commit(group, TOPIC, generation=1, member_id="nobody") == unknown
    assert frames.commit(group, TOPIC) == unknown, "a stranger in a group with members"
    # Where there is no group, there is no generation either.
    assert frames.commit(f"{group}-unknown", TOPIC, generation=1, member_id="nobody") == ErrorCode.ILLEGAL_GENERATION


def test_a_generation_that_is_over_or_never_was(frames: GroupFrames, group: str) -> None:
    illegal = ErrorCode.ILLEGAL_GENERATION
    generation, member_id = frames.become_only_member(group)
    for wrong in (generation - 1, generation + 1, 2**31 - 1):
        assert frames.sync(group, wrong, member_id, member_id) == illegal
        assert frames.beat(group, wrong, member_id) == illegal
        assert frames.commit(group, TOPIC, generation=wrong, member_id=member_id) == illegal
    assert frames.commit(group, TOPIC, generation=generation, member_id=member_id) == ErrorCode.NONE
    _, joined_again, _ = frames.join(join_body(group, member_id))
    assert joined_again == generation + 1
    assert frames.beat(group, generation, member_id) == illegal


def test_an_instance_id_that_belongs_to_another(frames: GroupFrames, group: str) -> None:
    generation, member_id = frames.become_only_member(group)
    code = frames.commit(group, TOPIC, generation=generation, member_id=member_id, instance_id=text("another"))
    assert code == ErrorCode.UNKNOWN_MEMBER_ID
    assert frames.beat(group, generation, member_id) == ErrorCode.NONE


def test_a_commit_with_all_the_metadata_that_a_string_can_hold(
    frames: GroupFrames, client: GroupClient, group: str
) -> None:
    assert frames.commit(group, TOPIC, metadata=b"x" * 32_767) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert client.committed(group, TOPIC, 0) == {0: -1}


def test_a_commit_with_a_megabyte_of_metadata(
    broker: HeadraceProcess, frames: GroupFrames, client: GroupClient, group: str
) -> None:
    """Lengths of the newer encoding could be as large as that, and no string of Kafka's is: the connection ends."""
    frames.send(flexible_commit(group, TOPIC, metadata=b"short"))
    frames.answer(tags=b"\0")
    assert client.committed(group, TOPIC, 0) == {0: 5}
    before_bytes = forget_peak(broker)
    frames.send(flexible_commit(f"{group}-large", TOPIC, metadata=b"x" * MIB))
    assert frames.rest() == b""
    assert closing(broker, frames.name)["reason"]
    assert peak_memory_bytes(broker) - before_bytes < 64 * MIB
    assert client.committed(f"{group}-large", TOPIC, 0) == {0: -1}


def test_join_with_ten_megabytes_of_metadata(broker: HeadraceProcess, frames: GroupFrames, group: str) -> None:
    before_bytes = forget_peak(broker)
    for _ in range(5):
        code, generation, _ = frames.join(join_body(group, metadata=b"x" * (10 * MIB)))
        assert (code, generation) == (ErrorCode.INVALID_REQUEST, -1)
    assert peak_memory_bytes(broker) - before_bytes < 64 * MIB
    generation, member_id = frames.become_only_member(group)
    code = frames.sync(group, generation, member_id, member_id, assignment=b"x" * (10 * MIB))
    assert code == ErrorCode.INVALID_REQUEST
    assert frames.beat(group, generation, member_id) == ErrorCode.NONE


def test_more_members_of_the_newer_protocol_than_a_group_may_have(client: GroupClient, group: str) -> None:
    topics, consumers = [TOPIC], f"{group}-consumers"
    claims = [
        Claim(group=consumers, member_id=str(uuid.uuid4()), epoch=JOINING_EPOCH) for _ in range(MAX_MEMBERS + 1)
    ]
    codes = [client.consumer_beat(claim, topics=topics, owned={}).error_code for claim in claims]
    assert codes == [ErrorCode.NONE] * MAX_MEMBERS + [ErrorCode.GROUP_MAX_SIZE_REACHED]
    leaving = Claim(group=consumers, member_id=claims[0].member_id, epoch=LEAVING_EPOCH)
    assert client.consumer_beat(leaving).error_code == ErrorCode.NONE
    assert client.consumer_beat(claims[-1], topics=topics, owned={}).error_code == ErrorCode.NONE


def test_more_classic_members_than_a_group_may_have(broker: HeadraceProcess, group: str) -> None:
    with contextlib.ExitStack() as stack:
        leader, *others = [stack.enter_context(GroupFrames(broker.kafka_port)) for _ in range(MAX_MEMBERS)]
        generation, member_id = leader.become_only_member(group)
        for frames in others:
            given = frames.join(join_body(group))[2]
            frames.send_request(JOIN_GROUP, JOIN_VERSION, join_body(group, given))
        rebalancing = ErrorCode.REBALANCE_IN_PROGRESS
        eventually("the first hears of it", lambda: leader.beat(group, generation, member_id) == rebalancing)
        # This one waits until all have joined; so do they.
        assert leader.join(join_body(group, member_id)) == (ErrorCode.NONE, generation + 1, member_id)
        assert {frames.joined()[:2] for frames in others} == {(ErrorCode.NONE, generation + 1)}
        with GroupFrames(broker.kafka_port) as too_many:
            assert too_many.join(join_body(group))[0] == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert leader.leave(group, member_id) == ErrorCode.NONE
        with GroupFrames(broker.kafka_port) as welcome:
            assert welcome.join(join_body(group))[0] == ErrorCode.MEMBER_ID_REQUIRED


def test_ten_thousand_who_ask_for_an_id_and_never_come_back(
    broker: HeadraceProcess, frames: GroupFrames, group: str
) -> None:
    before_bytes = forget_peak(broker)
    codes = []
    for _ in range(MAX_IDS_GIVEN_OUT // PIPELINED):
        for _ in range(PIPELINED):
            frames.send_request(JOIN_GROUP, JOIN_VERSION, join_body(group))
        codes += [frames.joined()[0] for _ in range(PIPELINED)]
    assert set(codes) == {ErrorCode.MEMBER_ID_REQUIRED}
    assert frames.join(join_body(group))[0] == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert peak_memory_bytes(broker) - before_bytes < 64 * MIB


def test_what_members_of_the_newer_protocol_must_not_say(client: GroupClient, group: str) -> None:
    claim = client.become_consumer(group, TOPIC, 2)
    fenced = Claim(group=group, member_id=claim.member_id, epoch=claim.epoch + 1)
    unknown = Claim(group=group, member_id=str(uuid.uuid4()), epoch=claim.epoch)
    assert client.consumer_beat(fenced).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert client.consumer_beat(unknown).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    for version, stale, expected in (
        (9, fenced, ErrorCode.STALE_MEMBER_EPOCH),
        (9, unknown, ErrorCode.UNKNOWN_MEMBER_ID),
        # A request of before KIP-848 cannot be answered with a code that its client would understand.
        (8, claim, ErrorCode.UNSUPPORTED_VERSION),
        (9, claim, ErrorCode.NONE),
    ):
        assert client.commit(stale, TOPIC, {0: 1}, version=version) == {0: expected}, (version, stale)
    for asks, code in (
        (fenced, ErrorCode.STALE_MEMBER_EPOCH),
        (unknown, ErrorCode.UNKNOWN_MEMBER_ID),
        (claim, ErrorCode.NONE),
    ):
        request = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=group, member_id=asks.member_id, member_epoch=asks.epoch, topics=None
        )
        (found,) = client.ask(OFFSET_FETCH, 9, OffsetFetchRequest(groups=[request])).groups
        assert found.error_code == code


def test_an_older_classic_member_with_the_same_instance_id_is_fenced(client: GroupClient, group: str) -> None:
    joining, metadata = Claim(group=group, instance_id="one"), subscription_to(TOPIC)
    joined = client.join(joining, metadata)
    older = replace(joining, member_id=joined.member_id, epoch=joined.generation_id)
    assert client.sync(older, {older.member_id: assignment_of(TOPIC, 2)}).error_code == ErrorCode.NONE
    joined = client.join(joining, metadata)
    newer = replace(joining, member_id=joined.member_id, epoch=joined.generation_id)
    assert joined.error_code == ErrorCode.NONE and newer.member_id != older.member_id
    assert newer.epoch == older.epoch, "nobody has to rebalance"
    assert client.beat(older) == ErrorCode.FENCED_INSTANCE_ID
    assert client.commit(older, TOPIC, {0: 1}) == {0: ErrorCode.FENCED_INSTANCE_ID}
    assert client.beat(newer) == ErrorCode.NONE
    assert assigned_partitions(client.sync(newer).assignment, TOPIC) == [0, 1]


def test_a_second_member_of_the_newer_protocol_with_the_same_instance_id_has_to_wait(
    client: GroupClient, group: str
) -> None:
    older, newer = (
        Claim(group=group, instance_id="one", member_id=str(uuid.uuid4()), epoch=JOINING_EPOCH) for _ in range(2)
    )
    epoch = client.consumer_beat(older, topics=[TOPIC], owned={}).member_epoch
    refused = client.consumer_beat(newer, topics=[TOPIC], owned={})
    assert refused.error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert client.consumer_beat(replace(older, epoch=epoch)).error_code == ErrorCode.NONE
    assert client.consumer_beat(replace(older, epoch=STATIC_LEAVING_EPOCH)).error_code == ErrorCode.NONE
    taken = client.consumer_beat(newer, topics=[TOPIC], owned={})
    assert taken.error_code == ErrorCode.NONE and taken.assignment is not None
    assert sorted(taken.assignment.topic_partitions[0].partitions) == [0, 1], "the same partitions at once"
    assert client.consumer_beat(replace(older, epoch=epoch)).error_code == ErrorCode.FENCED_INSTANCE_ID


def test_the_two_protocols_do_not_mix_by_accident(client: GroupClient, frames: GroupFrames, group: str) -> None:
    """A classic member that is no consumer cannot be in a group of consumers, nor the other way round."""
    client.become_consumer(group, TOPIC, 2)
    assert frames.join(join_body(group, protocol_type="connect"))[0] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = f"{group}-connect"
    _, _, given = frames.join(join_body(other, protocol_type="connect"))
    code, generation, member_id = frames.join(join_body(other, given, protocol_type="connect"))
    assert code == ErrorCode.NONE
    assert frames.sync(other, generation, member_id, member_id) == ErrorCode.NONE
    joining = Claim(group=other, member_id=str(uuid.uuid4()), epoch=JOINING_EPOCH)
    assert client.consumer_beat(joining, topics=[TOPIC], owned={}).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert frames.beat(other, generation, member_id) == ErrorCode.NONE
