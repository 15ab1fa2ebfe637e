"""Prove what is promised of one topic's table: I7, and that the offset index names nothing the table has not.

1. Take one consistent look at streams, index, state, saga and table (`verify_look.py`).
2. The index alone: from log start to high watermark, no gap and no overlap.
3. The index against the branch: each file it names is there, once, of its size; the vector is the table's state.
4. Every row group the index names: its bytes by checksum, its rows inside their range, rising, as many as it says.
5. WAL entries below the vector: held back, or not swapped yet; the latter record by record against their rows.
6. The log's offsets against the branch's rows, and those against `main`: each at most once, none lost, none invented.

What is missing on the branch is damage; what is missing or more on `main` is what users did, and named as such.

Must stay true: it only reads. Memory goes with the size of the index, the holes in the log, and one file's places
(partition, offset, append time); never with the data.
"""

from headrace.errors import Retryable
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.topics import Topic
from headrace.objects.port import ObjectStore
from headrace.pipeline.proof import MovedOn, Progress, Proof
from headrace.pipeline.reading import CheckedReading
from headrace.pipeline.verify_look import TopicLook, TopicLooker
from headrace.pipeline.verify_report import Kind, VerifyReport
from headrace.runtime.clock import Clock
from headrace.runtime.executor import Executor
from headrace.tables.format import Partitioning
from headrace.tables.port import ForeignTable, TopicTable
from headrace.tables.scanning import TableLook, TableScanner

DEFAULT_MAX_OPEN_BYTES = 64 * 1024 * 1024
"""What a batch may become when it is opened: the same as for the pipeline's tasks."""

MAX_PROOFS = 5
"""How often a proof is begun again because what it read was swapped or trimmed, and then deleted, meanwhile."""


class _NoTable:
    """Stands for the scanner where the topic's table cannot be looked at."""

    async def look(self, table: TopicTable) -> TableLook | None:
        return None


class Verifier:
    """Proves topics, one at a time."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        keys: DomainKeys,
        objects: ObjectStore,
        scanner: TableScanner,
        executor: Executor,
        clock: Clock,
        max_open_bytes: int = DEFAULT_MAX_OPEN_BYTES,
    ) -> None:
        self._metadata = metadata
        self._keys = keys
        self._objects = objects
        self._scanner = scanner
        self._executor = executor
        self._clock = clock
        self._max_open_bytes = max_open_bytes

    async def verify(self, topic: Topic, *, progress: Progress = lambda _: None) -> VerifyReport:
        """Prove one topic. What it finds is in the report; it raises only where it cannot look at all."""
        for _ in range(MAX_PROOFS):
            try:
                return await self._prove(topic, progress)
            except MovedOn:
                continue
        raise Retryable(f"what the index of {topic.name} names went while it was read, {MAX_PROOFS} times: try again")

    async def _prove(self, topic: Topic, progress: Progress) -> VerifyReport:
        report = VerifyReport(topic=topic.name)
        look = await self._look(topic, report)
        reading = CheckedReading(
            objects=self._objects,
            domain=self._keys.domain,
            executor=self._executor,
            max_open_bytes=self._max_open_bytes,
        )
        await Proof(look, report, reading, progress, still_names=self._looker(_NoTable()).still_names).run()
        report.tally.read_bytes = reading.read_bytes
        return report

    async def _look(self, topic: Topic, report: VerifyReport) -> TopicLook:
        wanted = TopicTable(topic_id=topic.id, topic_name=topic.name, partitioning=Partitioning())
        try:
            return await self._looker(self._scanner).look(topic, wanted)
        except ForeignTable as error:
            look = await self._looker(_NoTable()).look(topic, wanted)
            if look.state is not None and look.state.ends:
                report.damage(Kind.TABLE, f"the topic had a table, and now: {error}")
            else:
                report.warn(Kind.TABLE, str(error))
            return look

    def _looker(self, scanner: TableScanner) -> TopicLooker:
        return TopicLooker(metadata=self._metadata, keys=self._keys, scanner=scanner, clock=self._clock)
