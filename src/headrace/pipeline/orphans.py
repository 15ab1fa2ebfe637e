"""Find files below tables that nothing names, and delete them.

A crash of ours leaves none: what a run writes stands in its saga, and what it leaves behind in a record. But people
write into tables with engines of their own, whose crashes leave files, and snapshots that they expire may leave some.

Of every topic with a table of its own, a page of files at a time:

1. List files that are old enough. Younger ones may belong to a write that is under way.
2. Then read what is named, and strike it off: by the index, by a saga, by `tidy` and `condemned` records, and by
   every snapshot of the table, whichever ref leads to it. What is left goes.

Must stay true: names are read after files were listed, and all of them: where the catalog, a manifest or a record
cannot be read, nothing of that page goes. A table that is not the living topic's own is never touched: not one of a
deleted topic, nor one that was renamed, moved, or belongs to somebody else. A data file that was named while a read
was pinned stays until that pin has ended (`index/pins.py`): as nobody knows when an orphan's last name went, it waits
for all pins that are there when it is found, and for none that come later.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from headrace.errors import Invalid
from headrace.gc.removed import Removed, Why
from headrace.index.pins import list_pins
from headrace.index.values import INDEX_ENTRY
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.paging import read_prefix
from headrace.metadata.port import Key, MetadataStore, Versioned
from headrace.model.extents import TableExtent
from headrace.model.ids import ObjectKey, PinId, StreamId
from headrace.model.topics import Topic, TopicId
from headrace.objects.port import ObjectInfo, ObjectStore, object_key
from headrace.pipeline.records import CONDEMNED_FILES, SAGA_RECORD, TIDY_RECORD
from headrace.runtime.clock import Clock
from headrace.tables.format import Partitioning
from headrace.tables.iceberg.locations import TABLES_PREFIX, topic_uuid
from headrace.tables.port import ForeignTable, TableNames, TopicTable

VERSION_HINT = "version-hint.text"
"""Engines that find a table by its directory keep this beside its metadata; nothing names it."""

DATA_SUFFIX = ".parquet"
"""What pinned reads read of a table ends like this; its metadata they do not."""

MAX_WAITING = 100_000
"""Of how many files the sweeper remembers which pins they wait for."""

RECORDS_PER_READ = 500
ENTRIES_PER_READ = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanLimits:
    """How old a file must be, how many old ones one tick looks at, and how many listed ones at most."""

    age_floor_ms: int
    files_per_tick: int = 10_000
    listed_per_tick: int = 100_000


class TableOrphanSweeper:
    """Walks the tables of all topics, a page of files per tick, round and round."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        objects: ObjectStore,
        names: TableNames,
        topics: Callable[[], Sequence[Topic]],
        clock: Clock,
        limits: OrphanLimits,
    ) -> None:
        """`topics` are all that there are, freshly read; one that is missing is only passed over."""
        self._keys = keys
        self._metadata = metadata
        self._objects = objects
        self._names = names
        self._topics = topics
        self._clock = clock
        self._limits = limits
        self._after_topic: TopicId | None = None
        self._after_file = ""
        self._waiting: dict[ObjectKey, frozenset[PinId]] = {}

    @property
    def is_round_over(self) -> bool:
        """Whether the next tick begins with the first table again."""
        return self._after_topic is None and not self._after_file

    async def tick(self) -> list[Removed]:
        """Look at the next page of a table's files, delete those that nothing names, and return them."""
        orphans = await self.survey()
        if orphans:
            await self._objects.delete([orphan.key for orphan in orphans])
        return orphans

    async def survey(self) -> list[Removed]:
        """Return those of the next page that nothing names, and touch nothing."""
        topic = self._next_topic()
        if topic is None:
            self._after_topic, self._after_file = None, ""
            return []
        after, self._after_file = self._after_file, ""
        self._after_topic = topic.id  # a table that fails is tried again in the next round, and holds up no other
        if await self._metadata.get(self._keys.table(topic.id)) is None:
            return []  # no run has ever made it a table
        page, next_after = await self._old_files(topic.id, after)
        orphans = await self._orphans(topic, page)
        if next_after:
            self._after_file = next_after
        return orphans

    def _next_topic(self) -> Topic | None:
        """Return the topic whose files come next: the same again while its files go on."""
        ids = {topic.id: topic for topic in self._topics()}
        if self._after_file and self._after_topic is not None:
            return ids.get(self._after_topic) or self._behind(ids)
        return self._behind(ids)

    def _behind(self, ids: dict[TopicId, Topic]) -> Topic | None:
        ahead = sorted(one for one in ids if self._after_topic is None or one > self._after_topic)
        return ids[ahead[0]] if ahead else None

    async def _old_files(self, topic_id: TopicId, after: str) -> tuple[dict[ObjectKey, ObjectInfo], str]:
        """Return the next files that are old enough, and behind which key to go on, if there are more."""
        prefix = f"{TABLES_PREFIX}{topic_uuid(topic_id)}/"
        oldest_ms = self._clock.now_ms() - self._limits.age_floor_ms
        page: dict[ObjectKey, ObjectInfo] = {}
        listed = 0
        async for info in self._objects.list(prefix, start_after=after):
            listed += 1
            if info.modified_at_ms <= oldest_ms and _may_be_ours(info.key):
                page[info.key] = info
            if len(page) >= self._limits.files_per_tick or listed >= self._limits.listed_per_tick:
                return page, info.key
        return page, ""

    async def _orphans(self, topic: Topic, page: dict[ObjectKey, ObjectInfo]) -> list[Removed]:
        if not page:
            return []
        left: set[str] = set(page)
        left -= await self._in_records(topic.id, left)
        for stream in topic.streams:
            await self._strike_off_indexed(stream, left)
        table = TopicTable(topic_id=topic.id, topic_name=topic.name, partitioning=Partitioning())
        try:
            unnamed = await self._names.unnamed(table, left) if left else None
        except ForeignTable:
            return []
        found = [info for key, info in page.items() if unnamed is not None and key in unnamed]
        held = await self._held_by_pins([info.key for info in found if info.key.endswith(DATA_SUFFIX)])
        return [
            Removed(key=info.key, size_bytes=info.size_bytes, why=Why.TABLE_ORPHAN)
            for info in found
            if info.key not in held
        ]

    async def _held_by_pins(self, files: Sequence[ObjectKey]) -> set[ObjectKey]:
        """Return those of the files that a pinned read may have found; pins are read after names."""
        if not files:
            return set()
        alive = frozenset(pin.id for pin in await list_pins(self._metadata, self._keys))
        held = set()
        for file in files:
            waits_for = self._waiting.pop(file, alive) & alive
            if waits_for:
                held.add(file)
                if len(self._waiting) < MAX_WAITING:  # what is forgotten begins to wait anew
                    self._waiting[file] = waits_for
        return held

    async def _in_records(self, topic_id: TopicId, files: Collection[str]) -> set[str]:
        """Return those of the files that belong to a run, or are on their way out already."""
        named: set[str] = set()
        prefixes: list[str] = []
        raw = await self._metadata.get(self._keys.saga(topic_id))
        if raw is not None:
            saga = SAGA_RECORD.decode(raw.value, raw.key)
            prefixes.append(f"{saga.data_prefix}{saga.saga_id}/")
            named.update((*saga.freed, *saga.inputs))
            named.update(file.path for file in saga.files)
        for item in await self._all(self._keys.tidy_prefix):
            prefixes.append(TIDY_RECORD.decode(item.value, item.key).prefix)
        for item in await self._all(self._keys.condemned_prefix):
            condemned = CONDEMNED_FILES.decode(item.value, item.key)
            named.update(condemned.paths)
            if condemned.prefix:
                prefixes.append(condemned.prefix)
        return {file for file in files if file in named or file.startswith(tuple(prefixes))}

    async def _all(self, prefix: str) -> list[Versioned]:
        return await read_prefix(self._metadata, prefix, keys_per_read=RECORDS_PER_READ)

    async def _strike_off_indexed(self, stream: StreamId, left: set[str]) -> None:
        """Take out the files that a stream's entries name. Only folded entries can name one."""
        after: Key | None = None
        while True:
            wanted = prefix_range(self._keys.index_prefix(stream), limit=ENTRIES_PER_READ, after=after)
            found = await self._metadata.range(wanted)
            for item in found:
                extent = INDEX_ENTRY.decode(item.value, item.key).extent
                if isinstance(extent, TableExtent):
                    left.difference_update(file.path for file in extent.files)
            if len(found) < ENTRIES_PER_READ:
                return
            after = found[-1].key


def _may_be_ours(key: ObjectKey) -> bool:
    """Say whether a key is one that our names can be compared with; others are left alone."""
    try:
        object_key(key)
    except Invalid:
        return False
    return not key.endswith("/" + VERSION_HINT)
