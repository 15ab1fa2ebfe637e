"""Topic admin: one transaction per change, once even when its answer is lost, known here afterwards."""

import asyncio
import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Exists, HeadraceError, Missing, OutcomeUnknown, Retryable
from headrace.index.values import STREAM_HEAD, StreamKind
from headrace.metadata import keys
from headrace.metadata.keys import prefix_range
from headrace.model.topics import Topic, TopicId
from headrace.runtime.rng import seeded_rng
from headrace.topics.admin import MAX_PARTITIONS_PER_TOPIC, MAX_TRIES, NewTopic, new_topic_id
from headrace.topics.problems import InvalidPartitionCount, InvalidTopicConfig, InvalidTopicName
from headrace.topics.records import NAME_CLAIM
from tests.unit.topics.registry_kit import RegistryKit


async def known(kit: RegistryKit, name: str) -> Topic:
    """Return a topic as a broker sees it that has just started."""
    directory = kit.another_directory()
    await directory.refresh()
    topic = directory.get(name)
    assert topic is not None, f"there is no topic {name}"
    return topic


async def test_a_created_topic_is_known_here_at_once_with_living_streams() -> None:
    kit = RegistryKit()
    topic = await kit.admin.create(NewTopic(name="a", partition_count=3, configs={"retention.ms": "1000"}))
    assert kit.directory.get("a") == topic == await known(kit, "a")
    assert topic.overrides == {"retention.ms": "1000"} and topic.created_at_ms == kit.clock.now_ms()
    assert len(topic.id) == 16 and len(topic.streams) == 3
    for partition, stream in enumerate(topic.streams):
        head, info = await kit.head(stream), await kit.info(stream)
        assert head is not None and not head.is_deleted and head.high_watermark == 0
        assert info.kind is StreamKind.PARTITION and info.owner == f"{topic.id.hex()}/{partition}"


async def test_a_topic_without_a_number_of_partitions_takes_the_default() -> None:
    kit = RegistryKit()
    assert len((await kit.admin.create(NewTopic(name="a"))).streams) == kit.admin.default_partition_count


async def test_what_is_wrong_is_refused_before_anything_is_written() -> None:
    kit = RegistryKit()
    wrong: list[tuple[NewTopic, type[HeadraceError]]] = [
        (NewTopic(name="a/b"), InvalidTopicName),
        (NewTopic(name="a", partition_count=0), InvalidPartitionCount),
        (NewTopic(name="a", partition_count=-7), InvalidPartitionCount),
        (NewTopic(name="a", partition_count=MAX_PARTITIONS_PER_TOPIC + 1), InvalidPartitionCount),
        (NewTopic(name="a", configs={"retenton.ms": "1"}), InvalidTopicConfig),
    ]
    for new, problem in wrong:
        with pytest.raises(problem):
            await kit.admin.create(new)
    assert await kit.stored_keys() == set()


async def test_validation_only_finds_the_same_faults_and_writes_nothing() -> None:
    kit = RegistryKit()
    await kit.create("a.b")
    before = await kit.stored_keys()
    assert len((await kit.admin.create(NewTopic(name="new", partition_count=4), validate_only=True)).streams) == 4
    with pytest.raises(Exists):
        await kit.admin.create(NewTopic(name="a.b"), validate_only=True)
    with pytest.raises(InvalidTopicName):
        await kit.admin.create(NewTopic(name="a_b"), validate_only=True)
    assert len((await kit.admin.add_partitions("a.b", 9, validate_only=True)).streams) == 9
    changed = await kit.admin.set_configs("a.b", {"retention.ms": "5"}, validate_only=True)
    assert changed.overrides == {"retention.ms": "5"}
    assert await kit.stored_keys() == before
    topic = await known(kit, "a.b")
    assert len(topic.streams) == 1 and topic.overrides == {}


@pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b", "a.b"), ("x.y_z", "x_y.z")])
async def test_names_that_differ_by_dot_and_underscore_only_collide(first: str, second: str) -> None:
    kit = RegistryKit()
    await kit.create(first)
    with pytest.raises(InvalidTopicName, match=f"collides with the existing topic '{first}'"):
        await kit.create(second)
    topic = await known(kit, first)
    await kit.admin.delete(topic.id)
    await kit.create(second)


async def test_of_many_who_create_one_name_one_wins() -> None:
    kit = RegistryKit()
    admins = [kit.admin_over(kit.another_directory()) for _ in range(8)]
    outcomes = await asyncio.gather(
        *(admin.create(NewTopic(name="a", partition_count=2)) for admin in admins), return_exceptions=True
    )
    created = [outcome for outcome in outcomes if isinstance(outcome, Topic)]
    assert len(created) == 1 and await known(kit, "a") == created[0]
    assert sum(isinstance(outcome, Exists) for outcome in outcomes) == 7
    heads = [key for key in await kit.stored_keys() if key.endswith("/head")]
    assert len(heads) == 2, "who came second left no streams behind"


async def test_created_deleted_and_created_again_is_another_topic() -> None:
    kit = RegistryKit()
    await kit.create("a", partitions=2)
    old = await known(kit, "a")
    await kit.admin.delete(old.id)
    assert kit.directory.get("a") is None
    await kit.create("a", partitions=2)
    new = await known(kit, "a")
    assert new.id != old.id and not set(new.streams) & set(old.streams)
    with pytest.raises(Missing):
        await kit.admin.delete(old.id)
    assert await known(kit, "a") == new


async def test_deleting_ends_all_streams_in_one_commit_record_and_remembers_them() -> None:
    kit = RegistryKit()
    await kit.create("a", "b", partitions=3)
    a, b = await known(kit, "a"), await known(kit, "b")
    await kit.admin.delete(a.id)
    heads = [await kit.head(stream) for stream in a.streams]
    assert all(head is not None and head.is_deleted for head in heads)
    (left,) = await kit.deleted()
    assert (left.name, left.streams) == ("a", a.streams)
    assert {head.seq for head in heads if head is not None} == {left.seq}
    for stream in b.streams:
        head = await kit.head(stream)
        assert head is not None and not head.is_deleted


async def test_adding_partitions_leaves_those_that_exist_alone() -> None:
    kit = RegistryKit()
    await kit.create("a", partitions=2)
    before = await known(kit, "a")
    heads = [await kit.head(stream) for stream in before.streams]
    grown = await kit.admin.add_partitions("a", 5)
    assert grown == await known(kit, "a") == kit.directory.get("a")
    assert grown.id == before.id and grown.streams[:2] == before.streams and len(set(grown.streams)) == 5
    assert [await kit.head(stream) for stream in before.streams] == heads
    assert (await kit.info(grown.streams[4])).owner == f"{grown.id.hex()}/4"


@pytest.mark.parametrize("count", [-1, 0, 2, 3, MAX_PARTITIONS_PER_TOPIC + 1])
async def test_a_topic_cannot_shrink_or_stay_or_grow_beyond_the_limit(count: int) -> None:
    kit = RegistryKit()
    await kit.create("a", partitions=3)
    with pytest.raises(InvalidPartitionCount):
        await kit.admin.add_partitions("a", count)
    assert len((await known(kit, "a")).streams) == 3


async def test_what_does_not_exist_cannot_be_changed() -> None:
    kit = RegistryKit()
    with pytest.raises(Missing):
        await kit.admin.add_partitions("a", 2)
    with pytest.raises(Missing):
        await kit.admin.set_configs("a", {})
    with pytest.raises(Missing):
        await kit.admin.delete(TopicId(bytes(16)))


async def test_configs_are_set_unset_and_replaced() -> None:
    kit = RegistryKit()
    await kit.create("a")
    await kit.admin.set_configs("a", {"retention.ms": "1000"})
    changed = await kit.admin.set_configs("a", {"max.message.bytes": "2000"})
    assert changed.overrides == {"retention.ms": "1000", "max.message.bytes": "2000"}
    assert changed.rules.max_message_bytes == 2000 and kit.directory.get("a") == changed
    unset = await kit.admin.set_configs("a", {"retention.ms": None})
    assert unset.overrides == {"max.message.bytes": "2000"}
    replaced = await kit.admin.set_configs("a", {"retention.ms": "7"}, replace=True)
    assert replaced.overrides == {"retention.ms": "7"} and replaced == await known(kit, "a")
    with pytest.raises(InvalidTopicConfig):
        await kit.admin.set_configs("a", {"retenton.ms": "7"})


async def test_a_creation_whose_answer_is_lost_is_found_again_and_not_made_twice() -> None:
    kit = RegistryKit()
    kit.store.plan = ["lost", "never", "busy"]
    topic = await kit.admin.create(NewTopic(name="a", partition_count=2))
    assert await known(kit, "a") == topic
    assert len([key for key in await kit.stored_keys() if key.endswith("/head")]) == 2
    assert kit.clock.slept == sorted(kit.clock.slept) and len(kit.clock.slept) == 3


async def test_a_creation_that_never_arrived_is_made_on_the_next_try() -> None:
    kit = RegistryKit()
    kit.store.plan = ["never"]
    assert await kit.admin.create(NewTopic(name="a")) == await known(kit, "a")


async def test_a_lost_creation_of_a_name_that_somebody_else_took_says_that_it_exists() -> None:
    kit = RegistryKit()
    await kit.create("a")
    taken = await known(kit, "a")
    kit.store.plan = ["never"]
    with pytest.raises(Exists):
        await kit.create("a")
    assert await known(kit, "a") == taken


async def test_growth_deletion_and_configs_with_lost_answers_happen_once() -> None:
    kit = RegistryKit()
    await kit.create("a")
    kit.store.plan = ["lost"]
    assert len((await kit.admin.add_partitions("a", 3)).streams) == 3
    kit.store.plan = ["lost"]
    assert (await kit.admin.set_configs("a", {"retention.ms": "1"})).overrides == {"retention.ms": "1"}
    topic = await known(kit, "a")
    kit.store.plan = ["lost"]
    await kit.admin.delete(topic.id)
    assert kit.directory.get("a") is None and len(await kit.deleted()) == 1


async def test_an_outcome_that_stays_unknown_is_never_called_a_failure_without_effect() -> None:
    kit = RegistryKit()
    kit.store.plan = ["lost", *["busy"] * (MAX_TRIES - 1)]
    with pytest.raises(OutcomeUnknown):
        await kit.create("a")
    kit.store.plan = ["busy"]
    with pytest.raises(Retryable):
        await kit.create("b")


async def test_a_change_is_a_success_though_this_broker_cannot_read_it_back() -> None:
    kit = RegistryKit()
    kit.store.reads_fail = True
    topic = await kit.admin.create(NewTopic(name="a"))
    kit.store.reads_fail = False
    assert kit.directory.get("a") is None
    assert await known(kit, "a") == topic


async def test_a_topic_that_grew_elsewhere_is_deleted_with_all_its_streams() -> None:
    kit = RegistryKit()
    await kit.create("a")
    stale = kit.another_directory()
    await stale.refresh()
    grown = await kit.admin.add_partitions("a", 4)
    await kit.admin_over(stale).delete(grown.id)
    (left,) = await kit.deleted()
    assert left.streams == grown.streams


async def test_auto_creation_makes_what_is_missing_and_tells_why_the_rest_failed() -> None:
    kit = RegistryKit()
    await kit.create("a", "x.y")
    other = kit.another_directory()
    failed = await kit.admin_over(other).auto_create(["a", "new", "x_y", ".."])
    assert sorted(failed) == ["..", "x_y"]
    assert all(isinstance(error, InvalidTopicName) for error in failed.values())
    assert [topic.name for topic in other.known()] == ["a", "new", "x.y"]


def test_topic_ids_are_random_uuids_that_no_command_takes_for_an_option() -> None:
    rng = seeded_rng(3)
    ids = [new_topic_id(rng) for _ in range(2000)]
    assert len(set(ids)) == len(ids)
    assert all(each[6] >> 4 == 4 and each[8] >> 6 == 2 for each in ids)
    assert not any(base64.urlsafe_b64encode(each).startswith(b"-") for each in ids)


FATES = st.lists(st.sampled_from(["fine", "lost", "never", "busy"]), max_size=MAX_TRIES)
DEEDS = st.tuples(st.sampled_from(["create", "grow", "delete"]), st.sampled_from(["a.b", "a_b", "c"]), FATES)


@given(st.lists(DEEDS, max_size=12))
def test_whatever_is_lost_the_registry_stays_whole_and_answers_are_true(
    deeds: list[tuple[str, str, list[str]]],
) -> None:
    async def live() -> None:
        kit = RegistryKit()
        brokers = [kit.admin, kit.admin_over(kit.another_directory())]
        for turn, (deed, name, fates) in enumerate(deeds):
            await kit.directory.refresh()
            before = kit.directory.get(name)
            admin = brokers[turn % 2]
            kit.store.plan = list(fates)
            answer: object = None
            try:
                if deed == "create":
                    answer = await admin.create(NewTopic(name=name, partition_count=2))
                elif deed == "grow":
                    answer = await admin.add_partitions(name, 1 if before is None else len(before.streams) + 1)
                elif before is not None:
                    await admin.delete(before.id)
            except HeadraceError as error:
                answer = error
            kit.store.plan = []
            await kit.directory.refresh()
            after = kit.directory.get(name)
            if isinstance(answer, Topic):
                assert after == answer, f"{deed} {name} was acknowledged"
            elif answer is None:
                assert after is None
            elif not isinstance(answer, OutcomeUnknown):
                assert after == before, f"{deed} {name} was refused with {answer!r}"
            await check_whole(kit)

    asyncio.run(live())


async def check_whole(kit: RegistryKit) -> None:
    """Topics, claims, streams and what is left of deleted topics agree with each other."""
    topics = kit.directory.known()
    claims = await kit.store.range(prefix_range(keys.TOPIC_NAMES, limit=100))
    assert sorted(NAME_CLAIM.decode(item.value, item.key).name for item in claims) == [each.name for each in topics]
    rows = await kit.store.range(prefix_range(kit.keys.streams_prefix, limit=1000))
    heads = {item.key: STREAM_HEAD.decode(item.value, item.key) for item in rows if item.key.endswith("/head")}
    named = [kit.keys.head(stream) for topic in topics for stream in topic.streams]
    left = [kit.keys.head(stream) for topic in await kit.deleted() for stream in topic.streams]
    assert sorted(named) == sorted(key for key, head in heads.items() if not head.is_deleted)
    assert sorted(left) == sorted(key for key, head in heads.items() if head.is_deleted)
