"""The catalog port: the table of one topic, and how a run's files become part of it.

Must stay true, for every catalog:
- A table belongs to a topic's UUID. One of that name which is not ours is never written.
- `append` adds files to `main` and `headrace_log` in one Iceberg commit, or not at all; only if the branch's vector
  of end offsets is the one that the run was planned from. So of two runs over the same offsets one is refused,
  however late it comes (`decide_append`).
- `OutcomeUnknown` means that the commit may have happened: ask `head` before anything else, and delete no file.
- Nothing here retries by itself.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.errors import HeadraceError, Retryable
from headrace.model.topics import TopicId
from headrace.tables.files import WrittenFile
from headrace.tables.format import Partitioning, TableFormat

LOG_BRANCH = "headrace_log"
"""The branch whose head names exactly the files that the offset index names. It is never expired."""


class ForeignTable(HeadraceError):
    """A table of the topic's name is there and is not ours, or ours was changed so that we cannot write it."""


class TableStale(Retryable):
    """The table went on since the run was planned: nothing was committed, plan again from its vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTable:
    """Which table is wanted: of which topic, and how it is laid out."""

    topic_id: TopicId
    topic_name: str
    partitioning: Partitioning


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchHead:
    """What the head of `headrace_log` says of itself; `ends` is the vector: partition → end offset."""

    snapshot_id: int
    saga_id: str
    epoch: int
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """A table as it was loaded. `location` is its URI; the keys of its data files begin with `data_prefix`."""

    identifier: tuple[str, ...]
    uuid: str
    location: str
    data_prefix: str
    format: TableFormat
    head: BranchHead | None


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


class Verdict(enum.Enum):
    """What the branch head says to an append."""

    APPEND = "append"
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


class TableCatalog(Protocol):
    """The tables of all topics. Every call may take seconds and raises `Retryable` while the catalog is away."""

    async def ensure(self, table: TopicTable) -> TableInfo:
        """Return the topic's table, freshly loaded; create it if there is none, rename one of an earlier topic first.

        Evolves the partition spec where the topic's setting has changed. Raises `ForeignTable`.
        """
        ...

    async def find(self, table: TopicTable) -> TableInfo | None:
        """Return the topic's table, freshly loaded, or `None`; creates nothing. Raises `ForeignTable`."""
        ...

    async def append(self, append: TableAppend, *, now_ms: int, expiry: ExpiryRule) -> Appended:
        """Add the files, expire snapshots. Raises `TableStale`, `ForeignTable`, `Retryable`, `OutcomeUnknown`.

        A run that is in the table already counts as done (`was_there`). `freed` are object keys (manifests, manifest
        lists) that no snapshot names any more; a failure to expire is not a failure to append.
        """
        ...

    async def drop(self, table: TopicTable) -> bool:
        """Take the topic's own table out of the catalog, files untouched; say whether it was there."""
        ...

    async def data_files(self, table: TopicTable, *, ref: str) -> Sequence[str]:
        """Return the object keys of all data files that a ref's snapshot names."""
        ...

    async def close(self) -> None:
        """Free what is held open."""
        ...
