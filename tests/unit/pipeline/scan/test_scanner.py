"""Reads planned over a log on memory stores: batches, streams trigger by trigger, pins, and what is lost."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.errors import Invalid, Missing
from headrace.fetch.reader import LogReader
from headrace.fetch.timestamps import TimestampFinder
from headrace.gc.pins import ALIVE, beats_prefix
from headrace.index.cache import IndexCache
from headrace.index.pins import list_pins
from headrace.index.streams import advance_log_start
from headrace.model.topics import Topic
from headrace.pipeline.scan.log_look import LogLook
from headrace.pipeline.scan.offsets import TOPIC_IDS, JsonVector
from headrace.pipeline.scan.options import parse_options
from headrace.pipeline.scan.pinning import BeatBook, ReadPins
from headrace.pipeline.scan.reading import ScanReader
from headrace.pipeline.scan.scanner import PlannedScan, Scanner, StreamScan
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.rng import seeded_rng
from headrace.testing.batches import make_batch
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory
from tests.unit.pipeline.pipeline_kit import PipelineKit

TIME_TO_LIVE_MS = 60_000


class ScanKit(PipelineKit):
    """A log, and readers that share nothing with it but the stores."""

    def scanner(self, **given: str) -> Scanner:
        return self.scanner_of(given, is_stream=False)

    def scanner_of(self, given: Mapping[str, str], *, is_stream: bool) -> Scanner:
        options = parse_options({"subscribe": "orders", **given}, is_stream=is_stream)
        index = IndexCache(self.metadata, self.keys, max_folded_entries=100)
        executor = InlineExecutor()
        reader = LogReader(domain=self.keys.domain, cache=index, objects=self.objects, executor=executor)
        return Scanner(
            options,
            look=LogLook(
                topics=TopicDirectory(self.metadata, defaults=TopicDefaults(message_max_bytes=1), clock=self.clock),
                index=index,
                times=TimestampFinder(index=index, reader=reader, executor=executor, max_open_bytes=1_000_000),
            ),
            pins=ReadPins(
                self.metadata,
                self.keys,
                clock=self.clock,
                rng=self.rng,
                owner="test",
                time_to_live_ms=TIME_TO_LIVE_MS,
            ),
            domain=self.keys.domain,
        )

    def stream(self, **given: str) -> StreamScan:
        return StreamScan(self.scanner_of(given, is_stream=True), clock=self.clock)

    async def log(self, topic: Topic, count: int, *, at_ms: int = 0) -> None:  # type: ignore[override]
        """Append one batch of so many records to every partition."""
        for stream in topic.streams:
            await self.append_raw(stream, make_batch([b"%d" % n for n in range(count)], at_ms=at_ms))

    async def places(self, planned: PlannedScan, scanner: Scanner) -> list[tuple[str, int, int]]:
        """Read the tasks of a plan and return where their rows stand."""
        found: list[tuple[str, int, int]] = []
        for task in planned.tasks:
            reader = ScanReader(
                task, self.objects, columns=("topic", "partition", "offset"), condition=scanner.options.condition
            )
            async for some in reader.rows():
                found += [(row["topic"], row["partition"], row["offset"]) for row in some.to_pylist()]
        return found

    async def read(self, **given: str) -> list[tuple[str, int, int]]:
        scanner = self.scanner(**given)
        return sorted(await self.places(await scanner.plan_batch(), scanner))

    async def trim(self, topic: Topic, partition: int, log_start: int) -> None:
        await advance_log_start(self.keys, topic.streams[partition], log_start, now_ms=0).apply(self.metadata)


def nest(**ends: list[int]) -> JsonVector:
    return {topic: {str(partition): end for partition, end in enumerate(ends[topic])} for topic in ends}


def as_json(told: JsonVector) -> JsonVector:
    """Return a vector as it comes back from a checkpoint."""
    read: JsonVector = json.loads(json.dumps(told))
    return read


def ends(told: JsonVector) -> JsonVector:
    """Return the offsets of a vector."""
    return {topic: parts for topic, parts in as_json(told).items() if topic != TOPIC_IDS}


async def test_a_batch_reads_table_folded_and_unfolded_entries_alike() -> None:
    kit = ScanKit()
    topic = await kit.topic(partitions=2)
    await kit.log(topic, 5)
    process = await kit.pipeline()
    await process.run()
    await kit.log(topic, 3)
    wanted = [("orders", partition, offset) for partition in range(2) for offset in range(8)]
    assert await kit.read() == wanted
    assert await kit.read(minPartitions="16") == wanted
    starts = '{"orders": {"0": 2, "1": -2}}'
    ends = '{"orders": {"0": 7, "1": -1}}'
    assert await kit.read(startingOffsets=starts, endingOffsets=ends) == wanted[2:7] + wanted[8:]


async def test_a_batch_finds_its_ends_by_time() -> None:
    kit = ScanKit()
    topic = await kit.topic()
    await kit.log(topic, 10, at_ms=1_000)
    process = await kit.pipeline()
    await process.run()
    await kit.log(topic, 10, at_ms=2_000)
    found = await kit.read(startingTimestamp="1004", endingTimestamp="2003")
    assert [offset for _, _, offset in found] == list(range(4, 13))
    assert [offset for _, _, offset in await kit.read(startingTimestamp="2008", endingTimestamp="9999")] == [18, 19]
    with pytest.raises(Invalid, match="no record at or after"):
        await kit.read(startingTimestamp="9999")
    assert await kit.read(startingTimestamp="9999", startingOffsetsByTimestampStrategy="latest") == []


async def test_topics_that_are_named_must_be_there_and_patterns_take_what_is() -> None:
    kit = ScanKit()
    for name in ("orders", "orders-eu", "other"):
        await kit.log(await kit.topic(name), 1)
    assert await kit.read(subscribe="orders,other") == [("orders", 0, 0), ("other", 0, 0)]
    with pytest.raises(Invalid, match="there is no topic ghosts"):
        await kit.read(subscribe="orders,ghosts")
    scanner = kit.scanner()
    scanner.options = parse_options({"subscribePattern": "orders.*"}, is_stream=False)
    found = await kit.places(await scanner.plan_batch(), scanner)
    assert {topic for topic, _, _ in found} == {"orders", "orders-eu"}


async def test_a_read_is_pinned_before_anything_is_looked_up() -> None:
    kit = ScanKit()
    await kit.log(await kit.topic(), 2)
    scanner = kit.scanner()
    through = scanner.look.partitions
    pinned: list[int] = []

    async def looked(*args: Any, **named: Any) -> Any:
        pinned.append(len(await list_pins(kit.metadata, kit.keys)))
        return await through(*args, **named)

    scanner.look.partitions = looked  # type: ignore[method-assign]
    planned = await scanner.plan_batch()
    [pin] = await list_pins(kit.metadata, kit.keys)
    assert pinned == [1] and planned.pin is not None and planned.pin.id == pin.id


async def test_a_read_that_fails_or_finds_nothing_leaves_no_pin() -> None:
    kit = ScanKit()
    await kit.topic()
    assert (await kit.scanner().plan_batch()).tasks == []
    with pytest.raises(Invalid):
        await kit.scanner(subscribe="ghosts").plan_batch()
    assert await list_pins(kit.metadata, kit.keys) == []


async def test_trimmed_offsets_fail_a_read_or_are_told() -> None:
    kit = ScanKit()
    topic = await kit.topic()
    await kit.log(topic, 10)
    await kit.trim(topic, 0, 4)
    starts = '{"orders": {"0": 1}}'
    with pytest.raises(Missing, match="offsets 1 to 3 are lost"):
        await kit.read(startingOffsets=starts)
    scanner = kit.scanner(startingOffsets=starts, failOnDataLoss="false")
    planned = await scanner.plan_batch()
    assert [offset for _, _, offset in await kit.places(planned, scanner)] == list(range(4, 10))
    assert len(planned.losses) == 1
    assert [offset for _, _, offset in await kit.read()] == list(range(4, 10)), "the earliest is what there is"


async def test_a_stream_moves_from_trigger_to_trigger_and_lets_go_of_what_is_committed() -> None:
    kit = ScanKit()
    topic = await kit.topic(partitions=2)
    await kit.log(topic, 4)
    stream = kit.stream(startingOffsets="earliest")
    end = as_json(await stream.latest())
    start = as_json(await stream.initial())
    assert (ends(start), ends(end)) == (nest(orders=[0, 0]), nest(orders=[4, 4]))
    first = await stream.plan(start, end)
    assert len(await list_pins(kit.metadata, kit.keys)) == 1
    await kit.log(topic, 2)
    later = as_json(await stream.latest())
    await stream.committed(end)
    assert await list_pins(kit.metadata, kit.keys) == []
    second = await stream.plan(end, later)
    scanner = kit.scanner()
    assert len(await kit.places(first, scanner)) == 8
    assert sorted(await kit.places(second, scanner)) == [("orders", p, o) for p in range(2) for o in (4, 5)]
    assert (await stream.plan(later, later)).tasks == []


async def test_a_query_that_ends_lets_go_of_what_it_has_not_committed() -> None:
    kit = ScanKit()
    topic = await kit.topic()
    stream = kit.stream(startingOffsets="earliest")
    start = as_json(await stream.initial())
    for _ in range(2):
        await kit.log(topic, 1)
        end = as_json(await stream.latest())
        await stream.plan(start, end)
        start = end
    assert len(await list_pins(kit.metadata, kit.keys)) == 2
    await stream.end()
    assert await list_pins(kit.metadata, kit.keys) == []


async def test_a_stream_begins_with_what_comes_unless_it_is_told() -> None:
    kit = ScanKit()
    topic = await kit.topic()
    await kit.log(topic, 4)
    stream = kit.stream()
    assert ends(await stream.latest()) == nest(orders=[4])
    await kit.log(topic, 1)
    assert ends(await stream.initial()) == nest(orders=[4]), "the first look counts"
    end = as_json(await stream.latest())
    assert ends(end) == nest(orders=[4]), "the first batch is empty"
    assert (await stream.plan(as_json(await stream.initial()), end)).tasks == []
    assert ends(await stream.latest()) == nest(orders=[5])


async def test_a_query_that_dies_in_its_first_batch_goes_on_from_where_it_began() -> None:
    kit = ScanKit()
    topic = await kit.topic(partitions=2)
    await kit.log(topic, 4)
    given = {"startingOffsets": '{"orders": {"0": -1, "1": 2}}'}
    end = as_json(await kit.stream(**given).latest())
    assert ends(end) == nest(orders=[4, 4])
    await kit.log(topic, 3)
    again = kit.stream(**given)
    await again.latest()
    for _ in range(2):  # a frame that is used twice is planned twice
        first = await again.plan(as_json(await again.initial()), end)
        assert await kit.places(first, kit.scanner()) == [("orders", 1, 2), ("orders", 1, 3)]
    second = await again.plan(end, as_json(await again.latest()))
    wanted = [("orders", partition, offset) for partition in (0, 1) for offset in (4, 5, 6)]
    assert sorted(await kit.places(second, kit.scanner())) == wanted


async def test_partitions_that_came_after_the_first_batch_are_no_loss_when_it_is_planned_again() -> None:
    kit = ScanKit()
    await kit.log(await kit.topic(), 4)
    end = as_json(await kit.stream().latest())
    await kit.log(await kit.admin.add_partitions("orders", 2), 3)
    again = kit.stream()
    assert (await again.plan(as_json(await again.initial()), end)).losses == []
    second = await again.plan(end, as_json(await again.latest()))
    wanted = [("orders", 0, 4), ("orders", 0, 5), ("orders", 0, 6), *(("orders", 1, offset) for offset in range(3))]
    assert sorted(await kit.places(second, kit.scanner())) == wanted


async def test_limits_per_trigger_hold_from_the_first_one_on_and_after_a_restart() -> None:
    kit = ScanKit()
    topic = await kit.topic(partitions=2)
    await kit.log(topic, 50)
    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30", "trigger": "processingTime"}
    stream = kit.stream(**given)
    end = as_json(await stream.latest())
    assert ends(end) == nest(orders=[15, 15])
    await stream.plan(as_json(await stream.initial()), end)
    assert ends(await stream.latest()) == nest(orders=[30, 30])
    # After a restart Spark plans the last batch of its checkpoint before it asks for more.
    again = kit.stream(**given)
    await again.plan(end, end)
    assert ends(await again.latest()) == nest(orders=[30, 30])


async def test_a_trigger_waits_for_enough_offsets_but_not_for_ever() -> None:
    kit = ScanKit()
    topic = await kit.topic()
    await kit.log(topic, 3)
    given = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "1m", "trigger": "processingTime"}
    stream = kit.stream(startingOffsets="earliest", **given)
    assert ends(await stream.latest()) == nest(orders=[0])
    await kit.clock.advance(60.0)
    assert ends(await stream.latest()) == nest(orders=[3])
    await stream.plan(nest(orders=[0]), nest(orders=[3]))
    await kit.log(topic, 10)
    assert ends(await stream.latest()) == nest(orders=[13])


async def test_partitions_and_topics_that_come_later_are_read_from_their_beginning() -> None:
    kit = ScanKit()
    topic = await kit.topic("orders")
    await kit.log(topic, 2)
    scanner = kit.scanner_of({}, is_stream=True)
    scanner.options = parse_options({"subscribePattern": "o.*", "startingOffsets": "latest"}, is_stream=True)
    stream = StreamScan(scanner, clock=kit.clock)
    start = as_json(await stream.latest())
    assert ends(start) == nest(orders=[2])
    await stream.plan(start, start)
    grown = await kit.admin.add_partitions("orders", 2)
    await kit.log(grown, 1)
    await kit.log(await kit.topic("others"), 3)
    end = as_json(await stream.latest())
    assert ends(end) == nest(orders=[3, 1], others=[3])
    planned = await stream.plan(start, end)
    wanted = [("orders", 0, 2), ("orders", 1, 0), ("others", 0, 0), ("others", 0, 1), ("others", 0, 2)]
    assert sorted(await kit.places(planned, scanner)) == wanted


async def test_a_checkpoint_that_retention_has_overtaken_fails_the_stream_or_is_told() -> None:
    kit = ScanKit()
    topic = await kit.topic()
    await kit.log(topic, 10)
    await kit.trim(topic, 0, 6)
    with pytest.raises(Missing, match="offsets 2 to 5 are lost"):
        await kit.stream().plan(nest(orders=[2]), nest(orders=[9]))
    assert await list_pins(kit.metadata, kit.keys) == []
    planned = await kit.stream(failOnDataLoss="false").plan(nest(orders=[2]), nest(orders=[9]))
    assert [offset for _, _, offset in await kit.places(planned, kit.scanner())] == [6, 7, 8]
    assert len(planned.losses) == 1


async def test_a_topic_that_is_gone_fails_the_stream_or_is_passed_over() -> None:
    kit = ScanKit()
    topic = await kit.topic()
    await kit.log(topic, 3)
    failing, patient = kit.stream(), kit.stream(failOnDataLoss="false")
    for stream in (failing, patient):
        await stream.latest()
    await kit.admin.delete(topic.id)
    with pytest.raises(Missing, match="partition 0 of orders is gone"):
        await failing.latest()
    assert await patient.latest() == {}


async def test_a_partition_that_a_batch_leaves_out_is_told() -> None:
    kit = ScanKit()
    others = await kit.topic("others")
    for topic in (await kit.topic("orders"), others):
        await kit.log(topic, 3)
    given = {"subscribe": "orders,others", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    stream = kit.stream(**given)
    start = as_json(await stream.initial())
    await kit.admin.delete(others.id)
    planned = await stream.plan(start, as_json(await stream.latest()))
    assert planned.losses == ["partition 0 of others is gone"]
    assert len(await kit.places(planned, kit.scanner())) == 3


async def created_again(kit: ScanKit, topic: Topic, count: int) -> Topic:
    """Delete a topic, create it again under its name, and append to it."""
    await kit.admin.delete(topic.id)
    another = await kit.topic(topic.name)
    await kit.log(another, count)
    return another


async def test_a_stream_whose_topic_is_created_again_fails_whatever_the_new_one_holds() -> None:
    for count in (1, 3, 5):
        kit = ScanKit()
        topic = await kit.topic()
        await kit.log(topic, 3)
        stream = kit.stream(startingOffsets="earliest")
        start, end = as_json(await stream.initial()), as_json(await stream.latest())
        await stream.plan(start, end)
        await created_again(kit, topic, count)
        with pytest.raises(Missing, match="topic orders was deleted and created again"):
            await stream.latest()
        restarted = kit.stream(startingOffsets="earliest")
        await restarted.plan(end, end)
        with pytest.raises(Missing, match="topic orders was deleted and created again"):
            await restarted.latest()


async def test_a_stream_that_bears_losses_reads_a_topic_that_is_created_again_from_its_beginning() -> None:
    for count in (3, 5):
        kit = ScanKit()
        topic = await kit.topic()
        await kit.log(topic, 3)
        stream = kit.stream(startingOffsets="earliest", failOnDataLoss="false")
        start, end = as_json(await stream.initial()), as_json(await stream.latest())
        await stream.plan(start, end)
        await created_again(kit, topic, count)
        later = as_json(await stream.latest())
        assert later != end, "Spark plans a batch only if the end is another one"
        planned = await stream.plan(end, later)
        assert [offset for _, _, offset in await kit.places(planned, kit.scanner())] == list(range(count))
        assert ["created again" in told for told in planned.losses] == [True]
        assert as_json(await stream.latest()) == later


async def test_a_topic_that_is_created_again_before_the_first_batch_is_read_from_its_beginning() -> None:
    kit = ScanKit()
    topic = await kit.topic()
    await kit.log(topic, 3)
    stream = kit.stream(failOnDataLoss="false")
    start = as_json(await stream.initial())
    await created_again(kit, topic, 5)
    planned = await stream.plan(start, as_json(await stream.latest()))
    assert [offset for _, _, offset in await kit.places(planned, kit.scanner())] == list(range(5))


async def test_a_batch_of_a_checkpoint_is_not_read_from_another_topic_of_that_name() -> None:
    kit = ScanKit()
    topic = await kit.topic()
    await kit.log(topic, 3)
    stream = kit.stream(startingOffsets="earliest")
    start, end = as_json(await stream.initial()), as_json(await stream.latest())
    await created_again(kit, topic, 9)
    with pytest.raises(Missing, match="partition 0 of orders is gone, with its offsets 0 to 2"):
        await kit.stream().plan(start, end)
    planned = await kit.stream(failOnDataLoss="false").plan(start, end)
    assert planned.tasks == [] and len(planned.losses) == 1
    assert await list_pins(kit.metadata, kit.keys) == []


async def test_offsets_without_topic_ids_are_believed() -> None:
    kit = ScanKit()
    topic = await kit.topic()
    await kit.log(topic, 5)
    stream = kit.stream()
    await stream.plan(nest(orders=[2]), nest(orders=[2]))
    planned = await stream.plan(nest(orders=[2]), as_json(await stream.latest()))
    assert [offset for _, _, offset in await kit.places(planned, kit.scanner())] == [2, 3, 4]


async def test_a_process_gives_a_sign_once_in_a_while_whatever_its_tasks() -> None:
    kit = ScanKit()
    await kit.log(await kit.topic(), 1)
    planned = await kit.scanner().plan_batch()
    assert planned.pin is not None
    book = BeatBook(clock=kit.clock, rng=seeded_rng(1))
    for _ in range(5):
        await book.beat(planned.pin, kit.objects)
    prefix = beats_prefix(planned.pin.id)
    [first] = [info async for info in kit.objects.list(prefix)]
    assert first.key.startswith(prefix + ALIVE)
    await kit.clock.advance(TIME_TO_LIVE_MS / 1000 / 6)
    await book.beat(planned.pin, kit.objects)
    [second] = [info async for info in kit.objects.list(prefix)]
    assert second.key == first.key and second.modified_at_ms > first.modified_at_ms
