"""Read one row group of a topic's Parquet file from exactly two byte ranges: the footer and the group itself.

1. `parse_footer` checks and opens the file's tail. Its result is good for every group of the file: keep it.
2. `read_row_group` checks the group's bytes, decodes them and returns the records as columns; `read_rows` returns all
   there is of the rows.

Must stay true: pyarrow never sees a byte whose checksum was not right. A flipped bit in a footer may end the process
inside of it; a flipped bit in a page may come out as another record.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from headrace.errors import Corrupt
from headrace.model.extents import RowGroup, TableFile
from headrace.records.columns import Columns
from headrace.records.problems import InvalidBatch
from headrace.tables.columns import TIMESTAMP
from headrace.tables.rows import RECORD_COLUMNS, columns_of

Buffer = bytes | bytearray | memoryview

_COLUMNS: Final = list(RECORD_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """A file's footer, checked and opened.

    `size_bytes` is what it takes in the file; opened it takes several times that.
    """

    metadata: Any
    size_bytes: int


def parse_footer(file: TableFile, data: Buffer) -> Footer:
    """Open the last `file.footer_bytes` bytes of a file; raise `Corrupt` if they are not those that were written."""
    if len(data) != file.footer_bytes:
        raise Corrupt(f"file {file.path}: {len(data)} bytes of footer came instead of {file.footer_bytes}")
    found_crc = crc32c(data)
    if found_crc != file.footer_crc:
        raise Corrupt(
            f"file {file.path}: its footer has CRC-32C {found_crc:08x}, the index says {file.footer_crc:08x}"
        )
    try:
        # To pyarrow the footer alone is a file; what it says of positions holds for the real one.
        metadata = pq.read_metadata(pa.BufferReader(pa.py_buffer(data)))
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"file {file.path}: its footer cannot be read: {error}") from error
    return Footer(metadata=metadata, size_bytes=file.footer_bytes)


def read_rows(
    file: TableFile, group: RowGroup, footer: Footer, data: Buffer, *, columns: Sequence[str] | None = None
) -> Any:
    """Return a group's rows as a record batch, with all columns that the file has, or with those that are named.

    `data` is the group's byte range. Raises `Corrupt` if it is not what was written.
    """
    _check(file, group, footer, data)
    source = pa.PythonFile(_Window(data, group.start_byte, file.size_bytes), mode="r")
    wanted = None if columns is None else list(columns)
    try:
        with pq.ParquetFile(source, metadata=footer.metadata, pre_buffer=False) as opened:
            return _one_batch(opened.read_row_group(group.number, columns=wanted, use_threads=False))
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"file {file.path}, row group {group.number}: it cannot be read: {error}") from error


def read_row_group(
    file: TableFile, group: RowGroup, footer: Footer, data: Buffer, *, start_offset: int, end_offset: int
) -> Columns:
    """Return a group's records from `start_offset` up to `end_offset`; the columns cover that range, holes included.

    `data` is the group's byte range. Raises `Corrupt` if it is not what was written. Takes some milliseconds of CPU:
    call it on a thread. The columns may keep more memory alive than they show.
    """
    rows = read_rows(file, group, footer, data, columns=_COLUMNS)
    try:
        return columns_of(rows, start_offset=start_offset, end_offset=end_offset)
    except (pa.ArrowException, InvalidBatch) as error:
        raise Corrupt(f"file {file.path}, row group {group.number}: it cannot be read: {error}") from error


def times_of(group: RowGroup, footer: Footer) -> tuple[int, int] | None:
    """Return the least and the greatest time of a group's rows, in microseconds; `None` if the file does not say."""
    if group.number >= footer.metadata.num_row_groups:
        return None
    metadata = footer.metadata.row_group(group.number)
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        if column.path_in_schema == TIMESTAMP:
            if not column.is_stats_set or not column.statistics.has_min_max:
                return None
            return column.statistics.min_raw, column.statistics.max_raw
    return None


def _check(file: TableFile, group: RowGroup, footer: Footer, data: Buffer) -> None:
    where = f"file {file.path}, row group {group.number} at byte {group.start_byte}"
    if len(data) != group.size_bytes:
        raise Corrupt(f"{where}: {len(data)} bytes came instead of {group.size_bytes}")
    found_crc = crc32c(data)
    if found_crc != group.crc:
        raise Corrupt(f"{where}: it has CRC-32C {found_crc:08x}, the index says {group.crc:08x}")
    if group.number >= footer.metadata.num_row_groups:
        raise Corrupt(f"{where}: the file has {footer.metadata.num_row_groups} row groups")
    found_rows = footer.metadata.row_group(group.number).num_rows
    if found_rows != group.row_count:
        raise Corrupt(f"{where}: it has {found_rows} rows, the index says {group.row_count}")


def _one_batch(table: Any) -> Any:
    """Return the table as one record batch. A row group's columns are in one piece already, unless they are huge."""
    arrays = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


class _Window(io.RawIOBase):
    """A file of which only one range of bytes is there."""

    def __init__(self, data: Buffer, start_byte: int, size_bytes: int) -> None:
        super().__init__()
        self._data = pa.py_buffer(data)
        self._start_byte = start_byte
        self._size_bytes = size_bytes
        self._at_byte = 0

    def read_buffer(self, size_bytes: int = -1) -> Any:
        """Return the next bytes without a copy; pyarrow prefers this to `read`."""
        first = self._at_byte - self._start_byte
        if first < 0 or size_bytes < 0 or first + size_bytes > self._data.size:
            raise OSError(f"{size_bytes} bytes from {self._at_byte} on lie outside of the row group")
        self._at_byte += size_bytes
        return self._data.slice(first, size_bytes)

    def read(self, size_bytes: int = -1) -> bytes:
        return bytes(self.read_buffer(size_bytes))

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at_byte, io.SEEK_END: self._size_bytes}[whence]
        self._at_byte = base + position
        return self._at_byte

    def tell(self) -> int:
        return self._at_byte

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
