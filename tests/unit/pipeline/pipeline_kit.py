"""A log on memory stores with topics, and any number of pipelines over it, which may be killed at a crash point."""

import asyncio

from headrace.gc.folding import Folder, FoldLimits
from headrace.index.values import INDEX_ENTRY, IndexEntry
from headrace.model.ids import StreamId
from headrace.model.topics import Topic
from headrace.pipeline.compaction_plan import CompactionLimits
from headrace.pipeline.keeping import KeepLimits
from headrace.pipeline.named_files import IndexNames
from headrace.pipeline.planner import PlanLimits
from headrace.pipeline.ports import NoProgress, TableWriter
from headrace.pipeline.records import SagaRecord, TableState
from headrace.pipeline.runner import Pipeline, PipelineLimits
from headrace.pipeline.sagas import Sagas
from headrace.pipeline.swapping import Swapper
from headrace.pipeline.topic_run import RunParts, WriteLimits
from headrace.records.batch import iter_batches
from headrace.runtime.crash_points import CrashPoint, CrashPoints, NoCrashes
from headrace.runtime.logs import open_log
from headrace.runtime.rng import seeded_rng
from headrace.tables.port import ExpiryRule
from headrace.testing.local_writer import LocalWriter
from headrace.testing.memory_catalog import MemoryCatalog, Trouble, no_trouble
from headrace.topics.admin import NewTopic, TopicAdmin
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory
from tests.unit.produce.scripted import WriterKit


class Killed(BaseException):
    """The process ends here; nothing of ours may catch it."""


class KillAt:
    """Crash points that end the process at the n-th arrival at one of them."""

    def __init__(self, point: CrashPoint, arrival: int = 1) -> None:
        self._point = point
        self._left = arrival

    def reach(self, point: CrashPoint) -> None:
        if point is self._point:
            self._left -= 1
            if self._left == 0:
                raise Killed(point)


class Nowhere:
    """A text stream for logs that nobody reads."""

    def write(self, _text: str) -> int:
        return 0

    def flush(self) -> None:
        return None

    def isatty(self) -> bool:
        return False


class PipelineKit(WriterKit):
    """Topics, a writer, a catalog in memory."""

    def __init__(self, *, max_entries: int = 300) -> None:
        super().__init__()
        self.catalog = MemoryCatalog()
        self.max_entries = max_entries
        self.rng = seeded_rng(11)
        defaults = TopicDefaults(message_max_bytes=1_048_588)
        self.directory = TopicDirectory(self.metadata, defaults=defaults, clock=self.clock)
        self.admin = TopicAdmin(
            store=self.metadata,
            keys=self.keys,
            directory=self.directory,
            clock=self.clock,
            rng=self.rng,
            defaults=defaults,
            default_partition_count=1,
        )
        self.sagas = Sagas(self.metadata, self.keys)

    async def topic(self, name: str = "orders", partitions: int = 1, **configs: str) -> Topic:
        """Create a topic; `_` in the names of configs stands for a dot."""
        if not self.session:
            await self.start(0)
        given = {f"headrace.table.{key.replace('_', '.')}": value for key, value in configs.items()}
        return await self.admin.create(NewTopic(name=name, partition_count=partitions, configs=given))

    async def append_raw(self, stream: StreamId, data: bytes) -> int:
        """Append one batch as it is and return its first offset."""
        batches = [view.summary() for view in iter_batches(memoryview(data))]
        return (await self.writer.append(stream, data, batches)).base_offset

    async def pipeline(
        self,
        *,
        crash_points: CrashPoints | None = None,
        trouble: Trouble = no_trouble,
        writer: TableWriter | None = None,
        compaction: CompactionLimits | None = None,
        keep: KeepLimits | None = None,
        expiry: ExpiryRule | None = None,
    ) -> "PipelineProcess":
        """Start a pipeline process with a session of its own."""
        session = await self.metadata.open_session(timeout_ms=60_000)
        points = crash_points or NoCrashes()
        log = open_log(Nowhere(), clock=self.clock)  # type: ignore[arg-type]
        parts = RunParts(
            sagas=self.sagas,
            swapper=Swapper(
                store=self.metadata,
                keys=self.keys,
                clock=self.clock,
                crash_points=points,
                max_entries=self.max_entries,
            ),
            catalog=self.catalog.seen_by(trouble),
            writer=writer or LocalWriter(self.objects, rng=self.rng),
            objects=self.objects,
            clock=self.clock,
            rng=self.rng,
            crash_points=points,
            progress=NoProgress(),
            expiry=expiry or ExpiryRule(),
            write=WriteLimits(),
            names=IndexNames(self.metadata, self.keys),
            domain=self.keys.domain,
        )
        folder = Folder(
            keys=self.keys,
            metadata=self.metadata,
            clock=self.clock,
            crash_points=points,
            limits=FoldLimits(records_per_step=100, steps_per_tick=10, lag_records=0),
        )
        pipeline = Pipeline(
            store=self.metadata,
            keys=self.keys,
            topics=TopicDirectory(
                self.metadata, defaults=TopicDefaults(message_max_bytes=1_048_588), clock=self.clock
            ),
            folder=folder,
            parts=parts,
            session=lambda: session,
            limits=PipelineLimits(
                plan=PlanLimits(), keep=keep or KeepLimits(), compaction=compaction or CompactionLimits()
            ),
            log=log,
        )
        return PipelineProcess(self, pipeline, session)

    async def index(self, stream: StreamId) -> list[IndexEntry]:
        """Return the folded entries of a stream."""
        found = await self.metadata.range(self.keys.entries(stream, after_offset=0, limit=10_000))
        return [INDEX_ENTRY.decode(item.value, item.key) for item in found]

    async def state(self, topic: Topic) -> TableState:  # type: ignore[override]
        found = await self.sagas.state(topic.id)
        assert found is not None
        return found

    async def saga(self, topic: Topic) -> SagaRecord | None:
        return await self.sagas.load(topic.id)

    def table_rows(self, name: str = "orders") -> list[tuple[int, int, int]]:
        """Return what the table's files cover: partition, start and end offset, in the order they were appended."""
        table = self.catalog.tables.get(name)
        files = [] if table is None else table.files
        return [(part.partition, part.start_offset, part.end_offset) for file in files for part in file.slices]


class PipelineProcess:
    """One pipeline and its session."""

    def __init__(self, kit: PipelineKit, pipeline: Pipeline, session: str) -> None:
        self._kit = kit
        self.pipeline = pipeline
        self.session = session

    async def run(self) -> tuple[int, dict[str, str]]:
        """Make a round over everything; return how many rows came into tables, and the problems."""
        task = asyncio.create_task(self.pipeline.run_once(force=True))
        while not task.done():
            await self._kit.clock.settle()
            if not task.done():
                await self._kit.clock.advance(1.0)
        report = task.result()
        return report.rows, report.problems

    async def bury(self) -> None:
        """End the session, as its time-out would after the process died."""
        await self._kit.metadata.end_session(self.session)  # type: ignore[arg-type]
