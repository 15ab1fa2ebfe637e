"""Where the bytes of a run of records lie. Tagged, so that an index entry can name either kind."""

from typing import TypeAlias

import msgspec

from headrace.model.ids import ObjectId


class WalExtent(msgspec.Struct, frozen=True, array_like=True, tag="w", gc=False):
    """A run of record batches, back to back, in a WAL object."""

    object_id: ObjectId
    start_byte: int
    size_bytes: int


class RowGroup(msgspec.Struct, frozen=True, array_like=True):
    """A row group of a Parquet file, so that a reader fetches it with one ranged read."""

    number: int
    first_offset: int
    start_byte: int
    size_bytes: int


class TableFile(msgspec.Struct, frozen=True, array_like=True):
    """A Parquet file and the row groups of it that hold one stream's rows."""

    path: str
    row_groups: tuple[RowGroup, ...]


class TableExtent(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """Rows in Parquet files. It covers its whole offset range, holes included."""

    files: tuple[TableFile, ...]


Extent: TypeAlias = WalExtent | TableExtent
