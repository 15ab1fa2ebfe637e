"""Runs of a pipeline: every record once in the table, whoever dies where, and Kafka readers notice nothing."""

import pytest

from headrace.errors import OutcomeUnknown, Retryable
from headrace.index.streams import advance_log_start
from headrace.index.values import IndexEntry
from headrace.model.extents import TableExtent, WalExtent
from headrace.model.topics import Topic
from headrace.pipeline.records import TIDY_RECORD, SagaState, TableStatus
from headrace.records.batch import CODEC_MASK
from headrace.records.stamping import stamp_crc
from headrace.runtime.crash_points import CrashPoint
from headrace.testing.batches import make_batch
from tests.unit.pipeline.pipeline_kit import KillAt, Killed, PipelineKit

SAGA_POINTS = [point for point in CrashPoint if point.startswith(("saga.", "swap."))]


async def logged(kit: PipelineKit, topic: Topic, count: int, *, first: int = 0) -> None:
    for n in range(first, first + count):
        for stream in topic.streams:
            await kit.append(stream, b"%d" % (2 * n), b"%d" % (2 * n + 1))


def unreadable(*values: bytes) -> bytes:
    """Return a batch that says it is compressed and is not: brokers take it as it is, nobody can open it."""
    data = bytearray(make_batch(values))
    data[22] = data[22] & ~CODEC_MASK | 4
    stamp_crc(memoryview(data))
    return bytes(data)


def extents(entries: list[IndexEntry]) -> list[str]:
    return ["wal" if isinstance(entry.extent, WalExtent) else "table" for entry in entries]


async def test_records_move_into_the_table_and_kafka_readers_get_the_same() -> None:
    kit = PipelineKit()
    topic = await kit.topic(partitions=2)
    await logged(kit, topic, 5)
    before = [await kit.values(stream) for stream in topic.streams]
    process = await kit.pipeline()
    assert await process.run() == (20, {})
    for number, stream in enumerate(topic.streams):
        assert extents(await kit.index(stream)) == ["table"]
        assert await kit.values(stream) == before[number] == [b"%d" % n for n in range(10)]
    assert sorted(kit.table_rows()) == [(0, 0, 10), (1, 0, 10)]
    state = await kit.state(topic)
    assert (state.ends, state.rows, state.runs, state.status) == ({0: 10, 1: 10}, 20, 1, TableStatus.OK)
    assert await kit.saga(topic) is None
    await logged(kit, topic, 1, first=5)
    assert await process.run() == (4, {})
    assert sorted(kit.table_rows()) == [(0, 0, 10), (0, 10, 12), (1, 0, 10), (1, 10, 12)]
    assert await process.run() == (0, {})


async def test_a_long_run_is_swapped_in_steps_and_ends_as_one_entry() -> None:
    kit = PipelineKit(max_entries=4)
    topic = await kit.topic()
    await logged(kit, topic, 20)
    await (await kit.pipeline()).run()
    (entry,) = await kit.index(topic.streams[0])
    assert isinstance(entry.extent, TableExtent)
    assert (entry.start_offset, entry.end_offset, entry.record_count) == (0, 40, 40)
    record = await kit.object(0)
    assert record is not None and record.entry_count == 0


@pytest.mark.parametrize("point", SAGA_POINTS)
@pytest.mark.parametrize("arrival", [1, 2])
async def test_another_process_ends_what_a_dead_one_left(point: CrashPoint, arrival: int) -> None:
    kit = PipelineKit(max_entries=3)
    topic = await kit.topic(partitions=2)
    await logged(kit, topic, 6)
    expected = [b"%d" % n for n in range(12)]
    victim = await kit.pipeline(crash_points=KillAt(point, arrival))
    try:
        await victim.run()
        await logged(kit, topic, 1, first=6)
        expected = [b"%d" % n for n in range(14)]
        await victim.run()
    except Killed:
        await victim.bury()
    else:
        assert arrival > 1, f"nothing ever reaches {point}"
    for stream in topic.streams:
        assert await kit.values(stream) == expected
    heir = await kit.pipeline()
    await heir.run()
    await heir.run()
    assert await kit.saga(topic) is None
    covered = sorted(kit.table_rows())
    for partition, stream in enumerate(topic.streams):
        assert await kit.values(stream) == expected
        ranges = [(start, end) for which, start, end in covered if which == partition]
        assert [offset for start, end in ranges for offset in range(start, end)] == list(range(len(expected)))
        assert set(extents(await kit.index(stream))) == {"table"}


async def test_a_commit_whose_answer_was_lost_is_found_in_the_table() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    await logged(kit, topic, 3)
    lost = iter([True])

    async def trouble(moment: str) -> None:
        if moment == "after commit" and next(lost, False):
            raise OutcomeUnknown("500 after it committed")

    process = await kit.pipeline(trouble=trouble)
    assert await process.run() == (6, {})
    assert kit.table_rows() == [(0, 0, 6)]


async def test_a_pipeline_that_was_paused_between_look_up_and_commit_is_refused() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    await logged(kit, topic, 3)

    async def meanwhile(moment: str) -> None:
        if moment == "before commit":
            await sleeper.bury()
            heir = await kit.pipeline()
            await heir.run()
            await logged(kit, topic, 1, first=3)
            await heir.run()

    sleeper = await kit.pipeline(trouble=meanwhile)
    _, problems = await sleeper.run()
    assert "orders" in problems
    assert kit.table_rows() == [(0, 0, 6), (0, 6, 8)]
    assert await kit.values(topic.streams[0]) == [b"%d" % n for n in range(8)]


@pytest.mark.parametrize("moment", ["before ensure", "before load", "before commit"])
async def test_a_catalog_that_is_away_delays_and_loses_nothing(moment: str) -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    await logged(kit, topic, 3)
    is_away = True

    async def trouble(now: str) -> None:
        if is_away and now == moment:
            raise Retryable("connection refused")

    process = await kit.pipeline(trouble=trouble)
    rows, problems = await process.run()
    assert rows == 0 and "connection refused" in problems["orders"]
    assert (await kit.state(topic)).status is TableStatus.FAILING
    assert await kit.values(topic.streams[0]) == [b"%d" % n for n in range(6)]
    is_away = False
    rows, problems = await process.run()
    assert (rows, problems) == (6, {})
    state = await kit.state(topic)
    assert (state.status, state.problem, state.failures) == (TableStatus.OK, "", 1)


async def test_a_table_that_is_not_ours_is_never_written_and_the_log_serves_on() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    await logged(kit, topic, 2)
    kit.catalog.foreign.add("orders")
    _, problems = await (await kit.pipeline()).run()
    assert "not ours" in problems["orders"]
    assert (await kit.state(topic)).status is TableStatus.FOREIGN
    assert kit.catalog.tables == {}
    assert await kit.values(topic.streams[0]) == [b"0", b"1", b"2", b"3"]


async def test_a_batch_that_cannot_be_opened_stays_in_the_log_and_its_neighbours_do_not() -> None:
    kit = PipelineKit(max_entries=2)
    topic = await kit.topic()
    (stream,) = topic.streams
    await kit.append(stream, b"0", b"1")
    await kit.append_raw(stream, unreadable(b"2", b"3", b"4"))
    await kit.append(stream, b"5")
    await kit.append_raw(stream, unreadable(b"6"))
    await kit.append(stream, b"7")
    process = await kit.pipeline()
    assert await process.run() == (4, {})
    entries = await kit.index(stream)
    assert [(entry.start_offset, entry.end_offset) for entry in entries] == [(0, 2), (2, 5), (5, 6), (6, 7), (7, 8)]
    assert extents(entries) == ["table", "wal", "table", "wal", "table"]
    state = await kit.state(topic)
    assert (state.held_back_batches, state.ends) == (2, {0: 8})
    assert await process.run() == (0, {})


async def test_a_batch_held_back_is_cut_out_of_the_entry_it_shares() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    (stream,) = topic.streams
    shared = make_batch([b"0", b"1"]) + unreadable(b"2") + make_batch([b"3"]) + unreadable(b"4", b"5")
    await kit.append_raw(stream, shared)
    await kit.append(stream, b"6")
    whole = await kit.object(0)
    assert whole is not None
    await (await kit.pipeline()).run()
    entries = await kit.index(stream)
    assert [(entry.start_offset, entry.end_offset) for entry in entries] == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]
    assert extents(entries) == ["table", "wal", "table", "wal", "table"]
    sizes = [entry.extent.size_bytes for entry in entries if isinstance(entry.extent, WalExtent)]
    assert sizes == [len(unreadable(b"2")), len(unreadable(b"4", b"5"))]
    cumulative = [entry.cumulative_bytes for entry in entries]
    assert cumulative == sorted(cumulative) and cumulative[3] == len(shared)
    record = await kit.object(0)
    assert record is not None and record.entry_count == 2


async def test_a_log_start_that_moves_before_the_swap_leaves_what_is_trimmed_alone() -> None:
    kit = PipelineKit(max_entries=2)
    topic = await kit.topic()
    (stream,) = topic.streams
    await logged(kit, topic, 6)

    async def trouble(moment: str) -> None:
        if moment == "after commit":
            await advance_log_start(kit.keys, stream, 7, now_ms=0).apply(kit.metadata)

    await (await kit.pipeline(trouble=trouble)).run()
    assert await kit.saga(topic) is None
    assert kit.table_rows() == [(0, 0, 12)]
    await logged(kit, topic, 1, first=6)
    await (await kit.pipeline()).run()
    assert kit.table_rows() == [(0, 0, 12), (0, 12, 14)]


async def test_records_that_expired_before_their_run_are_stepped_over() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    (stream,) = topic.streams
    await logged(kit, topic, 2)
    process = await kit.pipeline()
    await process.run()
    await logged(kit, topic, 4, first=2)
    await advance_log_start(kit.keys, stream, 8, now_ms=0).apply(kit.metadata)
    assert await process.run() == (4, {})
    assert kit.table_rows() == [(0, 0, 4), (0, 8, 12)]


@pytest.mark.parametrize("goes", ["true", "false"])
async def test_a_deleted_topic_takes_its_table_with_it_only_if_told_so(goes: str) -> None:
    kit = PipelineKit()
    topic = await kit.topic(delete_with_topic=goes)
    await logged(kit, topic, 2)
    process = await kit.pipeline()
    await process.run()
    await kit.admin.delete(topic.id)
    again = await kit.topic()
    await logged(kit, again, 1)
    assert await process.run() == (2, {})
    assert await kit.sagas.state(topic.id) is None
    names = set(kit.catalog.tables)
    assert names == ({"orders"} if goes == "true" else {"orders", f"orders__{topic.id.hex()[:8]}"})


async def test_a_written_run_goes_on_though_its_topic_was_deleted() -> None:
    """Whoever began it may be about to commit it: were it given up, its files would be tidied away in the table."""
    kit = PipelineKit()
    topic = await kit.topic()
    await logged(kit, topic, 2)
    victim = await kit.pipeline(crash_points=KillAt(CrashPoint.SAGA_AFTER_WRITTEN))
    with pytest.raises(Killed):
        await victim.run()
    await victim.bury()
    saga = await kit.saga(topic)
    assert saga is not None and saga.state is SagaState.WRITTEN
    await kit.admin.delete(topic.id)
    await (await kit.pipeline()).run()
    assert await kit.saga(topic) is None and kit.table_rows() == [(0, 0, 4)]
    raw = await kit.metadata.get(kit.keys.tidy(saga.saga_id))
    assert raw is not None and TIDY_RECORD.decode(raw.value, raw.key).kept == tuple(file.path for file in saga.files)


async def test_two_pipelines_do_not_do_the_same_work_twice() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    await logged(kit, topic, 2)
    rounds: list[tuple[int, dict[str, str]]] = []

    async def meanwhile(moment: str) -> None:
        if moment == "before commit" and not rounds:
            rounds.append((0, {}))
            rounds.append(await (await kit.pipeline()).run())

    first = await kit.pipeline(trouble=meanwhile)
    assert await first.run() == (4, {})
    assert rounds[1] == (0, {})
    assert kit.table_rows() == [(0, 0, 4)]


async def test_a_table_that_somebody_dropped_is_not_begun_anew_behind_the_logs_back() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    await logged(kit, topic, 2)
    process = await kit.pipeline()
    await process.run()
    dropped = kit.catalog.tables.pop("orders")
    await logged(kit, topic, 1, first=2)
    _, problems = await process.run()
    assert "register its newest metadata file" in problems["orders"]
    assert kit.catalog.tables == {} and (await kit.state(topic)).status is TableStatus.FOREIGN
    assert await kit.values(topic.streams[0]) == [b"%d" % n for n in range(6)]
    kit.catalog.tables["orders"] = dropped
    assert await process.run() == (2, {})


async def test_a_catalog_that_was_set_back_alone_is_not_written() -> None:
    kit = PipelineKit()
    topic = await kit.topic()
    await logged(kit, topic, 2)
    process = await kit.pipeline()
    await process.run()
    kit.catalog.tables["orders"].head = None
    await logged(kit, topic, 1, first=2)
    _, problems = await process.run()
    assert "was set back" in problems["orders"]
    assert kit.table_rows() == [(0, 0, 4)]
