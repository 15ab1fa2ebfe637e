"""OffsetCommit: what can be committed is, and every partition hears what became of it."""

from typing import Any

import pytest

from headrace.groups.protocol import CommitClaim
from headrace.groups.records import OffsetRecord
from headrace.handlers.call import Refusal
from headrace.handlers.offset_commit import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import OffsetCommitRequest, OffsetCommitResponse
from tests.unit.handlers.group_node import AWAY, LOADING, MAX_METADATA, MOVED, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

VERSIONS = range(11)
NEWEST = 10
NEWEST_BY_NAME = 9

NOW_MS = 1_700_000_000_000
STRANGER = bytes([7] * 16)
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
TOO_LARGE = ErrorCode.OFFSET_METADATA_TOO_LARGE

Partition = OffsetCommitRequest.OffsetCommitRequestPartition
Asked = tuple[str | bytes, list[Partition]]


def part(index: int, offset: int = 5, metadata: str | None = "", **values: int) -> Partition:
    return Partition(partition_index=index, committed_offset=offset, committed_metadata=metadata, **values)


def request(*topics: Asked, group_id: str = "g", **values: Any) -> OffsetCommitRequest:
    """Name topics by id where bytes are given."""
    asked = [
        OffsetCommitRequest.OffsetCommitRequestTopic(topic_id=topic, partitions=partitions)
        if isinstance(topic, bytes)
        else OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)
        for topic, partitions in topics
    ]
    return OffsetCommitRequest(group_id=group_id, topics=asked, **values)


def codes(answer: OffsetCommitResponse) -> list[tuple[str | bytes, list[tuple[int, int]]]]:
    return [
        (topic.name or topic.topic_id, [(one.partition_index, one.error_code) for one in topic.partitions])
        for topic in answer.topics
    ]


async def with_topic(partitions: int = 3) -> GroupNode:
    kit = GroupNode()
    await kit.create("t", partitions=partitions)
    return kit


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_commits_for_a_member(version: int) -> None:
    kit = await with_topic()
    values: dict[str, Any] = {}
    if version >= 1:
        values |= {"member_id": "m1", "generation_id_or_member_epoch": 3}
    if version >= 7:
        values["group_instance_id"] = "i1"
    topic = kit.id("t") if version >= NEWEST else "t"
    partition = part(1, 42, "note", **({"committed_leader_epoch": 6} if version >= 6 else {}))
    answer = await ask(handle, kit.node, version, request((topic, [partition]), **values))
    assert codes(answer) == [(topic, [(1, 0)])]
    claim = CommitClaim(
        member_id="m1" if version >= 1 else "",
        instance_id="i1" if version >= 7 else None,
        epoch=3 if version >= 1 else -1,
        knows_epochs=version >= 9,
    )
    record = OffsetRecord(42, 6 if version >= 6 else -1, "note", NOW_MS)
    assert kit.groups.commits == [("g", claim, {(kit.id("t"), 1): record})]


async def test_oldest_clients_may_tell_the_time_of_a_commit() -> None:
    kit = await with_topic()
    partitions = [part(0, commit_timestamp=77), part(1, commit_timestamp=-1)]
    await ask(handle, kit.node, 1, request(("t", partitions)))
    records = kit.groups.commits[0][2].values()
    assert [(one.committed_at_ms, one.expires_at_ms) for one in records] == [(77, None), (NOW_MS, None)]


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(("retention_ms", "expires_at_ms"), [(1_000, NOW_MS + 1_000), (-1, None)])
async def test_old_clients_may_ask_for_a_retention_of_their_own(
    version: int, retention_ms: int, expires_at_ms: int | None
) -> None:
    kit = await with_topic()
    await ask(handle, kit.node, version, request(("t", [part(0)]), retention_time_ms=retention_ms))
    (record,) = kit.groups.commits[0][2].values()
    assert record.expires_at_ms == expires_at_ms


async def test_bad_partitions_do_not_sink_their_neighbours() -> None:
    kit = await with_topic()
    await kit.create("u")
    partitions = [part(0), part(9), part(-1), part(1, metadata="x" * (MAX_METADATA + 1)), part(2, -7, None)]
    answer = await ask(
        handle, kit.node, NEWEST_BY_NAME, request(("t", partitions), ("nope", [part(0)]), ("u", [part(0)]))
    )
    assert codes(answer) == [
        ("t", [(0, 0), (9, UNKNOWN), (-1, UNKNOWN), (1, TOO_LARGE), (2, 0)]),
        ("nope", [(0, UNKNOWN)]),
        ("u", [(0, 0)]),
    ]
    assert kit.groups.commits[0][2] == {
        (kit.id("t"), 0): OffsetRecord(5, -1, "", NOW_MS),
        (kit.id("t"), 2): OffsetRecord(-7, -1, "", NOW_MS),
        (kit.id("u"), 0): OffsetRecord(5, -1, "", NOW_MS),
    }


async def test_topics_that_do_not_exist_are_unknown_by_id() -> None:
    kit = await with_topic()
    answer = await ask(handle, kit.node, NEWEST, request((STRANGER, [part(0)]), (kit.id("t"), [part(0), part(9)])))
    assert codes(answer) == [
        (STRANGER, [(0, ErrorCode.UNKNOWN_TOPIC_ID)]),
        (kit.id("t"), [(0, 0), (9, UNKNOWN)]),
    ]


@pytest.mark.parametrize("character", ["x", "é", "🜁"])
async def test_note_may_fill_its_limit_with_any_characters(character: str) -> None:
    kit = await with_topic()
    partitions = [part(0, metadata=character * MAX_METADATA), part(1, metadata=character * (MAX_METADATA + 1))]
    answer = await ask(handle, kit.node, NEWEST_BY_NAME, request(("t", partitions)))
    assert codes(answer) == [("t", [(0, 0), (1, TOO_LARGE)])]


async def test_partition_that_is_named_twice_has_the_last_offset() -> None:
    kit = await with_topic()
    answer = await ask(
        handle, kit.node, NEWEST_BY_NAME, request(("t", [part(0, 6), part(0, 8)]), ("t", [part(0, 9)]))
    )
    assert codes(answer) == [("t", [(0, 0), (0, 0)]), ("t", [(0, 0)])]
    assert [record.offset for record in kit.groups.commits[0][2].values()] == [9]


async def test_topic_that_another_broker_made_or_grew_is_known() -> None:
    kit = await with_topic(partitions=1)
    await kit.create_elsewhere("u")
    await kit.grow_elsewhere("t", 4)
    answer = await ask(handle, kit.node, NEWEST_BY_NAME, request(("t", [part(3)]), ("u", [part(0)])))
    assert codes(answer) == [("t", [(3, 0)]), ("u", [(0, 0)])]


async def test_topic_that_is_known_costs_no_read() -> None:
    kit = await with_topic()
    kit.store.gets.clear()
    await ask(handle, kit.node, NEWEST, request((kit.id("t"), [part(0)])))
    assert kit.store.gets == []


async def test_offsets_go_to_the_topic_that_has_the_name_now() -> None:
    kit = await with_topic()
    old = kit.id("t")
    await kit.admin.delete(old)
    await kit.create("t")
    await ask(handle, kit.node, NEWEST_BY_NAME, request(("t", [part(0)])))
    assert list(kit.groups.commits[0][2]) == [(kit.id("t"), 0)] != [(old, 0)]


async def test_code_of_the_group_stands_at_every_partition_that_exists() -> None:
    kit = await with_topic()
    kit.groups.commit_code = ErrorCode.UNKNOWN_MEMBER_ID
    partitions = [part(0), part(1, metadata="x" * (MAX_METADATA + 1)), part(9)]
    answer = await ask(handle, kit.node, NEWEST_BY_NAME, request(("t", partitions), ("nope", [part(0)])))
    member = ErrorCode.UNKNOWN_MEMBER_ID
    assert codes(answer) == [("t", [(0, member), (1, member), (9, UNKNOWN)]), ("nope", [(0, UNKNOWN)])]


async def test_group_is_asked_although_all_notes_are_too_large() -> None:
    kit = await with_topic()
    answer = await ask(handle, kit.node, NEWEST_BY_NAME, request(("t", [part(0, metadata="x" * 99)])))
    assert codes(answer) == [("t", [(0, TOO_LARGE)])]
    assert [offsets for _, _, offsets in kit.groups.commits] == [{}]


@pytest.mark.parametrize("topics", [[], [("nope", [part(0)])], [("t", [part(9)])]])
async def test_group_is_not_asked_for_partitions_that_do_not_exist(topics: list[Asked]) -> None:
    kit = await with_topic()
    kit.groups.failure = MOVED
    answer = await ask(handle, kit.node, NEWEST_BY_NAME, request(*topics))
    assert [code for _, partitions in codes(answer) for _, code in partitions] == [UNKNOWN] * len(topics)


async def test_group_without_a_name_has_offsets() -> None:
    kit = await with_topic()
    answer = await ask(handle, kit.node, NEWEST_BY_NAME, request(("t", [part(0)]), group_id=""))
    assert (codes(answer), kit.groups.commits[0][0]) == ([("t", [(0, 0)])], "")


@pytest.mark.parametrize("failure", [MOVED, LOADING, AWAY])
async def test_refusals_of_the_coordinator_are_answered_and_not_raised(failure: Exception) -> None:
    kit = await with_topic()
    kit.groups.failure = failure
    answer = await ask(handle, kit.node, NEWEST_BY_NAME, request(("t", [part(0), part(9)])))
    assert codes(answer) == [("t", [(0, failure.code), (9, UNKNOWN)])]  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_names_every_partition(version: int) -> None:
    topic = STRANGER if version >= NEWEST else "t"
    asked = request((topic, [part(0), part(1)]))
    answer = over_the_wire(refused(call(version), asked, Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "down")), version)
    away = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert codes(answer) == [(topic, [(0, away), (1, away)])]
