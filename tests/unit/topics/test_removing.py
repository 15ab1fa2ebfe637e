"""The topic remover: what deleted topics left goes in bounded steps, whoever else removes it, too."""

import asyncio
from collections import Counter

import pytest

from headrace.errors import Retryable
from headrace.gc.trimming import Trimmer
from headrace.index.fold import fold_records, plan_fold
from headrace.model.ids import StreamId
from headrace.topics.removing import Fold, RemoverLimits, RemoveStep, TopicRemover
from tests.unit.topics.registry_kit import RegistryKit


class Steps:
    """Streams that are gone after some steps each."""

    def __init__(self, needed: int = 1) -> None:
        self.needed = needed
        self.made: Counter[StreamId] = Counter()
        self.failing: set[StreamId] = set()

    async def remove(self, stream: StreamId) -> bool:
        self.made[stream] += 1
        await asyncio.sleep(0)
        if stream in self.failing:
            raise Retryable(f"stream {stream} cannot be read")
        return self.made[stream] >= self.needed


async def no_hurry() -> None:
    """Leave folding to whoever folds anyway."""


def remover(
    kit: RegistryKit, remove: RemoveStep, *, topics: int = 10, steps: int = 100, fold: Fold = no_hurry
) -> TopicRemover:
    limits = RemoverLimits(topics_per_tick=topics, steps_per_tick=steps)
    return TopicRemover(store=kit.store, keys=kit.keys, remove=remove, fold=fold, limits=limits)


async def deleted_topics(kit: RegistryKit, *names: str, partitions: int) -> list[tuple[StreamId, ...]]:
    await kit.create(*names, partitions=partitions)
    topics = [kit.directory.get(name) for name in names]
    for topic in topics:
        assert topic is not None
        await kit.admin.delete(topic.id)
    return [topic.streams for topic in topics if topic is not None]


async def fold(kit: RegistryKit) -> None:
    records = await plan_fold(kit.store, kit.keys, max_records=1000, lag_records=0)
    if records:
        await fold_records(kit.keys, records, now_ms=0).apply(kit.store)


async def test_nothing_deleted_is_nothing_to_do() -> None:
    kit = RegistryKit()
    await kit.create("a")
    steps = Steps()
    assert await remover(kit, steps.remove).tick() == 0
    assert not steps.made


async def test_streams_are_removed_and_then_the_record() -> None:
    kit = RegistryKit()
    (streams,) = await deleted_topics(kit, "a", partitions=4)
    await fold(kit)
    steps = Steps(needed=3)
    assert await remover(kit, steps.remove).tick() == 4
    assert set(steps.made) == set(streams)
    assert await kit.deleted() == []


async def test_a_tick_makes_a_bounded_number_of_steps_and_comes_to_every_stream() -> None:
    kit = RegistryKit()
    (streams,) = await deleted_topics(kit, "a", partitions=10)
    steps = Steps(needed=1000)
    keeper = remover(kit, steps.remove, steps=3)
    for tick in range(1, 11):
        assert await keeper.tick() == 0
        assert steps.made.total() == 3 * tick
    assert steps.made == Counter(dict.fromkeys(streams, 3))


async def test_a_large_topic_goes_over_many_ticks() -> None:
    kit = RegistryKit()
    await deleted_topics(kit, "a", partitions=20)
    await fold(kit)
    keeper = remover(kit, Steps(needed=2).remove, steps=7)
    ticks = 0
    while await kit.deleted():
        await keeper.tick()
        ticks += 1
        assert ticks < 100
    assert ticks >= 40 // 7


async def test_streams_whose_end_is_not_folded_get_one_step_each_per_tick() -> None:
    kit = RegistryKit()
    (streams,) = await deleted_topics(kit, "a", partitions=2)
    steps = Steps(needed=1000)
    keeper = remover(kit, steps.remove, steps=50)
    await keeper.tick()
    assert steps.made == Counter(dict.fromkeys(streams, 1))
    await fold(kit)
    await keeper.tick()
    assert steps.made.total() == 52


async def test_steps_of_a_tick_are_shared_by_the_topics() -> None:
    kit = RegistryKit()
    first, second = await deleted_topics(kit, "a", "b", partitions=20)
    await fold(kit)
    steps = Steps(needed=1000)
    await remover(kit, steps.remove, steps=12).tick()
    assert [sum(steps.made[stream] for stream in streams) for streams in (first, second)] == [6, 6]


async def test_topic_goes_although_nothing_is_produced_any_more() -> None:
    kit = RegistryKit()
    await deleted_topics(kit, "a", partitions=3)
    hurried = 0

    async def hurry() -> None:
        nonlocal hurried
        hurried += 1
        await fold(kit)

    trimmer = Trimmer(keys=kit.keys, metadata=kit.store, clock=kit.clock, entries_per_step=10)
    keeper = remover(kit, trimmer.remove, fold=hurry)
    assert [await keeper.tick() for _ in range(3)] == [0, 3, 0]
    assert hurried == 1, "once that is folded there is no hurry"
    assert await kit.deleted() == []


async def test_all_deleted_topics_come_in_turn() -> None:
    kit = RegistryKit()
    everything = await deleted_topics(kit, "a", "b", "c", "d", "e", partitions=1)
    keeper = remover(kit, Steps().remove, topics=2)
    removed = [await keeper.tick() for _ in range(3)]
    assert removed == [2, 2, 1] and len(everything) == 5
    assert await kit.deleted() == []


async def test_a_stream_that_fails_holds_up_no_other_topic_and_is_told_in_the_end() -> None:
    kit = RegistryKit()
    failing, _ = await deleted_topics(kit, "a", "b", partitions=2)
    steps = Steps()
    steps.failing = {failing[1]}
    keeper = remover(kit, steps.remove)
    with pytest.raises(Retryable, match=f"stream {failing[1]}"):
        await keeper.tick()
    (left,) = await kit.deleted()
    assert left.streams == (failing[1],), "what went before the failure is struck off"
    steps.failing.clear()
    assert await keeper.tick() == 1
    assert await kit.deleted() == []


async def test_several_brokers_remove_the_same_topics() -> None:
    kit = RegistryKit()
    await deleted_topics(kit, "a", "b", partitions=9)
    await fold(kit)
    keepers = [remover(kit, Steps(needed=2).remove, steps=5) for _ in range(3)]
    for _ in range(20):
        await asyncio.gather(*(keeper.tick() for keeper in keepers))
    assert await kit.deleted() == []


async def test_the_trimmer_removes_real_streams_without_a_trace() -> None:
    kit = RegistryKit()
    await deleted_topics(kit, "a", partitions=5)
    trimmer = Trimmer(keys=kit.keys, metadata=kit.store, clock=kit.clock, entries_per_step=10)
    keeper = remover(kit, trimmer.remove)
    assert await keeper.tick() == 0, "the record of their end is not folded yet"
    await fold(kit)
    assert await keeper.tick() == 5
    assert not [key for key in await kit.stored_keys() if "/streams/" in key or "deleted-topics" in key]
