"""The transactions over topics, as plain rules: what they write together, and what they leave alone."""

import pytest

from headrace.errors import Missing
from headrace.index.rule import StalePlan
from headrace.metadata import keys
from headrace.model.ids import StreamId
from headrace.model.topics import TopicId
from headrace.topics.changing import (
    MAX_REMEMBERED_CHANGES,
    TopicDraft,
    create_topic,
    delete_topic,
    forget_streams,
    grow_topic,
)
from headrace.topics.records import TOPICS_REVISION, TopicsRevision
from tests.unit.topics.registry_kit import RegistryKit

ID = TopicId(b"0123456789abcdef")


def draft(name: str = "a", *, partitions: int = 2, topic_id: TopicId = ID) -> TopicDraft:
    return TopicDraft(id=topic_id, name=name, partition_count=partitions, overrides={})


async def revision(kit: RegistryKit) -> TopicsRevision:
    raw = await kit.store.get(keys.TOPICS_REVISION)
    assert raw is not None
    return TOPICS_REVISION.decode(raw.value, raw.key)


async def test_a_topic_and_all_that_belongs_to_it_are_written_in_one_revision() -> None:
    kit = RegistryKit()
    record = await create_topic(kit.keys, draft(), now_ms=5).apply(kit.store)
    expected = [keys.topic("a"), keys.topic_name("a"), keys.TOPICS_REVISION, kit.keys.state, kit.keys.log(0)]
    expected += [key for stream in record.streams for key in (kit.keys.head(stream), kit.keys.info(stream))]
    assert await kit.stored_keys() == set(expected)
    found = [await kit.store.get(key) for key in expected]
    assert len({item.version for item in found if item is not None}) == 1


async def test_the_same_draft_again_changes_nothing() -> None:
    kit = RegistryKit()
    change = create_topic(kit.keys, draft(), now_ms=5)
    first = await change.apply(kit.store)
    before = await revision(kit)
    assert await change.apply(kit.store) == first
    assert await revision(kit) == before


async def test_a_draft_whose_topic_was_deleted_meanwhile_is_not_created_again() -> None:
    kit = RegistryKit()
    change = create_topic(kit.keys, draft(), now_ms=5)
    record = await change.apply(kit.store)
    await delete_topic(kit.keys, ID, "a", record.streams, now_ms=6).apply(kit.store)
    with pytest.raises(Missing, match="deleted it since"):
        await change.apply(kit.store)


async def test_every_change_raises_the_revision_and_names_the_topic() -> None:
    kit = RegistryKit()
    record = await create_topic(kit.keys, draft(), now_ms=5).apply(kit.store)
    grown = await grow_topic(kit.keys, "a", 3, now_ms=6).apply(kit.store)
    assert await revision(kit) == TopicsRevision(2, ("a", "a"))
    await delete_topic(kit.keys, record.id, "a", grown.streams, now_ms=7).apply(kit.store)
    assert await revision(kit) == TopicsRevision(3, ("a", "a", "a"))


async def test_the_revision_remembers_a_bounded_number_of_changes() -> None:
    kit = RegistryKit()
    names = [f"t{n}" for n in range(MAX_REMEMBERED_CHANGES + 3)]
    await kit.create(*names)
    assert await revision(kit) == TopicsRevision(len(names), tuple(names[3:]))


async def test_deleting_by_an_old_list_of_streams_is_refused_without_effect() -> None:
    kit = RegistryKit()
    record = await create_topic(kit.keys, draft(), now_ms=5).apply(kit.store)
    await grow_topic(kit.keys, "a", 3, now_ms=6).apply(kit.store)
    before = await kit.stored_keys()
    with pytest.raises(StalePlan):
        await delete_topic(kit.keys, ID, "a", record.streams, now_ms=7).apply(kit.store)
    assert await kit.stored_keys() == before


async def test_a_repeated_deletion_spares_a_topic_that_took_the_name_since() -> None:
    kit = RegistryKit()
    record = await create_topic(kit.keys, draft(), now_ms=5).apply(kit.store)
    await delete_topic(kit.keys, ID, "a", record.streams, now_ms=6).apply(kit.store)
    other = TopicId(bytes(16))
    await create_topic(kit.keys, draft(topic_id=other), now_ms=7).apply(kit.store)
    repeat = delete_topic(kit.keys, ID, "a", record.streams, now_ms=8, is_repeat=True)
    await repeat.apply(kit.store)
    await kit.directory.refresh()
    assert kit.directory.get_by_id(other) is not None
    with pytest.raises(Missing):
        await delete_topic(kit.keys, ID, "a", record.streams, now_ms=8).apply(kit.store)


async def test_streams_are_struck_off_until_the_record_goes() -> None:
    kit = RegistryKit()
    record = await create_topic(kit.keys, draft(partitions=3), now_ms=5).apply(kit.store)
    await delete_topic(kit.keys, ID, "a", record.streams, now_ms=6).apply(kit.store)
    first, second, third = record.streams
    assert not await forget_streams(ID, frozenset({second, StreamId(99)})).apply(kit.store)
    assert (await kit.deleted())[0].streams == (first, third)
    assert not await forget_streams(ID, frozenset({second})).apply(kit.store)
    assert await forget_streams(ID, frozenset({first, third})).apply(kit.store)
    assert await kit.deleted() == []
    assert await forget_streams(ID, frozenset({first})).apply(kit.store)
