"""What is known of a Parquet file that a task has written: enough to name it in a table and in the offset index.

These travel from a task to its driver, and lie in a saga's record until the index names the files. Structs are arrays
at rest: a field is never moved or removed, a new one goes last and has a default.
"""

import re
from typing import Final

import msgspec

from headrace.model.extents import RowGroup, WalExtent
from headrace.model.ids import StreamId


class HeldBack(msgspec.Struct, frozen=True, array_like=True):
    """A batch that could not be opened. It stays in the WAL, and the index goes on naming it there."""

    start_offset: int
    end_offset: int
    extent: WalExtent
    min_timestamp_ms: int
    max_timestamp_ms: int
    reason: str


class WrittenSlice(msgspec.Struct, frozen=True, array_like=True):
    """One stream's rows in a file: the whole of `start_offset` to `end_offset`, but for what was held back.

    `row_groups` are in the order of offsets; none of them holds rows from both sides of a batch that was held back.
    """

    partition: int
    stream: StreamId
    start_offset: int
    end_offset: int
    row_count: int
    row_groups: tuple[RowGroup, ...]
    held_back: tuple[HeldBack, ...] = ()


class ColumnStats(msgspec.Struct, frozen=True, array_like=True):
    """What Iceberg keeps of one column of a file. Bounds are in its single-value form; `None` where none are kept."""

    field_id: int
    size_bytes: int
    value_count: int
    null_count: int
    lower: bytes | None = None
    upper: bytes | None = None


class WrittenFile(msgspec.Struct, frozen=True, array_like=True):
    """A Parquet file that lies in the object store, whole and durable.

    `bucket` and `partition` are its partition value in the table: days or hours since 1970 of the append time, and
    the topic's partition; each is `None` where the table's spec does not ask for it. A file without rows was not
    written: its `path` is empty and its slices say what became of the offsets. `dead_letters` is the file with copies
    of its rows whose values do not fit the topic's schema: a file of another table, without slices.
    """

    path: str
    size_bytes: int
    footer_bytes: int
    footer_crc: int
    row_count: int
    slices: tuple[WrittenSlice, ...]
    columns: tuple[ColumnStats, ...]
    split_offsets: tuple[int, ...]
    bucket: int | None
    partition: int | None
    spec_id: int
    dead_letters: "WrittenFile | None" = None


_OF_SAGA: Final = re.compile(r"[0-9a-f]{32}/[^/]+\.parquet")


def is_of_saga(path: str, data_prefix: str) -> bool:
    """Say whether a table's data file is one that a saga of ours has written: each writes below its own id."""
    return path.startswith(data_prefix) and _OF_SAGA.fullmatch(path, len(data_prefix)) is not None
