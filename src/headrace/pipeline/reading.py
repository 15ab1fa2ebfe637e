"""Read the log as a proof reads it: every byte is checked against what the index says of it, and decoded.

The rows of a table entry come row group by row group, the batches of a WAL entry one by one; no more is held.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import Corrupt
from headrace.index.objects import wal_object_key
from headrace.index.values import IndexEntry
from headrace.model.extents import RowGroup, TableFile, WalExtent
from headrace.model.ids import DomainId
from headrace.objects.port import ByteRange, ObjectStore, object_key
from headrace.records.arrow import SCHEMA, to_arrow
from headrace.records.batch import BatchView
from headrace.records.columns import ColumnBuilder
from headrace.runtime.executor import Executor
from headrace.tables.parquet_reading import Footer, parse_footer, read_row_group
from headrace.wal.chunks import iter_chunk

MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRows:
    """The records of one row group: all of them, whatever entry asked, as `records.arrow.SCHEMA` has them."""

    group: RowGroup
    records: Any

    def between(self, start_offset: int, end_offset: int) -> Any:
        """Return the records of an offset range."""
        offsets = self.records.column("offset")
        inside = pc.and_(pc.greater_equal(offsets, start_offset), pc.less(offsets, end_offset))
        return self.records.filter(inside)


class CheckedReading:
    """Reads entries. It remembers one footer and one row group: neighbours ask for the same."""

    def __init__(self, *, objects: ObjectStore, domain: DomainId, executor: Executor, max_open_bytes: int) -> None:
        self._objects = objects
        self._domain = domain
        self._executor = executor
        self._max_open_bytes = max_open_bytes
        self._footer: tuple[str, Footer] | None = None
        self._group: tuple[str, GroupRows] | None = None
        self.read_bytes = 0

    async def group(self, file: TableFile, group: RowGroup) -> GroupRows:
        """Return a row group's records.

        Raises `Corrupt` if its bytes or the footer's are not those that were written, `Missing` if the file is gone.
        """
        if self._group is not None and self._group[0] == file.path and self._group[1].group == group:
            return self._group[1]
        footer = await self._footer_of(file)
        wanted = ByteRange(start_byte=group.start_byte, size_bytes=group.size_bytes)
        (data,) = await self._objects.get_ranges(object_key(file.path), [wanted])
        self.read_bytes += group.size_bytes

        def read() -> Any:
            return to_arrow(read_row_group(file, group, footer, data, start_offset=0, end_offset=MAX_OFFSET))

        rows = GroupRows(group=group, records=await self._executor.run(read))
        self._group = (file.path, rows)
        return rows

    async def _footer_of(self, file: TableFile) -> Footer:
        if self._footer is not None and self._footer[0] == file.path:
            return self._footer[1]
        size_bytes = (await self._objects.head(object_key(file.path))).size_bytes
        if size_bytes != file.size_bytes:
            raise Corrupt(f"file {file.path} has {size_bytes} bytes, the index says {file.size_bytes}")
        wanted = ByteRange(start_byte=file.size_bytes - file.footer_bytes, size_bytes=file.footer_bytes)
        (data,) = await self._objects.get_ranges(object_key(file.path), [wanted])
        self.read_bytes += file.footer_bytes
        footer = parse_footer(file, data)
        self._footer = (file.path, footer)
        return footer

    async def batches(self, entry: IndexEntry) -> AsyncIterator[BatchView]:
        """Go through the batches of a WAL entry, with their offsets. Raises `Corrupt` or `Missing`."""
        extent = entry.extent
        assert isinstance(extent, WalExtent), "only WAL entries have batches"
        key = wal_object_key(self._domain, extent.object_id)
        wanted = ByteRange(start_byte=extent.start_byte, size_bytes=extent.size_bytes)
        (data,) = await self._objects.get_ranges(key, [wanted])
        self.read_bytes += extent.size_bytes
        next_offset = entry.start_offset
        for batch in iter_chunk(data, source=key, start_byte=extent.start_byte):
            batch.base_offset = next_offset
            next_offset += batch.last_offset_delta + 1
            yield batch
        if next_offset != entry.end_offset:
            raise Corrupt(
                f"object {key} holds the offsets {entry.start_offset} to {next_offset} at byte {extent.start_byte}, "
                f"the index says up to {entry.end_offset}"
            )

    async def records(self, batch: BatchView) -> Any:
        """Return a batch's records as `records.arrow.SCHEMA` has them. Raises `InvalidBatch` if it does not open."""
        return await self._executor.run(partial(_opened, batch, self._max_open_bytes))


def _opened(batch: BatchView, max_open_bytes: int) -> Any:
    builder = ColumnBuilder(max_open_bytes=max_open_bytes)
    builder.append(batch)
    return to_arrow(builder.columns())


def are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two runs of record batches hold the same records, byte for byte, however they are cut."""
    one, other = (pa.Table.from_batches(list(batches), schema=SCHEMA).combine_chunks() for batches in (some, others))
    return bool(one.equals(other))
