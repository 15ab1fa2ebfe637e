"""A catalog in memory that keeps the port's promises, for tests and simulations: a table is two lists of files.

Commits are compare-and-swap on the branch head, as a real catalog's are. `trouble` is called before and after each
commit, so that a test can fail, pause or kill there.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from headrace.errors import Retryable
from headrace.model.topics import TopicId
from headrace.tables.columns import COLUMNS
from headrace.tables.files import WrittenFile
from headrace.tables.format import TableFormat
from headrace.tables.iceberg.locations import TABLES_PREFIX, topic_uuid
from headrace.tables.port import (
    Appended,
    BranchHead,
    ExpiryRule,
    ForeignTable,
    TableAppend,
    TableInfo,
    TableStale,
    TopicTable,
    Verdict,
    decide_append,
)

Trouble = Callable[[str], Awaitable[None]]
"""Called with `before <call>` and `after <call>`; what it raises reaches the caller."""


async def no_trouble(_moment: str) -> None:
    return None


@dataclass(slots=True)
class MemoryTable:
    """One table: the branch's files and main's, and the branch head."""

    topic_id: TopicId
    format: TableFormat
    files: list[WrittenFile] = field(default_factory=list)
    main: list[WrittenFile] = field(default_factory=list)
    head: BranchHead | None = None


class MemoryCatalog:
    """Tables by topic name. Any number of processes of a simulation may share one; each has its own `trouble`."""

    def __init__(self) -> None:
        self.tables: dict[str, MemoryTable] = {}
        self.foreign: set[str] = set()
        self.commits = 0

    def seen_by(self, trouble: Trouble = no_trouble) -> "CatalogSeat":
        """Return the catalog as one process sees it."""
        return CatalogSeat(self, trouble)

    def own(self, table: TopicTable) -> MemoryTable | None:
        """Return a topic's own table, under whatever name it lies."""
        return next((one for one in self.tables.values() if one.topic_id == table.topic_id), None)


class CatalogSeat:
    """A `TableCatalog` of one process."""

    def __init__(self, catalog: MemoryCatalog, trouble: Trouble) -> None:
        self._catalog = catalog
        self._trouble = trouble

    async def ensure(self, table: TopicTable) -> TableInfo:
        await self._trouble("before ensure")
        tables = self._catalog.tables
        if table.topic_name in self._catalog.foreign:
            raise ForeignTable(f"a table called {table.topic_name} is not ours")
        found = tables.get(table.topic_name)
        if found is not None and found.topic_id != table.topic_id:
            tables[f"{table.topic_name}__{found.topic_id.hex()[:8]}"] = tables.pop(table.topic_name)
            found = None
        retired = f"{table.topic_name}__{table.topic_id.hex()[:8]}"
        if found is None and retired in tables:
            found = tables[table.topic_name] = tables.pop(retired)
        if found is None:
            ids = {name: number for number, name in enumerate((column.name for column in COLUMNS), 1)}
            format_ = TableFormat(field_ids=ids, schema_id=0, spec_id=0, partitioning=table.partitioning)
            found = tables[table.topic_name] = MemoryTable(table.topic_id, format_)
        await self._trouble("after ensure")
        return _info(table, found)

    async def find(self, table: TopicTable) -> TableInfo | None:
        await self._trouble("before find")
        found = self._catalog.own(table)
        return None if found is None else _info(table, found)

    async def append(self, append: TableAppend, *, now_ms: int, expiry: ExpiryRule) -> Appended:
        await self._trouble("before load")
        found = self._catalog.own(append.table)
        if found is None:
            raise TableStale(f"the table of {append.table.topic_name} is gone")
        head = found.head
        verdict = decide_append(head, append)
        if verdict is Verdict.STALE:
            raise TableStale(f"the table of {append.table.topic_name} ends elsewhere")
        if verdict is Verdict.THERE_ALREADY:
            assert head is not None
            return Appended(head=head, was_there=True)
        await self._trouble("before commit")
        if found.head is not head:
            raise Retryable("the branch moved between load and commit")
        self._catalog.commits += 1
        ends = {**({} if head is None else head.ends), **append.ends}
        found.head = BranchHead(
            snapshot_id=self._catalog.commits, saga_id=append.saga_id, epoch=append.epoch, ends=ends
        )
        found.files += append.files
        found.main += append.files
        committed = found.head
        await self._trouble("after commit")
        return Appended(head=committed)

    async def drop(self, table: TopicTable) -> bool:
        await self._trouble("before drop")
        tables = self._catalog.tables
        names = [name for name, one in tables.items() if one.topic_id == table.topic_id]
        for name in names:
            del tables[name]
        return bool(names)

    async def data_files(self, table: TopicTable, *, ref: str) -> Sequence[str]:
        found = self._catalog.own(table)
        if found is None:
            return ()
        return [file.path for file in (found.main if ref == "main" else found.files)]

    async def close(self) -> None:
        return None


def _info(table: TopicTable, found: MemoryTable) -> TableInfo:
    root = f"{TABLES_PREFIX}{topic_uuid(table.topic_id)}"
    return TableInfo(
        identifier=("topics", table.topic_name),
        uuid=topic_uuid(table.topic_id),
        location=f"memory://{root}",
        data_prefix=f"{root}/data/",
        format=found.format,
        head=found.head,
    )
