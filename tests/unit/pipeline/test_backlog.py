"""Reading what waits: from the table's end on, folded entries only, bounded, the oldest first."""

from headrace.index.streams import advance_log_start, delete_stream
from headrace.model.ids import StreamId
from headrace.model.topics import Topic, TopicRules
from headrace.pipeline.backlog import MIN_ENTRIES_PER_READ, peek_backlog, read_backlog
from headrace.pipeline.planner import PlanLimits, PlannedTopic, is_due, plan_run
from headrace.pipeline.records import TableState
from headrace.tables.format import Bucket, Partitioning
from tests.log_kit import LogKit
from tests.unit.pipeline.planning import TOPIC_ID

LIMITS = PlanLimits()


def topic_of(*streams: StreamId, overrides: dict[str, str] | None = None) -> Topic:
    rules = TopicRules(max_message_bytes=1000)
    return Topic(id=TOPIC_ID, name="orders", streams=streams, rules=rules, overrides=overrides or {})


async def read(
    kit: LogKit, topic: Topic, state: TableState | None = None, limits: PlanLimits = LIMITS
) -> PlannedTopic:
    return await read_backlog(kit.store, kit.keys, topic, state, limits)


async def filled(kit: LogKit, stream: StreamId, count: int) -> None:
    for _ in range(count):
        kit.now_ms += 10
        await kit.append(stream, 5)


async def test_first_backlog_begins_at_the_log_start_and_ends_where_folding_has_come() -> None:
    kit = LogKit()
    first, second = await kit.streams(2)
    await kit.writer()
    await filled(kit, first, 3)
    await kit.fold()
    await filled(kit, second, 1)
    backlog = await read(kit, topic_of(first, second))
    assert [(one.partition, one.stream, one.after) for one in backlog.streams] == [
        (0, first, None),
        (1, second, None),
    ]
    assert [[entry.start_offset for entry in one.entries] for one in backlog.streams] == [[0, 5, 10], []]
    assert not any(one.has_more for one in backlog.streams)
    assert (backlog.topic_id, backlog.topic_name, backlog.last_run_at_ms) == (TOPIC_ID, "orders", 0)


async def test_backlog_goes_on_at_the_tables_end_or_the_log_start() -> None:
    kit = LogKit()
    first, second = await kit.streams(2)
    await kit.writer()
    await filled(kit, first, 3)
    await filled(kit, second, 3)
    await kit.fold()
    await advance_log_start(kit.keys, second, 12, now_ms=0).apply(kit.store)
    backlog = await read(kit, topic_of(first, second), TableState("orders", ends={0: 10, 1: 5}, committed_at_ms=7))
    assert [[entry.start_offset for entry in one.entries] for one in backlog.streams] == [[10], [10]]
    assert backlog.last_run_at_ms == 7
    plan = plan_run(backlog, now_ms=0, limits=LIMITS, force=True)
    assert plan is not None and (plan.after, plan.ends) == ({0: 10, 1: 5}, {0: 15, 1: 15})


async def test_deleted_stream_has_no_backlog_and_the_others_keep_their_numbers() -> None:
    kit = LogKit()
    first, second = await kit.streams(2)
    await kit.writer()
    await filled(kit, first, 1)
    await filled(kit, second, 1)
    await kit.fold()
    await delete_stream(kit.keys, first, now_ms=0).apply(kit.store)
    backlog = await read(kit, topic_of(first, second))
    assert [one.partition for one in backlog.streams] == [1]


async def test_reading_is_bounded_and_takes_the_oldest_first() -> None:
    kit = LogKit()
    old, young = await kit.streams(2)
    await kit.writer()
    await filled(kit, old, 5 * MIN_ENTRIES_PER_READ)
    await filled(kit, young, 5 * MIN_ENTRIES_PER_READ)
    await kit.fold()
    limits = PlanLimits(run_max_entries=3 * MIN_ENTRIES_PER_READ)
    backlog = await read(kit, topic_of(young, old), None, limits)
    counts = [len(one.entries) for one in backlog.streams]
    # A page is half of what a run takes, as there are two streams: after one of each there is enough.
    assert counts == [24, 24] and all(one.has_more for one in backlog.streams)
    few = PlanLimits(run_max_entries=60, run_max_bytes=3200)
    backlog = await read(kit, topic_of(young, old), None, few)
    assert [len(one.entries) for one in backlog.streams] == [30, 30]
    all_of_it = await read(kit, topic_of(young, old), None, PlanLimits(run_max_entries=100))
    assert [len(one.entries) for one in all_of_it.streams] == [50, 50]


async def test_reading_goes_on_with_the_stream_that_is_least_far() -> None:
    kit = LogKit()
    old, young = await kit.streams(2)
    await kit.writer()
    await filled(kit, old, 60)
    await filled(kit, young, 10)
    await kit.fold()
    backlog = await read(kit, topic_of(young, old), None, PlanLimits(run_max_entries=50))
    assert [len(one.entries) for one in backlog.streams] == [10, 50]
    assert [one.has_more for one in backlog.streams] == [False, True]


async def test_backlog_carries_what_the_topic_demands_of_its_table() -> None:
    kit = LogKit()
    (stream,) = await kit.streams(1)
    overrides = {"headrace.table.partition.by": "partition", "headrace.table.target.lag.ms": "9000"}
    backlog = await read(kit, topic_of(stream, overrides=overrides))
    assert backlog.partitioning == Partitioning(bucket=Bucket.NONE, by_partition=True)
    assert backlog.target_lag_ms == 9000 and backlog.oldest_append_ms is None


async def test_peek_reads_one_entry_of_each_stream_and_knows_how_much_waits() -> None:
    kit = LogKit()
    first, second, third = await kit.streams(3)
    await kit.writer()
    await filled(kit, first, 20)
    await filled(kit, second, 3)
    await kit.fold()
    topic = topic_of(first, second, third)
    peeked = await peek_backlog(kit.store, kit.keys, topic, TableState("orders", ends={0: 25, 1: 15}))
    assert [[entry.start_offset for entry in one.entries] for one in peeked.streams] == [[25], [], []]
    assert peeked.waiting_bytes == 1500, "15 entries of 100 bytes"
    assert not any(one.has_more for one in peeked.streams)
    now_ms = kit.now_ms
    assert is_due(peeked, now_ms=now_ms, limits=PlanLimits(file_target_bytes=1500))
    assert not is_due(peeked, now_ms=now_ms, limits=PlanLimits(file_target_bytes=1501))
    whole = await read(kit, topic, TableState("orders", ends={0: 25, 1: 15}))
    assert whole.oldest_append_ms == peeked.oldest_append_ms
