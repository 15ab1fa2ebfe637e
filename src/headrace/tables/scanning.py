"""The port to what a table shows: its refs, its files and its rows, as any Iceberg engine would see them.

It only reads. Whoever proves something about a table looks at it once (`look`) and asks that look: the snapshots of
its refs stay what they were, however the table goes on.
"""

from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.tables.port import BranchHead, TopicTable

MAIN_REF = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefInfo:
    """A branch or a tag, and what the summary of its snapshot says; counts are `None` where it says nothing."""

    name: str
    kind: str
    snapshot_id: int
    committed_at_ms: int
    operation: str
    row_count: int | None
    file_count: int | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnInfo:
    """A column as the catalog numbered it."""

    field_id: int
    name: str
    type: str
    is_required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """A table in plain words. `snapshot_count` counts those of all refs that are not expired."""

    identifier: tuple[str, ...]
    uuid: str
    location: str
    metadata_location: str
    partition_spec: Sequence[str]
    columns: Sequence[ColumnInfo]
    refs: Sequence[RefInfo]
    snapshot_count: int
    properties: Mapping[str, str]

    def ref(self, name: str) -> RefInfo | None:
        """Return a ref by its name, or `None`."""
        return next((ref for ref in self.refs if ref.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A data file that a ref's snapshot names. `key` is its object key, or its URI where it lies elsewhere."""

    key: str
    size_bytes: int
    row_count: int
    has_deletes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedRows:
    """Some rows of one file: which offsets of which partition they are, as sorted runs, half-open.

    An offset that is there twice stands in two runs. `unplaced_count` counts rows without partition or offset;
    `astray_count` those whose append time or partition is not what the file's partition value says, so that a query
    with a filter would miss them.
    """

    key: str
    row_count: int
    runs: Mapping[int, Sequence[tuple[int, int]]]
    unplaced_count: int = 0
    astray_count: int = 0


class TableLook(Protocol):
    """A table as it was when it was loaded."""

    @property
    def description(self) -> TableDescription: ...

    @property
    def head(self) -> BranchHead | None:
        """What the head of our branch says of itself; `None` where there is no branch yet."""
        ...

    async def files(self, ref: str) -> Sequence[NamedFile]:
        """Return the data files of a ref in no order, one that is named twice twice; none if there is no such ref."""
        ...

    def rows(self, ref: str, *, without: Container[str] = ()) -> AsyncIterator[ScannedRows]:
        """Go through the rows of a ref, file by file, what was deleted left out, and what lies in files `without`.

        A file that is known to be damaged is left out: whoever decodes a damaged footer may not live to tell.

        Raises `Unsupported` where the snapshot holds what cannot be read here (equality deletes), `Corrupt` or
        `Missing` where a file is damaged or gone.
        """
        ...

    def keyed_rows(self, ref: str, *, without: Container[str] = ()) -> AsyncIterator[Any]:
        """Go through the rows of a ref as Arrow batches with partition, offset, key and value; else as `rows`."""
        ...

    async def newest(self, ref: str, *, count: int, partition: int | None = None) -> Sequence[Mapping[str, object]]:
        """Return the rows that were appended last, newest first, at most `count`; reads no more files than needed.

        With `partition`, those of one of the topic's partitions.
        """
        ...


class TableScanner(Protocol):
    """Looks at the tables of topics."""

    async def look(self, table: TopicTable) -> TableLook | None:
        """Return the topic's own table, freshly loaded, or `None`. Raises `ForeignTable`, `Retryable`."""
        ...


class DeadLetterScanner(Protocol):
    """Looks at the dead-letter tables of topics."""

    async def look_at_dead_letters(self, table: TopicTable) -> TableLook | None:
        """Return the topic's dead-letter table, freshly loaded, or `None`. Raises `Retryable`."""
        ...
