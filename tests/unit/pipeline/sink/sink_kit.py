"""A sink without Spark: stores in memory, topics, and tasks that write Arrow batches as Spark would send them."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace import __version__
from headrace.fetch.reader import LogReader
from headrace.index.cache import IndexCache
from headrace.index.objects import wal_object_key
from headrace.metadata.keys import DomainKeys
from headrace.metadata.memory import MemoryMetadata
from headrace.model.ids import DomainId, ObjectId, ObjectKey, StreamId, WriterId
from headrace.model.topics import Topic, TopicRules
from headrace.objects.memory import MemoryObjects
from headrace.pipeline.sink.driver import SinkDriver, SinkLimits
from headrace.pipeline.sink.framing import FrameLimits, FrameWriter
from headrace.pipeline.sink.options import SinkOptions, parse_options
from headrace.pipeline.sink.plans import SinkPlan, SinkTopic, TaskAnswer, WrittenFrame
from headrace.pipeline.spark.address import ObjectsAddress
from headrace.records.columns import IMPLEMENTATION
from headrace.records.record import Record
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.rng import seeded_rng
from headrace.testing.batches import read_batches
from headrace.testing.clock import ManualClock
from headrace.testing.inline import at_once
from headrace.topics.admin import TopicAdmin
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory
from headrace.wal.frame import SealedFrame

ADDRESS = ObjectsAddress(url="memory:")
WRITE = WriterId("a" * 32)
RULES = TopicRules(max_message_bytes=1_000_000)


def plan_of(
    *,
    partitions: int = 3,
    rules: TopicRules = RULES,
    topic: str | None = "orders",
    names: Sequence[str] = ("orders",),
    codec: int | None = None,
) -> SinkPlan:
    """Return a plan for topics of that many partitions, whose streams are numbered through."""
    topics = tuple(
        SinkTopic(
            name=name,
            streams=tuple(StreamId(number * partitions + n) for n in range(partitions)),
            rules=rules,
        )
        for number, name in enumerate(names)
    )
    return SinkPlan(
        write=WRITE,
        domain=DomainId(0),
        topic=topic,
        topics=topics,
        codec=codec,
        max_open_bytes=10_000_000,
        objects=ADDRESS,
        version=__version__,
        decoder=IMPLEMENTATION,
    )


def options_of(**given: str) -> SinkOptions:
    """Return the options of a single write."""
    return parse_options(given, is_stream=False)


class MemoryFrames:
    """A `FrameStore` that keeps what it is given in an object store in memory."""

    def __init__(self, objects: MemoryObjects) -> None:
        self._objects = objects
        self._keys: list[ObjectKey] = []

    def put(self, object_id: ObjectId, frame: SealedFrame) -> None:
        self._keys.append(wal_object_key(DomainId(0), object_id))
        at_once(self._objects.put_if_absent(self._keys[-1], frame.buffers))

    def flush(self) -> None:
        return None

    def discard(self) -> None:
        at_once(self._objects.delete(self._keys))


def write_task(
    plan: SinkPlan,
    objects: MemoryObjects,
    batches: Sequence[Any],
    *,
    task: int = 0,
    attempt: int = 1,
    limits: FrameLimits | None = None,
    now_ms: int = 5_000,
) -> tuple[WrittenFrame, ...]:
    """Write batches as one attempt of one task does."""
    names = {name: name for name in batches[0].schema.names} if batches else {"value": "value"}
    writer = FrameWriter(
        plan,
        names,
        task=task,
        attempt=attempt,
        store=MemoryFrames(objects),
        clock=ManualClock(now_ms=now_ms),
        limits=limits,
    )
    return writer.write(batches)


def batch_of(**columns: Any) -> Any:
    """Return an Arrow batch as Spark sends it: strings, binaries, ints."""
    return pa.RecordBatch.from_pydict(columns)


def records_in(objects: MemoryObjects, frame: WrittenFrame) -> dict[int, list[Record]]:
    """Return what a frame holds, by stream, read back from the store."""
    data = memoryview(bytes(at_once(objects.get(wal_object_key(DomainId(0), frame.object_id)))))
    found = {}
    for run in frame.runs:
        size_bytes = sum(batch.size_bytes for batch in run.batches)
        found[int(run.stream)] = read_batches(data[run.start_byte : run.start_byte + size_bytes])
    return found


class SinkKit:
    """A cluster in memory with topics, and the driver's side of a sink."""

    def __init__(self) -> None:
        self.keys = DomainKeys(DomainId(0))
        self.clock = ManualClock(now_ms=10_000)
        self.metadata = MemoryMetadata(seeded_rng(3))
        self.objects = MemoryObjects(self.clock)
        defaults = TopicDefaults()
        self.topics = TopicDirectory(self.metadata, defaults=defaults, clock=self.clock)
        self.admin = TopicAdmin(
            store=self.metadata,
            keys=self.keys,
            directory=self.topics,
            clock=self.clock,
            rng=seeded_rng(4),
            defaults=defaults,
            default_partition_count=1,
        )
        self.driver = SinkDriver(
            keys=self.keys,
            metadata=self.metadata,
            objects=self.objects,
            topics=self.topics,
            address=ADDRESS,
            clock=self.clock,
            rng=seeded_rng(5),
            crash_points=NoCrashes(),
            limits=SinkLimits(write_max_age_ms=60_000, max_open_bytes=1_000_000),
        )

    def answer(
        self, plan: SinkPlan, values: Sequence[str], *, task: int = 0, attempt: int = 1, query: str = ""
    ) -> TaskAnswer:
        """Write values as one attempt of a task, and return its answer."""
        frames = write_task(plan, self.objects, [batch_of(value=list(values))], task=task, attempt=attempt)
        return TaskAnswer(write=plan.write, task=task, query=query, frames=frames)

    async def stored(self, topic: Topic) -> list[bytes]:
        """Return the values of a topic's only partition, as a reader gets them."""
        cache = IndexCache(self.metadata, self.keys, max_folded_entries=100)
        reader = LogReader(domain=self.keys.domain, cache=cache, objects=self.objects)
        head = await cache.fresh_head(topic.streams[0])
        assert head is not None
        found: list[bytes] = []
        while len(found) < head.high_watermark:
            for run in await reader.read(topic.streams[0], len(found), max_bytes=1_000_000):
                found += [record.value or b"" for record in read_batches(run.data)]
        return found
