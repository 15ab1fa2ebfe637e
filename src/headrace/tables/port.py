"""The catalog port: the table of one topic, and how a run's files become part of it.

Must stay true, for every catalog:
- A table belongs to a topic's UUID. One of that name which is not ours is never written.
- `append` adds files to `main` and `headrace_log` in one Iceberg commit, or not at all; only if the branch's vector
  of end offsets is the one that the run was planned from. So of two runs over the same offsets one is refused,
  however late it comes (`decide_append`).
- `rewrite` takes files out of the branch, and may put others in their place, in one Iceberg commit; only if all of
  them are in the branch (`decide_rewrite`). The vector stays. What becomes of `main` is the `MainPolicy`'s to say;
  rows that a person has deleted there never come back. One that rewrites `main` alone gives the branch a new head
  with the same files, so that it is found there, too.
- `OutcomeUnknown` means that the commit may have happened: ask `head` before anything else, and delete no file.
- Nothing here retries by itself.
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import HeadraceError, Retryable
from headrace.model.topics import TopicId
from headrace.tables.files import WrittenFile
from headrace.tables.format import DeadLetterFormat, Partitioning, TableFormat
from headrace.tables.typed.schemas import SchemaSource

LOG_BRANCH = "headrace_log"
"""The branch whose head names exactly the files that the offset index names. It is never expired."""


class ForeignTable(HeadraceError):
    """A table of the topic's name is there and is not ours, or ours was changed so that we cannot write it."""


class TableStale(Retryable):
    """The table went on since the run was planned: nothing was committed, plan again from its vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTable:
    """Which table is wanted: of which topic, how it is laid out, and of which schema its typed columns are."""

    topic_id: TopicId
    topic_name: str
    partitioning: Partitioning
    schema: SchemaSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchHead:
    """What the head of `headrace_log` says of itself; `ends` is the vector: partition → end offset."""

    snapshot_id: int
    saga_id: str
    epoch: int
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """A table as it was loaded. `location` is its URI; the keys of its data files begin with `data_prefix`.

    `dead_letters` is how its dead-letter table wants files: known from `ensure`, where the topic has a schema.
    """

    identifier: tuple[str, ...]
    uuid: str
    location: str
    data_prefix: str
    format: TableFormat
    head: BranchHead | None
    dead_letters: DeadLetterFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAppend:
    """One run's commit. `after` is the vector it was planned from (only partitions of this run; absent: the first
    run of that partition), `ends` what the vector is for these partitions afterwards."""

    table: TopicTable
    saga_id: str
    epoch: int
    after: Mapping[int, int]
    ends: Mapping[int, int]
    files: Sequence[WrittenFile]


class RewriteOperation(enum.StrEnum):
    """What a rewrite's snapshots say of themselves, in Iceberg's words."""

    REPLACE = "replace"
    """The same rows in other files: stream readers of the table pass over it."""
    OVERWRITE = "overwrite"
    """Other files with other rows."""
    DELETE = "delete"
    """Files only go."""


class MainPolicy(enum.IntEnum):
    """What becomes of `main` in a rewrite of the branch. It lies in sagas' records: numbers stay."""

    NEVER = 0
    """It stays as it is."""
    WHERE_UNTOUCHED = 1
    """It takes part if all inputs are still in it and no delete file applies to any of them."""
    ALONG = 2
    """Files that only go, go from it, too, as far as it has them; others take part as where untouched."""
    ALONE = 3
    """It alone is rewritten: all inputs are in it and not in the branch, and no delete file applies to any of them,
    unless they only go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRewrite:
    """One commit that takes `inputs` (object keys) out of the branch and puts `files` in; or, with
    `MainPolicy.ALONE`, out of `main` and into it."""

    table: TopicTable
    saga_id: str
    epoch: int
    inputs: Sequence[str]
    files: Sequence[WrittenFile]
    operation: RewriteOperation
    main: MainPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """What a rewrite left behind. `main_moved` is `None` where the rewrite was there already: nobody knows."""

    head: BranchHead
    main_moved: bool | None = None
    was_there: bool = False
    freed: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """A data file of a ref, with its partition value as in `WrittenFile`. Later commits have larger numbers.

    `is_touched`: a delete file may take rows from it. `span` is known where it was asked for.
    """

    path: str
    size_bytes: int
    row_count: int
    bucket: int | None
    partition: int | None
    spec_id: int
    sequence_number: int = 0
    is_touched: bool = False
    span: "RowSpan | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpan:
    """Bounds of a file's rows: their topic partitions lie between these two, and no offset is larger."""

    first_partition: int
    last_partition: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableListing:
    """The files of a table's branch, and how files of each of its partition specs that is ours are written.

    `held_twice_bytes` are rows that `main` holds in files of its own although the branch has them, at most. `left`
    are files of ours that `main` has and the branch has let go of.
    """

    info: TableInfo
    files: Sequence[ListedFile]
    formats: Mapping[int, TableFormat]
    held_twice_bytes: int = 0
    left: Sequence[ListedFile] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterAppend:
    """What one run adds to its topic's dead-letter table; `ends` is the run's vector."""

    table: TopicTable
    saga_id: str
    ends: Mapping[int, int]
    files: Sequence[WrittenFile]


def are_letters_there(listed: Mapping[int, int], append: DeadLetterAppend) -> bool:
    """Say whether a run's dead letters are in the table: `listed` is the vector of the last run that added any.

    Runs of a topic follow one another, each behind the ends of those before it. So one that ends no later than what
    is listed has been there, however late somebody comes to add it again.
    """
    return all(end_offset <= listed.get(partition, -1) for partition, end_offset in append.ends.items())


class Verdict(enum.Enum):
    """What the branch says to an append or a rewrite."""

    APPEND = "append"
    REWRITE = "rewrite"
    THERE_ALREADY = "there already"
    STALE = "stale"


def decide_append(head: BranchHead | None, append: TableAppend) -> Verdict:
    """Say whether a run's files belong behind what is in the table. Pure, so that every catalog decides alike."""
    ends: Mapping[int, int] = {} if head is None else head.ends
    if head is not None and head.saga_id == append.saga_id:
        return Verdict.THERE_ALREADY
    if any(ends.get(partition) != append.after.get(partition) for partition in append.ends):
        return Verdict.STALE
    return Verdict.APPEND


def decide_rewrite(
    head: BranchHead | None, rewrite: TableRewrite, *, branch: Collection[str], main: Collection[str]
) -> Verdict:
    """Say whether a rewrite's inputs are there to be taken, from what both refs name. Pure, so that every catalog
    decides alike."""
    if head is not None and head.saga_id == rewrite.saga_id:
        return Verdict.THERE_ALREADY
    if rewrite.main is MainPolicy.ALONE:
        is_there = all(path in main and path not in branch for path in rewrite.inputs)
    else:
        is_there = all(path in branch for path in rewrite.inputs)
    return Verdict.REWRITE if is_there else Verdict.STALE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryRule:
    """How many snapshots of `main` are kept, and for how long; the newest and those of other refs always are."""

    max_snapshots: int = 100
    max_age_ms: int = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """What an append or an expiry left behind: the branch head, and objects that no snapshot names any more."""

    head: BranchHead
    was_there: bool = False
    freed: Sequence[str] = field(default_factory=tuple)


class TableNames(Protocol):
    """What the snapshots of a topic's own table name, whichever ref leads to them, or none."""

    async def unnamed(self, table: TopicTable, keys: Collection[str]) -> frozenset[str] | None:
        """Return those of the keys that nothing in the table names; `None` where the topic has no table.

        What counts are data and delete files, manifests, manifest lists, statistics, the metadata file and those of
        its log, of every snapshot there is. Raises `ForeignTable`, and `Retryable` or another `HeadraceError` where
        not everything could be read: then nothing is known of any key.
        """
        ...


class TableCatalog(Protocol):
    """The tables of all topics. Every call may take seconds and raises `Retryable` while the catalog is away."""

    async def ensure(self, table: TopicTable) -> TableInfo:
        """Return the topic's table, freshly loaded; create it if there is none, rename one of an earlier topic first.

        Evolves the partition spec where the topic's setting has changed, and the column `data` where its schema has.
        Raises `ForeignTable`, and `Invalid` if the schema and the table cannot have the same column.
        """
        ...

    async def find(self, table: TopicTable) -> TableInfo | None:
        """Return the topic's table, freshly loaded, or `None`; creates nothing. Raises `ForeignTable`."""
        ...

    async def append(self, append: TableAppend, *, now_ms: int, expiry: ExpiryRule) -> Appended:
        """Add the files, expire snapshots. Raises `TableStale`, `ForeignTable`, `Retryable`, `OutcomeUnknown`.

        A run that is in the table already counts as done (`was_there`). `freed` are object keys (data files,
        manifests, manifest lists) that no snapshot names any more; a failure to expire is not a failure to append.
        """
        ...

    async def rewrite(self, rewrite: TableRewrite, *, now_ms: int, expiry: ExpiryRule) -> Rewritten:
        """Take files out of the branch, or out of `main` alone, put others in, expire snapshots; raises as `append`
        does, and `TableStale` where `main` alone is to be rewritten and somebody has touched an input there.

        `freed` holds data files as well: those that no snapshot of any ref names any more.
        """
        ...

    async def expire(self, table: TopicTable, *, now_ms: int, expiry: ExpiryRule) -> Sequence[str]:
        """Expire snapshots of a table that nobody writes to; return the object keys that no snapshot names then."""
        ...

    async def listing(self, table: TopicTable, *, with_spans: bool = False) -> TableListing | None:
        """Return the files of the branch, and what only `main` still has of ours, with the spans of these if they are
        wanted; `None` if there is no such table. Raises `ForeignTable`.
        """
        ...

    async def append_dead_letters(
        self, append: DeadLetterAppend, *, now_ms: int, expiry: ExpiryRule
    ) -> Sequence[str]:
        """Add a run's dead letters to its topic's dead-letter table once, and return what expiry has set free.

        A run whose letters are there already adds nothing. Raises `ForeignTable`, `Retryable`, `OutcomeUnknown`.
        """
        ...

    async def drop(self, table: TopicTable) -> bool:
        """Take the topic's own tables out of the catalog, files untouched; say whether its table was there."""
        ...

    async def data_files(self, table: TopicTable, *, ref: str) -> Sequence[str]:
        """Return the object keys of all data files that a ref's snapshot names."""
        ...

    async def close(self) -> None:
        """Free what is held open."""
        ...
