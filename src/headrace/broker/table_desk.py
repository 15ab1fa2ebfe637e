"""What the commands that look at tables stand on: stores, catalog, topics and index of a cluster, opened to read.

It needs no broker and no Spark, and changes nothing. While the catalog is away, what the metadata store knows is told
all the same.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.broker.live_settings import defaults_reader
from headrace.broker.storage import Runtime, opened_storage, topic_defaults
from headrace.broker.tables import open_table_catalog
from headrace.errors import HeadraceError, Missing
from headrace.index.cache import IndexCache
from headrace.metadata.keys import DomainKeys
from headrace.metadata.paging import read_prefix
from headrace.metadata.port import MetadataStore
from headrace.model.ids import DomainId
from headrace.model.topics import Topic, TopicId
from headrace.objects.port import ObjectStore
from headrace.pipeline.lag import TableLag, measure_lag
from headrace.pipeline.proof import Progress
from headrace.pipeline.records import CONDEMNED_FILES, SagaRecord, TableState, TableStatus
from headrace.pipeline.sagas import Sagas
from headrace.pipeline.verify import Verifier
from headrace.pipeline.verify_report import VerifyReport
from headrace.runtime.clock import Clock
from headrace.runtime.executor import Executor, ThreadExecutor
from headrace.settings import Settings
from headrace.tables.port import TopicTable
from headrace.tables.scanning import MAIN_REF, DeadLetterScanner, TableDescription, TableLook, TableScanner
from headrace.topics.compaction import compaction_rules_of
from headrace.topics.directory import TopicDirectory
from headrace.topics.tables import TableRules, table_rules_of

DOMAIN = DomainId(0)
LOOKS_AT_ONCE = 4
MAX_FOLDED_ENTRIES = 10_000
CONDEMNED_PER_READ = 500
NOT_COMPACTED = "a topic without a table is not compacted by key: its log is kept in full"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTableView:
    """A topic and its table. `description` is `None` where there is no table, or the catalog does not tell."""

    topic: Topic
    rules: TableRules
    state: TableState | None
    saga: SagaRecord | None
    lag: TableLag
    description: TableDescription | None
    vector: Mapping[int, int]
    problem: str

    @property
    def status(self) -> str:
        """How it stands with the table, in one word."""
        if not self.rules.enable:
            return "off"
        if self.state is None:
            return "waiting"
        return {TableStatus.OK: "ok", TableStatus.FOREIGN: "foreign", TableStatus.FAILING: "failing"}[
            self.state.status
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemned:
    """Files of a table that wait for the collector."""

    records: int
    files: int
    since_ms: int | None


class TableDesk:
    """Answers questions about tables."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        scanner: TableScanner,
        letters: DeadLetterScanner,
        topics: TopicDirectory,
        clock: Clock,
        executor: Executor,
        max_open_bytes: int,
    ) -> None:
        self._keys = DomainKeys(DOMAIN)
        self._metadata = metadata
        self._objects = objects
        self._scanner = scanner
        self._letters = letters
        self._topics = topics
        self._clock = clock
        self._executor = executor
        self._max_open_bytes = max_open_bytes
        self._sagas = Sagas(metadata, self._keys)
        self._index = IndexCache(metadata, self._keys, max_folded_entries=MAX_FOLDED_ENTRIES)

    async def all(self) -> Sequence[TopicTableView]:
        """Return every topic with its table, by name."""
        await self._topics.refresh()
        await self._index.refresh()
        slots = asyncio.Semaphore(LOOKS_AT_ONCE)

        async def in_turn(topic: Topic) -> TopicTableView:
            async with slots:
                return await self._view(topic)

        return await asyncio.gather(*(in_turn(topic) for topic in self._topics.known()))

    async def one(self, name: str) -> TopicTableView:
        """Return one topic with its table. Raises `Missing`."""
        topic = await self._topic(name)
        await self._index.refresh()
        return await self._view(topic)

    async def condemned(self, topic_id: TopicId) -> Condemned:
        """Return what waits for the collector of a topic's table."""
        found = await read_prefix(self._metadata, self._keys.condemned_prefix, keys_per_read=CONDEMNED_PER_READ)
        records = [CONDEMNED_FILES.decode(item.value, item.key) for item in found]
        own = [record for record in records if record.topic_id == topic_id]
        return Condemned(
            records=len(own),
            files=sum(len(record.paths) for record in own),
            since_ms=min((record.since_ms for record in own), default=None),
        )

    async def sample(self, name: str, *, count: int, ref: str = MAIN_REF) -> Sequence[Mapping[str, object]]:
        """Return the rows that were appended last, newest first. Raises `Missing` if there is no table."""
        topic = await self._topic(name)
        look = await self._scanner.look(_table_of(topic))
        if look is None:
            raise Missing(f"topic {name} has no table yet: run the pipeline, or wait for it")
        return await look.newest(ref, count=count)

    async def dead_letters(
        self, name: str, *, limit: int, partition: int | None = None
    ) -> Sequence[Mapping[str, object]]:
        """Return the values that did not fit the topic's schema, newest first, at most `limit`. Raises `Missing`."""
        topic = await self._topic(name)
        look = await self._letters.look_at_dead_letters(_table_of(topic))
        if look is None:
            if table_rules_of(topic.overrides).schema is None:
                raise Missing(f"topic {name} has no dead letters: it has no schema; set headrace.table.schema")
            return ()
        return await look.newest(MAIN_REF, count=limit, partition=partition)

    async def verify(self, name: str, *, progress: Progress) -> VerifyReport:
        """Prove a topic's table (`pipeline/verify.py`). Raises `Missing`."""
        topic = await self._topic(name)
        verifier = Verifier(
            metadata=self._metadata,
            keys=self._keys,
            objects=self._objects,
            scanner=self._scanner,
            executor=self._executor,
            clock=self._clock,
            max_open_bytes=self._max_open_bytes,
        )
        return await verifier.verify(topic, progress=progress)

    async def _topic(self, name: str) -> Topic:
        await self._topics.refresh()
        topic = self._topics.get(name)
        if topic is None:
            raise Missing(f"there is no topic {name}")
        return topic

    async def _view(self, topic: Topic) -> TopicTableView:
        state = await self._sagas.state(topic.id)
        lag = await measure_lag(self._index, topic, state, now_ms=self._clock.now_ms())
        look, problem = await self._looked_at(topic)
        rules = table_rules_of(topic.overrides)
        if compaction_rules_of(topic.configs).enable and not rules.enable:
            problem = problem or NOT_COMPACTED
        head = None if look is None else look.head
        ends = {} if state is None else state.ends
        return TopicTableView(
            topic=topic,
            rules=rules,
            state=state,
            saga=await self._sagas.load(topic.id),
            lag=lag,
            description=None if look is None else look.description,
            vector=ends if head is None else head.ends,
            problem=problem or ("" if state is None else state.problem),
        )

    async def _looked_at(self, topic: Topic) -> tuple[TableLook | None, str]:
        """Return the table, or why it cannot be looked at."""
        try:
            return await self._scanner.look(_table_of(topic)), ""
        except HeadraceError as error:
            return None, str(error)


@asynccontextmanager
async def opened_table_desk(settings: Settings, runtime: Runtime) -> AsyncIterator[TableDesk]:
    """Open everything that looking at tables takes. Raises `Missing` where no cluster has been."""
    require_cluster(settings)
    executor = ThreadExecutor("tables", threads=1)
    try:
        async with opened_storage(settings, runtime) as storage, open_table_catalog(settings, runtime) as catalog:
            yield TableDesk(
                metadata=storage.metadata,
                objects=storage.objects,
                scanner=catalog,
                letters=catalog,
                topics=TopicDirectory(
                    storage.metadata,
                    defaults=topic_defaults(settings),
                    clock=runtime.clock,
                    read_defaults=defaults_reader(settings, storage.metadata),
                ),
                clock=runtime.clock,
                executor=executor,
                max_open_bytes=settings.topics.decompression_max_bytes,
            )
    finally:
        executor.close()


def require_cluster(settings: Settings) -> None:
    """Opening an embedded store makes it; whoever only looks should hear that there is none."""
    url = settings.metadata.url
    path = Path(url.removeprefix("sqlite:").removeprefix("//"))
    if url.startswith("sqlite:") and not path.exists():
        raise Missing(f"there is no cluster in {settings.broker.data_dir}: {path} does not exist; check --data-dir")


def _table_of(topic: Topic) -> TopicTable:
    return TopicTable(
        topic_id=topic.id, topic_name=topic.name, partitioning=table_rules_of(topic.overrides).partitioning
    )
