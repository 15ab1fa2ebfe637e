"""The driver announces a write before its tasks run, and commits what it can see, once."""

import msgspec
import pytest

from headrace.errors import Fenced, Invalid, Missing, OutcomeUnknown, Unsupported
from headrace.gc.sweeping import Sweeper
from headrace.index.objects import wal_object_key
from headrace.index.rule import Rule
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.port import Decision, Reads, Seen
from headrace.pipeline.sink import driver
from headrace.pipeline.sink.driver import require_same_release
from headrace.pipeline.sink.options import parse_options
from headrace.pipeline.sink.plans import PLANS, SinkPlan
from headrace.topics.admin import NewTopic
from tests.unit.pipeline.sink.sink_kit import SinkKit, options_of, plan_of


async def keys_under(kit: SinkKit, prefix: str) -> int:
    return len(await kit.metadata.range(prefix_range(prefix, limit=100)))


async def test_a_job_without_a_sink_id_appends_in_the_order_of_tasks_and_is_forgotten() -> None:
    kit = SinkKit()
    topic = await kit.admin.create(NewTopic(name="orders"))
    options = options_of(topic="orders")
    plan = await kit.driver.begin(options)
    assert await keys_under(kit, kit.keys.sink_writes_prefix) == 1
    answers = [kit.answer(plan, [f"{task}"], task=task) for task in (2, 0, 1)]
    outcome = await kit.driver.commit(options, answers, batch_id=0)
    assert not outcome.is_repeated
    assert await kit.stored(topic) == [b"0", b"1", b"2"]
    assert await keys_under(kit, kit.keys.sink_writes_prefix) == 0
    assert await keys_under(kit, kit.keys.sinks_prefix) == 0


async def test_a_job_that_is_in_the_log_has_succeeded_even_if_its_sink_cannot_be_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kit = SinkKit()
    topic = await kit.admin.create(NewTopic(name="orders"))
    options = options_of(topic="orders")
    plan = await kit.driver.begin(options)

    def unreachable(keys: DomainKeys, _: str) -> Rule[None]:
        def decide(_: Seen) -> Decision[None]:
            raise OutcomeUnknown("the store does not answer")

        return Rule(keys.unit, Reads(), decide)

    monkeypatch.setattr(driver, "forget_sink", unreachable)
    outcome = await kit.driver.commit(options, [kit.answer(plan, ["v"])], batch_id=0)
    assert not outcome.is_repeated
    assert await kit.stored(topic) == [b"v"]


async def test_a_repeated_job_is_recognised_by_sink_and_batch() -> None:
    kit = SinkKit()
    topic = await kit.admin.create(NewTopic(name="orders"))
    options = options_of(topic="orders", sinkId="copy", batchId="4")
    outcomes = []
    for _ in range(2):
        plan = await kit.driver.begin(options)
        outcomes.append(await kit.driver.commit(options, [kit.answer(plan, ["v"])], batch_id=4))
    assert [outcome.is_repeated for outcome in outcomes] == [False, True]
    assert outcomes[0].ranges == outcomes[1].ranges
    assert await kit.stored(topic) == [b"v"]


async def test_two_writes_of_a_batch_that_share_a_sink_id_are_told_apart_by_their_topics() -> None:
    kit = SinkKit()
    topics = [await kit.admin.create(NewTopic(name=name)) for name in ("orders", "parcels")]

    async def write(topic: str) -> bool:
        options = options_of(topic=topic, sinkId="copy", batchId="4")
        plan = await kit.driver.begin(options)
        return (await kit.driver.commit(options, [kit.answer(plan, ["v"])], batch_id=4)).is_repeated

    assert not await write("orders")
    with pytest.raises(Invalid, match="was written to orders before, and this is for parcels"):
        await write("parcels")
    assert await kit.stored(topics[1]) == []
    assert await write("orders"), "a repetition is one still"
    await kit.admin.delete(topics[0].id)
    await kit.admin.create(NewTopic(name="orders"))
    assert await write("orders"), "and it is one after its topic was created again"


async def test_a_stream_is_known_by_its_query() -> None:
    kit = SinkKit()
    topic = await kit.admin.create(NewTopic(name="orders"))
    options = parse_options({"topic": "orders"}, is_stream=True)
    for query, batch_id in (("q1", 0), ("q1", 0), ("q2", 0), ("q1", 1)):
        plan = await kit.driver.begin(options)
        answer = kit.answer(plan, [f"{query}/{batch_id}"], query=query)
        await kit.driver.commit(options, [answer], batch_id=batch_id)
    assert await kit.stored(topic) == [b"q1/0", b"q2/0", b"q1/1"]


async def test_attempts_that_lost_are_swept_once_the_write_is_over() -> None:
    kit = SinkKit()
    topic = await kit.admin.create(NewTopic(name="orders"))
    options = options_of(topic="orders")
    plan = await kit.driver.begin(options)
    lost = kit.answer(plan, ["v"], attempt=1)
    won = kit.answer(plan, ["v"], attempt=2)
    sweeper = Sweeper(
        keys=kit.keys,
        metadata=kit.metadata,
        objects=kit.objects,
        clock=kit.clock,
        age_floor_ms=0,
        objects_per_tick=100,
    )
    assert await sweeper.tick() == []
    await kit.driver.commit(options, [won], batch_id=0)
    lost_key = wal_object_key(kit.keys.domain, lost.frames[0].object_id)
    assert [one.key for one in await sweeper.tick()] == [lost_key]
    assert await kit.stored(topic) == [b"v"]


async def test_a_write_that_is_given_up_never_commits() -> None:
    kit = SinkKit()
    topic = await kit.admin.create(NewTopic(name="orders"))
    options = options_of(topic="orders")
    plan = await kit.driver.begin(options)
    answer = kit.answer(plan, ["v"])
    await kit.driver.give_up(options, [answer])
    with pytest.raises(Fenced, match="has ended"):
        await kit.driver.commit(options, [answer], batch_id=0)
    assert await kit.stored(topic) == []


async def test_a_stream_that_fails_before_any_task_has_answered_is_given_up_by_its_checkpoint() -> None:
    kit = SinkKit()
    await kit.admin.create(NewTopic(name="orders"))
    given = [{"checkpointLocation": "/a"}, {"checkpointLocation": "/a"}, {"checkpointLocation": "/b"}, {}]
    streams = [parse_options({"topic": "orders", **some}, is_stream=True) for some in given]
    plans = [await kit.driver.begin(options) for options in streams]
    await kit.driver.give_up(streams[3], [])
    assert await keys_under(kit, kit.keys.sink_writes_prefix) == 4, "without a checkpoint nobody knows whose they are"
    await kit.driver.give_up(streams[0], [])
    assert await keys_under(kit, kit.keys.sink_writes_prefix) == 2
    for plan, options, is_ended in zip(plans, streams, (True, True, False, False), strict=True):
        answer = kit.answer(plan, ["v"], query=plan.write)
        if is_ended:
            with pytest.raises(Fenced, match="has ended"):
                await kit.driver.commit(options, [answer], batch_id=0)
        else:
            await kit.driver.commit(options, [answer], batch_id=0)


async def test_objects_that_the_driver_does_not_see_are_not_committed() -> None:
    kit = SinkKit()
    topic = await kit.admin.create(NewTopic(name="orders"))
    options = options_of(topic="orders")
    plan = await kit.driver.begin(options)
    answer = kit.answer(plan, ["v"])
    key = wal_object_key(kit.keys.domain, answer.frames[0].object_id)
    await kit.objects.put(key, [b"cut"])
    with pytest.raises(Invalid, match="has 3 bytes, and its task wrote"):
        await kit.driver.commit(options, [answer], batch_id=0)
    await kit.objects.delete([key])
    with pytest.raises(Missing, match="both must reach the same object store"):
        await kit.driver.commit(options, [answer], batch_id=0)
    assert await kit.stored(topic) == []


async def test_a_topic_may_grow_while_a_write_runs_but_not_be_another_one() -> None:
    kit = SinkKit()
    topic = await kit.admin.create(NewTopic(name="orders"))
    options = options_of(topic="orders")
    plan = await kit.driver.begin(options)
    answer = kit.answer(plan, ["v"])
    await kit.admin.add_partitions("orders", 3)
    await kit.driver.commit(options, [answer], batch_id=0)
    assert await kit.stored(topic) == [b"v"]
    plan = await kit.driver.begin(options)
    answer = kit.answer(plan, ["lost"])
    await kit.admin.delete(topic.id)
    another = await kit.admin.create(NewTopic(name="orders"))
    with pytest.raises(Missing, match="its topic was deleted since batch 0"):
        await kit.driver.commit(options, [answer], batch_id=0)
    assert await kit.stored(another) == []


async def test_topics_must_be_there_when_the_write_is_planned() -> None:
    kit = SinkKit()
    with pytest.raises(Missing, match="there is no topic 'orders': create it first"):
        await kit.driver.begin(options_of(topic="orders"))
    await kit.admin.create(NewTopic(name="orders", configs={"max.message.bytes": "2000"}))
    await kit.admin.create(NewTopic(name="parcels"))
    named = await kit.driver.begin(options_of(topic="orders"))
    assert [(topic.name, topic.rules.max_message_bytes) for topic in named.topics] == [("orders", 2000)]
    every = await kit.driver.begin(options_of())
    assert [topic.name for topic in every.topics] == ["orders", "parcels"]
    assert PLANS.decode(msgspec.msgpack.encode(every)) == every


def test_another_release_writes_nothing() -> None:
    plan: SinkPlan = plan_of()
    require_same_release(plan)
    with pytest.raises(Unsupported, match="install the same release"):
        require_same_release(msgspec.structs.replace(plan, version="0.0.0"))
