"""Where the bytes of a run of records lie. Tagged, so that an index entry can name either kind."""

from typing import TypeAlias

import msgspec

from headrace.model.ids import ObjectId


class WalExtent(msgspec.Struct, frozen=True, array_like=True, tag="w", gc=False):
    """A run of record batches, back to back, in a WAL object."""

    object_id: ObjectId
    start_byte: int
    size_bytes: int

    def holds(self, other: "WalExtent") -> bool:
        """Say whether another extent's bytes are all among these."""
        return (
            self.object_id == other.object_id
            and self.start_byte <= other.start_byte
            and other.start_byte + other.size_bytes <= self.start_byte + self.size_bytes
        )


class RowGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row group of a Parquet file, so that a reader fetches it with one ranged read and can trust what comes.

    It covers the offsets from `first_offset` to the next group's, or to the end of the entry that names it: holes
    included, so `first_offset` need not have a row. `crc` is the CRC-32C of its bytes. An entry that covers only a
    part of a group names it all the same; its reader leaves out the rows outside of the entry.
    """

    number: int
    first_offset: int
    start_byte: int
    size_bytes: int
    row_count: int
    max_timestamp_ms: int
    crc: int


class TableFile(msgspec.Struct, frozen=True, array_like=True):
    """A Parquet file and the row groups of it that hold one stream's rows.

    The footer's place and checksum stand here, because whoever decodes a damaged footer may not live to tell: it is
    the last `footer_bytes` of the file, from the Thrift bytes to the closing magic.
    """

    path: str
    size_bytes: int
    footer_bytes: int
    footer_crc: int
    row_groups: tuple[RowGroup, ...]


class TableExtent(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """Rows in Parquet files, in the order of their offsets. It covers its whole offset range, holes included.

    Without a file it is all hole: every record of the range was a marker, or aborted.
    """

    files: tuple[TableFile, ...]


Extent: TypeAlias = WalExtent | TableExtent
