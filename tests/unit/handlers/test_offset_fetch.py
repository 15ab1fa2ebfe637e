"""OffsetFetch: one group or many, some topics or all, and nothing that nobody committed is an error."""

from typing import Any

import pytest

from headrace.groups.protocol import CommitClaim
from headrace.groups.records import OffsetRecord
from headrace.handlers.call import Refusal
from headrace.handlers.offset_fetch import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import OffsetFetchRequest
from tests.unit.handlers.group_node import AWAY, DOWN, LOADING, MOVED, GroupNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

SINGLE_VERSIONS = range(1, 8)
BATCH_VERSIONS = range(8, 11)
NEWEST = 10
NEWEST_BY_NAME = 9

STRANGER = bytes([7] * 16)
NOTHING = (-1, -1, "", 0)

Topics = list[tuple[str | bytes, list[int]]]


def single(topics: Topics | None, group_id: str = "g", **values: Any) -> OffsetFetchRequest:
    asked = None
    if topics is not None:
        asked = [
            OffsetFetchRequest.OffsetFetchRequestTopic(name=str(name), partition_indexes=indexes)
            for name, indexes in topics
        ]
    return OffsetFetchRequest(group_id=group_id, topics=asked, **values)


def group(topics: Topics | None, group_id: str = "g", **values: Any) -> OffsetFetchRequest.OffsetFetchRequestGroup:
    asked = None
    if topics is not None:
        asked = [
            OffsetFetchRequest.OffsetFetchRequestTopics(
                **({"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}), partition_indexes=indexes
            )
            for topic, indexes in topics
        ]
    return OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=asked, **values)


def batch(*groups: OffsetFetchRequest.OffsetFetchRequestGroup, **values: Any) -> OffsetFetchRequest:
    return OffsetFetchRequest(groups=list(groups), **values)


def told(answer: Any) -> list[tuple[str | bytes, list[tuple[int, int, int, str, int]]]]:
    """Return the topics of an old answer, or of one group of a new one."""
    return [
        (
            topic.name or topic.topic_id,
            [
                (
                    one.partition_index,
                    one.committed_offset,
                    one.committed_leader_epoch,
                    one.metadata,
                    one.error_code,
                )
                for one in topic.partitions
            ],
        )
        for topic in answer.topics
    ]


async def prepared() -> GroupNode:
    """Topic `t` of three partitions with offsets in the first two, `u` with one."""
    kit = GroupNode()
    await kit.create("t", partitions=3)
    await kit.create("u")
    kit.groups.offsets = {
        (kit.id("t"), 1): OffsetRecord(20, -1, "", 0),
        (kit.id("t"), 0): OffsetRecord(10, 6, "note", 0),
        (kit.id("u"), 0): OffsetRecord(30, -1, "", 0),
    }
    return kit


@pytest.mark.parametrize("version", SINGLE_VERSIONS)
async def test_old_versions_fetch_for_one_group(version: int) -> None:
    kit = await prepared()
    topics: Topics = [("t", [0, 1, 2, 9, -1, 0]), ("nope", [0])]
    answer = await ask(handle, kit.node, version, single(topics))
    epoch = 6 if version >= 5 else -1
    assert told(answer) == [
        (
            "t",
            [
                (0, 10, epoch, "note", 0),
                (1, 20, -1, "", 0),
                (2, *NOTHING),
                (9, *NOTHING),
                (-1, *NOTHING),
                (0, 10, epoch, "note", 0),
            ],
        ),
        ("nope", [(0, *NOTHING)]),
    ]
    assert answer.error_code == 0
    ((group_id, claim, wanted),) = kit.groups.fetches
    assert (group_id, claim) == ("g", None)
    assert wanted == [(kit.id("t"), index) for index in (0, 1, 2, 9, 0)], "no key can hold a negative partition"


@pytest.mark.parametrize("version", BATCH_VERSIONS)
async def test_new_versions_fetch_for_many_groups(version: int) -> None:
    kit = await prepared()
    topic = kit.id("t") if version >= NEWEST else "t"
    asked = batch(group([(topic, [0, 2])]), group([], "none"), group(None, "all"))
    answer = await ask(handle, kit.node, version, asked)
    assert [(one.group_id, one.error_code) for one in answer.groups] == [("g", 0), ("none", 0), ("all", 0)]
    some, none, every = answer.groups
    assert told(some) == [(topic, [(0, 10, 6, "note", 0), (2, *NOTHING)])]
    assert told(none) == []
    assert told(every) == [
        (topic, [(0, 10, 6, "note", 0), (1, 20, -1, "", 0)]),
        (kit.id("u") if version >= NEWEST else "u", [(0, 30, -1, "", 0)]),
    ]


@pytest.mark.parametrize("version", range(2, 8))
async def test_null_asks_for_all_topics(version: int) -> None:
    kit = await prepared()
    answer = await ask(handle, kit.node, version, single(None))
    assert [name for name, _ in told(answer)] == ["t", "u"]
    assert kit.groups.fetches == [("g", None, None)]


@pytest.mark.parametrize("version", SINGLE_VERSIONS)
async def test_empty_list_asks_for_nothing(version: int) -> None:
    kit = await prepared()
    answer = await ask(handle, kit.node, version, single([]))
    assert (answer.topics, answer.error_code) == ([], 0)


@pytest.mark.parametrize("version", [7, NEWEST_BY_NAME])
async def test_all_topics_are_those_that_still_exist(version: int) -> None:
    kit = await prepared()
    await kit.admin.delete(kit.id("t"))
    await kit.create("t")
    await kit.create_elsewhere("far")
    (far,) = [topic for topic in await _everything(kit) if topic.name == "far"]
    kit.groups.offsets[far.id, 0] = OffsetRecord(40, -1, "", 0)
    asked = single(None) if version < 8 else batch(group(None))
    answer = await ask(handle, kit.node, version, asked)
    assert [name for name, _ in told(answer if version < 8 else answer.groups[0])] == ["u", "far"]


async def _everything(kit: GroupNode) -> list[Any]:
    directory = kit.another_directory()
    await directory.refresh()
    return directory.known()


async def test_topic_that_was_made_again_begins_without_offsets() -> None:
    kit = await prepared()
    await kit.admin.delete(kit.id("t"))
    await kit.create("t")
    answer = await ask(handle, kit.node, 7, single([("t", [0])]))
    assert told(answer) == [("t", [(0, *NOTHING)])]


async def test_topic_that_another_broker_made_is_known() -> None:
    kit = await prepared()
    await kit.create_elsewhere("far")
    (far,) = [topic for topic in await _everything(kit) if topic.name == "far"]
    kit.groups.offsets[far.id, 0] = OffsetRecord(40, -1, "", 0)
    answer = await ask(handle, kit.node, NEWEST, batch(group([(far.id, [0])])))
    assert told(answer.groups[0]) == [(far.id, [(0, 40, -1, "", 0)])]


async def test_unknown_id_is_an_error_of_that_topic_alone() -> None:
    kit = await prepared()
    answer = await ask(handle, kit.node, NEWEST, batch(group([(STRANGER, [3, 4]), (kit.id("u"), [0])])))
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert told(answer.groups[0]) == [
        (STRANGER, [(3, -1, -1, "", unknown), (4, -1, -1, "", unknown)]),
        (kit.id("u"), [(0, 30, -1, "", 0)]),
    ]
    assert answer.groups[0].error_code == 0


@pytest.mark.parametrize("version", BATCH_VERSIONS)
async def test_member_says_who_it_is_where_it_can(version: int) -> None:
    kit = await prepared()
    values: dict[str, Any] = {"member_id": "m1", "member_epoch": 4} if version >= 9 else {}
    await ask(handle, kit.node, version, batch(group(None, **values), group(None)))
    claim = CommitClaim(member_id="m1", instance_id=None, epoch=4, knows_epochs=True)
    assert [one for _, one, _ in kit.groups.fetches] == [claim if version >= 9 else None, None]


@pytest.mark.parametrize("version", [7, NEWEST_BY_NAME])
async def test_all_offsets_are_stable(version: int) -> None:
    kit = await prepared()
    topics: Topics = [("t", [0])]
    asked = single(topics, require_stable=True) if version < 8 else batch(group(topics), require_stable=True)
    answer = await ask(handle, kit.node, version, asked)
    assert told(answer if version < 8 else answer.groups[0])[0][1][0][1] == 10


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (MOVED, ErrorCode.NOT_COORDINATOR),
        (LOADING, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (AWAY, ErrorCode.NOT_COORDINATOR),
    ],
)
@pytest.mark.parametrize("version", SINGLE_VERSIONS)
async def test_refusal_of_the_coordinator_stands_at_the_answer_and_at_every_partition(
    version: int, failure: Exception, code: ErrorCode
) -> None:
    kit = await prepared()
    kit.groups.failure = failure
    answer = await ask(handle, kit.node, version, single([("t", [0, 1])]))
    assert answer.error_code == (code if version >= 2 else 0)
    assert told(answer) == [("t", [(0, -1, -1, "", code), (1, -1, -1, "", code)])]


@pytest.mark.parametrize("version", BATCH_VERSIONS)
async def test_group_that_is_refused_does_not_sink_its_neighbours(version: int) -> None:
    kit = await prepared()
    kit.groups.failing_groups = {"moved": MOVED, "down": DOWN}
    asked = batch(group(None, "moved"), group(None), group([], "down"))
    answer = await ask(handle, kit.node, version, asked)
    moved = ErrorCode.NOT_COORDINATOR
    assert [(one.group_id, one.error_code) for one in answer.groups] == [("moved", moved), ("g", 0), ("down", moved)]


@pytest.mark.parametrize("version", range(1, NEWEST + 1))
def test_refusal_names_every_group_and_partition(version: int) -> None:
    topic = STRANGER if version >= NEWEST else "t"
    asked = single([("t", [0])]) if version < 8 else batch(group([(topic, [0])], "a"), group(None, "b"))
    answer = over_the_wire(refused(call(version), asked, Refusal(ErrorCode.REQUEST_TIMED_OUT)), version)
    code = ErrorCode.NOT_COORDINATOR
    if version < 8:
        assert (answer.error_code, told(answer)) == (code if version >= 2 else 0, [("t", [(0, -1, -1, "", code)])])
    else:
        assert [(one.group_id, one.error_code) for one in answer.groups] == [("a", code), ("b", code)]
        assert told(answer.groups[0]) == [(topic, [(0, -1, -1, "", code)])]
