"""A catalog in memory that keeps the port's promises, for tests and simulations: a table is two lists of files.

A person's hands on `main` are `touched` (files that delete files apply to) and changes of the list itself. What
snapshots named is remembered until they expire, so that files come free as they do in a real table.

Commits are compare-and-swap on the branch head, as a real catalog's are. `trouble` is called before and after each
commit, so that a test can fail, pause or kill there.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from headrace.errors import Invalid, Retryable
from headrace.model.topics import TopicId
from headrace.tables.columns import COLUMNS
from headrace.tables.dead_letters import LETTER_SCHEMA
from headrace.tables.files import WrittenFile
from headrace.tables.format import DeadLetterFormat, TableFormat
from headrace.tables.iceberg.locations import TABLES_PREFIX, dead_letter_prefix, topic_uuid
from headrace.tables.port import (
    Appended,
    BranchHead,
    DeadLetterAppend,
    ExpiryRule,
    ForeignTable,
    ListedFile,
    MainPolicy,
    Rewritten,
    RowSpan,
    TableAppend,
    TableInfo,
    TableListing,
    TableRewrite,
    TableStale,
    TopicTable,
    Verdict,
    are_letters_there,
    decide_append,
    decide_rewrite,
)
from headrace.tables.typed.evolution import SchemaConflict, evolved
from headrace.tables.typed.model import walk
from headrace.tables.typed.schemas import ready_schema

Trouble = Callable[[str], Awaitable[None]]
"""Called with `before <call>` and `after <call>`; what it raises reaches the caller."""


async def no_trouble(_moment: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """What both refs named after a commit."""

    made_at_ms: int
    paths: frozenset[str]


@dataclass(slots=True)
class MemoryTable:
    """One table: the branch's files and main's, the branch head, and its dead letters with the vector of those.

    `touched` are paths with delete files.
    """

    topic_id: TopicId
    format: TableFormat
    files: list[WrittenFile] = field(default_factory=list)
    main: list[WrittenFile] = field(default_factory=list)
    head: BranchHead | None = None
    touched: set[str] = field(default_factory=set)
    snapshots: list[MemorySnapshot] = field(default_factory=list)
    freed: set[str] = field(default_factory=set)
    """All files that have ever come free; where the answer was lost that told of them, nobody condemns them."""

    deleted: dict[str, Mapping[int, Collection[int]]] = field(default_factory=dict)
    """The rows of files that a person has touched or taken out, by partition and offset, as far as they were told."""

    letters: list[WrittenFile] = field(default_factory=list)
    listed_ends: dict[int, int] = field(default_factory=dict)
    is_changed: bool = False
    """Whether a person has changed `main`."""

    def touch(self, path: str, rows: Mapping[int, Collection[int]] | None = None) -> None:
        """Let a person delete some rows of a file of `main`, as merge-on-read does: with a delete file."""
        self.touched.add(path)
        self.deleted[path] = rows or {}
        self.is_changed = True

    def take_out(self, path: str, rows: Mapping[int, Collection[int]] | None = None) -> None:
        """Let a person take a file out of `main`, as a delete of whole files does."""
        self.deleted[path] = rows or {}
        self.main = [file for file in self.main if file.path != path]
        self.is_changed = True

    def named_paths(self) -> set[str]:
        """Return the files that a ref or a snapshot names."""
        named = {file.path for file in (*self.files, *self.main) if file.path}
        return named.union(*(one.paths for one in self.snapshots))

    def note_snapshot(self, now_ms: int) -> None:
        """Remember what is named now."""
        paths = frozenset(file.path for file in (*self.files, *self.main) if file.path)
        self.snapshots.append(MemorySnapshot(made_at_ms=now_ms, paths=paths))

    def expire(self, now_ms: int, rule: ExpiryRule) -> list[str]:
        """Forget old snapshots and return the files that none of the others names."""
        recent = self.snapshots[-rule.max_snapshots :]
        # The newest is what the refs stand on: it stays, also if a clock that is behind has made it.
        newest = self.snapshots[-1:]
        left = [one for one in recent if one.made_at_ms >= now_ms - rule.max_age_ms or one in newest]
        gone = {path for one in self.snapshots if one not in left for path in one.paths}
        self.snapshots = left
        named = {file.path for file in (*self.files, *self.main)}
        freed = gone - named - {path for one in left for path in one.paths}
        self.freed |= freed
        return sorted(freed)


class MemoryCatalog:
    """Tables by topic name. Any number of processes of a simulation may share one; each has its own `trouble`."""

    def __init__(self) -> None:
        self.tables: dict[str, MemoryTable] = {}
        self.foreign: set[str] = set()
        self.commits = 0
        self.merges = 0
        self.main_merges = 0
        self.released = 0

    def seen_by(self, trouble: Trouble = no_trouble) -> "CatalogSeat":
        """Return the catalog as one process sees it."""
        return CatalogSeat(self, trouble)

    def own(self, table: TopicTable) -> MemoryTable | None:
        """Return a topic's own table, under whatever name it lies."""
        return next((one for one in self.tables.values() if one.topic_id == table.topic_id), None)

    def main_part(self, table: MemoryTable, rewrite: TableRewrite) -> frozenset[str]:
        """Say which inputs go from `main`: all of them, some, or none."""
        there = frozenset(file.path for file in table.main) & frozenset(rewrite.inputs)
        if rewrite.main is MainPolicy.NEVER:
            return frozenset()
        if rewrite.main in (MainPolicy.ALONG, MainPolicy.ALONE) and not rewrite.files:
            return there
        is_untouched = len(there) == len(rewrite.inputs) and not there & table.touched
        return there if is_untouched else frozenset()


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
        found.format = _typed(found.format, table)
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
            return Appended(head=head, was_there=True, freed=found.expire(now_ms, expiry))
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
        found.note_snapshot(now_ms)
        committed, freed = found.head, found.expire(now_ms, expiry)
        await self._trouble("after commit")
        return Appended(head=committed, freed=freed)

    async def rewrite(self, rewrite: TableRewrite, *, now_ms: int, expiry: ExpiryRule) -> Rewritten:
        await self._trouble("before load")
        found = self._catalog.own(rewrite.table)
        if found is None:
            raise TableStale(f"the table of {rewrite.table.topic_name} is gone")
        head = found.head
        branch, main = ({file.path for file in files} for files in (found.files, found.main))
        verdict = decide_rewrite(head, rewrite, branch=branch, main=main)
        if verdict is Verdict.THERE_ALREADY:
            assert head is not None
            return Rewritten(head=head, was_there=True, freed=found.expire(now_ms, expiry))
        if verdict is Verdict.STALE or head is None:
            raise TableStale(f"the table of {rewrite.table.topic_name} has not all of the files")
        await self._trouble("before commit")
        if found.head is not head:
            raise Retryable("the branch moved between load and commit")
        taken = self._catalog.main_part(found, rewrite)
        is_alone = rewrite.main is MainPolicy.ALONE
        if is_alone and not taken:
            raise TableStale(f"somebody has touched files of main of {rewrite.table.topic_name}")
        self._catalog.commits += 1
        found.head = BranchHead(
            snapshot_id=self._catalog.commits, saga_id=rewrite.saga_id, epoch=rewrite.epoch, ends=head.ends
        )
        new = [file for file in rewrite.files if file.path]
        self._catalog.merges += bool(rewrite.files) and not is_alone
        self._catalog.main_merges += is_alone and bool(rewrite.files)
        self._catalog.released += 0 if rewrite.files else len(rewrite.inputs)
        if not is_alone:
            found.files = [file for file in found.files if file.path not in rewrite.inputs] + new
        if taken:
            found.main = [file for file in found.main if file.path not in taken] + new
        found.note_snapshot(now_ms)
        committed, freed = found.head, found.expire(now_ms, expiry)
        await self._trouble("after commit")
        return Rewritten(head=committed, main_moved=bool(taken), freed=freed)

    async def expire(self, table: TopicTable, *, now_ms: int, expiry: ExpiryRule) -> Sequence[str]:
        await self._trouble("before expire")
        found = self._catalog.own(table)
        return () if found is None else found.expire(now_ms, expiry)

    async def listing(self, table: TopicTable, *, with_spans: bool = False) -> TableListing | None:
        await self._trouble("before listing")
        found = self._catalog.own(table)
        if found is None:
            return None
        branch, main = ({file.path: file for file in files if file.path} for files in (found.files, found.main))
        own = [
            sum(file.size_bytes for path, file in files.items() if path not in others)
            for files, others in ((branch, main), (main, branch))
        ]
        return TableListing(
            info=_info(table, found),
            files=[_listed(file) for file in branch.values()],
            formats={found.format.spec_id: found.format},
            held_twice_bytes=min(own),
            left=[
                replace(
                    _listed(file),
                    sequence_number=number,
                    is_touched=path in found.touched,
                    span=_span(file) if with_spans else None,
                )
                for number, (path, file) in enumerate(main.items())
                if path not in branch
            ],
        )

    async def append_dead_letters(
        self, append: DeadLetterAppend, *, now_ms: int, expiry: ExpiryRule
    ) -> Sequence[str]:
        await self._trouble("before load")
        found = self._catalog.own(append.table)
        if found is None:
            raise Retryable(f"the dead-letter table of {append.table.topic_name} is gone")
        listed = found.listed_ends
        if are_letters_there(listed, append):
            return ()
        await self._trouble("before commit")
        if found.listed_ends is not listed:
            raise Retryable("the dead-letter table moved between load and commit")
        found.listed_ends = {**listed, **append.ends}
        found.letters += append.files
        await self._trouble("after commit")
        return ()

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


def _listed(file: WrittenFile) -> ListedFile:
    return ListedFile(
        path=file.path,
        size_bytes=file.size_bytes,
        row_count=file.row_count,
        bucket=file.bucket,
        partition=file.partition,
        spec_id=file.spec_id,
    )


def _span(file: WrittenFile) -> RowSpan:
    partitions = [part.partition for part in file.slices if part.row_groups]
    last_offset = max(part.end_offset for part in file.slices if part.row_groups) - 1
    return RowSpan(first_partition=min(partitions), last_partition=max(partitions), last_offset=last_offset)


def _info(table: TopicTable, found: MemoryTable) -> TableInfo:
    root = f"{TABLES_PREFIX}{topic_uuid(table.topic_id)}"
    return TableInfo(
        identifier=("topics", table.topic_name),
        uuid=topic_uuid(table.topic_id),
        location=f"memory://{root}",
        data_prefix=f"{root}/data/",
        format=found.format,
        head=found.head,
        dead_letters=None if table.schema is None else _letter_format(table.topic_id),
    )


def _typed(format_: TableFormat, table: TopicTable) -> TableFormat:
    """Give a table the typed columns that its topic's schema asks for."""
    if table.schema is None:
        return format_
    try:
        data = evolved(format_.data, ready_schema(table.schema).struct)
    except SchemaConflict as error:
        raise Invalid(f"the schema of {table.topic_name} does not fit its table: {error}") from error
    ids = dict(format_.field_ids)
    for name, _ in walk(data):
        ids.setdefault(name, len(ids) + 1)
    return msgspec.structs.replace(format_, data=data, field_ids=ids)


def _letter_format(topic_id: TopicId) -> DeadLetterFormat:
    return DeadLetterFormat(
        field_ids={name: number for number, name in enumerate(LETTER_SCHEMA.names, 1)},
        spec_id=0,
        data_prefix=f"{dead_letter_prefix(topic_id)}data/",
    )
