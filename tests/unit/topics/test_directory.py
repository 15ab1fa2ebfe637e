"""The topic directory: knows what was committed before it was asked, and reads little for it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Corrupt, Exists, Retryable
from headrace.metadata import keys
from headrace.metadata.port import Decision, Reads
from headrace.model.topics import TopicId
from headrace.topics import directory as directory_module
from headrace.topics.admin import NewTopic
from headrace.topics.changing import MAX_REMEMBERED_CHANGES
from headrace.topics.configs import ConfigSource, DefaultLayer, TopicDefaults
from headrace.topics.directory import TopicDirectory
from tests.restoring import restore, save
from tests.unit.topics.registry_kit import RegistryKit


def names_of(directory: TopicDirectory) -> list[str]:
    return [topic.name for topic in directory.known()]


async def test_an_empty_registry_is_known_after_one_get() -> None:
    kit = RegistryKit()
    await kit.directory.refresh()
    assert kit.directory.known() == []
    assert kit.store.gets == [keys.TOPICS_REVISION] and kit.store.ranges == 0


async def test_topics_are_found_by_name_and_id_and_listed_by_name() -> None:
    kit = RegistryKit()
    await kit.create("b", "a", "c")
    other = kit.another_directory()
    assert other.get("a") is None
    await other.refresh()
    topic = other.get("a")
    assert topic is not None and topic.name == "a" and len(topic.streams) == 1
    assert other.get_by_id(topic.id) is topic
    assert other.get_by_id(TopicId(bytes(16))) is None
    assert names_of(other) == ["a", "b", "c"]


async def test_refreshing_an_unchanged_registry_is_one_get() -> None:
    kit = RegistryKit()
    await kit.create("a", "b")
    kit.store.gets.clear()
    await kit.directory.refresh()
    assert kit.store.gets == [keys.TOPICS_REVISION] and kit.store.ranges == 0


async def test_a_few_changes_are_read_one_by_one_and_the_rest_stays_as_it_is() -> None:
    kit = RegistryKit()
    await kit.create("a", "b", "c")
    other = kit.another_directory()
    await other.refresh()
    untouched = other.get("a")
    await kit.admin.add_partitions("b", 5)
    c = kit.directory.get("c")
    assert c is not None
    await kit.admin.delete(c.id)
    kit.store.gets.clear()
    await other.refresh()
    assert kit.store.gets == [keys.TOPICS_REVISION, keys.topic("b"), keys.topic("c")]
    assert names_of(other) == ["a", "b"] and other.get("a") is untouched
    assert other.get_by_id(c.id) is None and other.by_stream(c.streams[0]) is None
    b = other.get("b")
    assert b is not None and len(b.streams) == 5
    assert all(other.by_stream(stream) is b for stream in b.streams)
    assert other.rules_of_stream(b.streams[4]) is b.rules and other.rules_of_stream(c.streams[0]) is None


async def test_a_directory_that_is_far_behind_reads_everything_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "TOPICS_PER_READ", 7)
    kit = RegistryKit()
    await kit.create("gone", "kept")
    other = kit.another_directory()
    await other.refresh()
    kept, gone = other.get("kept"), other.get("gone")
    assert gone is not None
    await kit.admin.delete(gone.id)
    fresh = [f"t{n:02d}" for n in range(MAX_REMEMBERED_CHANGES)]
    await kit.create(*fresh)
    kit.store.ranges = 0
    await other.refresh()
    assert names_of(other) == ["kept", *fresh]
    assert kit.store.ranges == (len(fresh) + 1) // 7 + 1
    assert other.get("kept") is kept, "a topic that has not changed is not made anew"
    assert other.get_by_id(gone.id) is None


async def test_a_topic_that_was_created_again_has_its_new_id_only() -> None:
    kit = RegistryKit()
    await kit.create("a")
    other = kit.another_directory()
    await other.refresh()
    old = other.get("a")
    assert old is not None
    await kit.admin.delete(old.id)
    await kit.create("a")
    await other.refresh()
    new = other.get("a")
    assert new is not None and new.id != old.id
    assert other.get_by_id(old.id) is None and other.get_by_id(new.id) is new


async def test_a_read_that_began_before_the_call_does_not_serve_it() -> None:
    kit = RegistryKit()
    other = kit.another_directory()
    kit.store.gate = asyncio.Event()
    early = asyncio.create_task(other.refresh())
    while not kit.store.gets:
        await asyncio.sleep(0)
    # The revision has been read, its answer is on the way; now a topic is created.
    gate, kit.store.gate = kit.store.gate, None
    await kit.create("a")
    late = [asyncio.create_task(other.refresh()) for _ in range(3)]
    gate.set()
    await early
    await asyncio.gather(*late)
    assert other.get("a") is not None


async def test_concurrent_refreshes_share_a_read() -> None:
    kit = RegistryKit()
    await asyncio.gather(*(kit.directory.refresh() for _ in range(50)))
    assert len(kit.store.gets) == 1


async def test_following_learns_of_changes_and_outlives_an_outage() -> None:
    kit = RegistryKit()
    other = kit.another_directory()
    follower = asyncio.create_task(other.follow())
    await kit.create("a")
    while other.get("a") is None:
        await asyncio.sleep(0)
    kit.store.reads_fail = True
    await kit.create("b")
    while not kit.clock.slept:
        await asyncio.sleep(0)
    kit.store.reads_fail = False
    while other.get("b") is None:
        await asyncio.sleep(0)
    follower.cancel()
    with pytest.raises(asyncio.CancelledError):
        await follower


async def test_a_refresh_that_fails_says_so_and_the_next_one_works() -> None:
    kit = RegistryKit()
    await kit.create("a")
    other = kit.another_directory()
    kit.store.reads_fail = True
    with pytest.raises(Retryable):
        await other.refresh()
    kit.store.reads_fail = False
    await other.refresh()
    assert other.get("a") is not None


async def test_a_damaged_record_is_never_taken_for_an_absent_topic() -> None:
    kit = RegistryKit()
    await kit.create("a", "b")
    spoil = Decision(result=None, puts={keys.topic("a"): b"\x01spoilt"})
    await kit.store.transact([keys.REGISTRY], Reads(), lambda _: spoil)
    with pytest.raises(Corrupt, match="topics/=a"):
        await kit.another_directory().refresh()


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["create", "grow", "delete", "look"])), max_size=60)
)
def test_any_history_is_known_after_a_refresh(history: list[tuple[str, str]]) -> None:
    async def live() -> None:
        kit = RegistryKit()
        other = kit.another_directory()
        model: dict[str, int] = {}
        for name, deed in history:
            known = kit.directory.get(name)
            if deed == "create" and name not in model:
                await kit.admin.create(NewTopic(name=name, partition_count=1))
                model[name] = 1
            elif deed == "create":
                with pytest.raises(Exists):
                    await kit.admin.create(NewTopic(name=name))
            elif deed == "grow" and name in model:
                model[name] += 1
                await kit.admin.add_partitions(name, model[name])
            elif deed == "delete" and known is not None:
                await kit.admin.delete(known.id)
                del model[name]
            elif deed == "look":
                await other.refresh()
        await other.refresh()
        for seen in (kit.directory, other):
            assert {topic.name: len(topic.streams) for topic in seen.known()} == model
            assert all(seen.get_by_id(topic.id) is topic for topic in seen.known())
            assert all(seen.by_stream(stream) is topic for topic in seen.known() for stream in topic.streams)
        streams = [stream for topic in other.known() for stream in topic.streams]
        assert len(streams) == len(set(streams))

    asyncio.run(live())


async def test_other_defaults_count_for_all_topics_at_once_and_listeners_hear_of_it() -> None:
    kit = RegistryKit()
    await kit.create("a", "b")
    await kit.admin.set_configs("b", {"max.message.bytes": "7"})
    heard: list[int] = []
    kit.directory.on_change(lambda: heard.append(kit.directory.generation))
    layer = DefaultLayer(
        source=ConfigSource.DYNAMIC_BROKER_CONFIG,
        values={"message.max.bytes": "5000", "log.retention.ms": "9", "num.partitions": "3", "compression.type": "?"},
    )
    kit.directory.use_defaults(TopicDefaults(layers=[layer]))
    a, b = kit.directory.known()
    assert (a.rules.max_message_bytes, b.rules.max_message_bytes) == (5000, 7)
    assert (a.retention.max_age_ms, a.rules.compression) == (9, None)
    assert a.configs == {"max.message.bytes": "5000", "retention.ms": "9"}
    assert kit.directory.by_stream(a.streams[0]) is a and kit.directory.get_by_id(b.id) is b
    kit.directory.use_defaults(TopicDefaults(message_max_bytes=5000, retention_ms=9))
    assert len(heard) == 1, "the same defaults from another place are no news"
    await kit.create("c")
    assert [topic.rules.max_message_bytes for topic in kit.directory.known()] == [5000, 7, 5000]


async def test_a_reader_of_defaults_is_asked_with_every_refresh() -> None:
    kit = RegistryKit()
    await kit.create("a")
    now = TopicDefaults()

    async def read() -> TopicDefaults:
        return now

    directory = TopicDirectory(kit.store, defaults=now, clock=kit.clock, read_defaults=read)
    await directory.refresh()
    now = TopicDefaults(message_max_bytes=4000)
    await directory.refresh()
    assert directory.known()[0].rules.max_message_bytes == 4000


@pytest.mark.parametrize("skipped", [None, 32])
async def test_a_registry_that_was_taken_back_is_read_anew(skipped: int | None) -> None:
    """Its number is lower, equal or higher than the one that was known; topics have other ids under their names."""
    for created in range(4):
        kit = RegistryKit()
        await kit.create("kept")
        backup = save(kit.store)
        await kit.create("lost", "again")
        lost = kit.directory.get("again")
        restore(kit.store, backup, skipped_revisions=skipped)
        names = ["again", "b", "c"][:created]
        other = kit.admin_over(kit.another_directory())
        for name in names:
            await other.create(NewTopic(name=name, partition_count=1))
        kit.directory.forget()
        await kit.directory.refresh()
        assert names_of(kit.directory) == sorted(["kept", *names])
        again = kit.directory.get("again")
        assert again is None if created == 0 else again is not None and lost is not None and again.id != lost.id
