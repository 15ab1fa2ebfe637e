"""Write the rows of a topic as a Parquet file, row group by row group, and remember what readers will want to know.

    magic | row group | row group | … | footer (Thrift, its length, magic)

A row group is encoded as soon as it is handed over, and its bytes are handed back: nothing of it is kept but numbers.
So a file of any size takes the memory of one group. Compression is zstd. Dictionaries are for columns that are
nearly constant; `offset` and `sequence` are stored as differences. Statistics stand for the columns that queries
prune by; a footer that is read with every fetch has no room for others.

Must stay true: a file holds rows of one partition value of its table. Iceberg believes that without looking, and a
file with rows of two days would make queries silently wrong: so it is checked here, group by group.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct, pack
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c

from headrace.errors import Invalid
from headrace.model.extents import RowGroup
from headrace.records.columns import Columns, is_seen
from headrace.records.kernel import Part
from headrace.tables.columns import (
    APPEND_TIME,
    ATTRIBUTES,
    HEADER_KEY,
    HEADER_VALUE,
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SEQUENCE,
    TIMESTAMP,
    TIMESTAMP_TYPE,
    arrow_schema,
    leaf_names,
)
from headrace.tables.files import ColumnStats
from headrace.tables.format import TableFormat
from headrace.tables.typed.model import DATA, ELEMENT, MAP_KEY, MAP_VALUE

ROW_BYTES: Final = 60
"""What a row takes in memory besides the bytes of its key, value and headers."""

BOUND_BYTES: Final = 16
"""A bound of `key` is cut to this length: bounds lie in every manifest and are read with every query."""

MAX_STATISTICS_KEY_BYTES: Final = 64
"""A file that begins with longer keys has no statistics of `key` in its footer, where they stand uncut."""

DICTIONARY: Final = [PARTITION, TIMESTAMP_TYPE, PRODUCER_ID, PRODUCER_EPOCH, ATTRIBUTES, APPEND_TIME]
DIFFERENCES: Final = {OFFSET: "DELTA_BINARY_PACKED", SEQUENCE: "DELTA_BINARY_PACKED"}
STATISTICS: Final = [PARTITION, OFFSET, TIMESTAMP, APPEND_TIME]

FIRST_ARENA_BYTES: Final = 64 * 1024
_TAIL = Struct("<I4s")
_MAGIC: Final = b"PAR1"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedGroup:
    """A row group and the file's next bytes. They are good until the writer's next call."""

    group: RowGroup
    data: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFooter:
    """The file's last bytes, and what is known of the whole."""

    data: memoryview
    size_bytes: int
    footer_bytes: int
    footer_crc: int
    row_count: int
    columns: tuple[ColumnStats, ...]
    split_offsets: tuple[int, ...]


def cut_rows(columns: Columns, group_bytes: int) -> list[tuple[int, int]]:
    """Cut rows into groups of about `group_bytes` before compression: (first row, end row), all of similar size.

    A little more than one group's bytes stay one group; a row is never cut, however large it is.
    """
    parts = [columns.buffers[part] for part in (Part.KEY_OFFSETS, Part.VALUE_OFFSETS, Part.HEADER_OFFSETS)]
    key_ends, value_ends, header_ends = (part.cast("B").cast("i") for part in parts)
    header_key_ends = columns.buffers[Part.HEADER_KEY_OFFSETS].cast("B").cast("i")
    header_value_ends = columns.buffers[Part.HEADER_VALUE_OFFSETS].cast("B").cast("i")

    def size_up_to(row: int) -> int:
        header = header_ends[row]
        data_bytes = key_ends[row] + value_ends[row] + header_key_ends[header] + header_value_ends[header]
        return data_bytes + row * ROW_BYTES

    total_bytes = size_up_to(columns.row_count)
    group_count = max(1, round(total_bytes / group_bytes))
    cuts: list[tuple[int, int]] = []
    first = 0
    for number in range(1, group_count + 1):
        until_bytes = total_bytes * number // group_count
        end = bisect_left(range(columns.row_count + 1), until_bytes, lo=first, key=size_up_to)
        if end > first:
            cuts.append((first, end))
            first = end
    return cuts


class ParquetFileWriter:
    """One file in the making. Hand in rows, write what comes back to the file's end."""

    def __init__(
        self, table_format: TableFormat, *, bucket: int | None, partition: int | None, compression_level: int = 1
    ) -> None:
        """`bucket` and `partition` are the file's partition value, as in `WrittenFile`."""
        self._format = table_format
        self._schema = arrow_schema(table_format)
        self._bucket = bucket
        self._partition = partition
        self._compression_level = compression_level
        self._sink = ParquetSink()
        self._writer: Any = None
        self._finished: list[Any] = []
        self._groups: list[RowGroup] = []
        self._tallies = {name: _Tally() for name in table_format.field_ids}

    @property
    def row_count(self) -> int:
        """How many rows the file has so far."""
        return self._tallies[OFFSET].value_count

    def add(self, rows: Any, *, first_offset: int, max_timestamp_ms: int) -> EncodedGroup:
        """Encode rows of `columns.SCHEMA`, and of `data` where the format has it, all of one stream, as a row group.

        Raises `Invalid` if they do not belong into a file with this partition value.
        """
        assert rows.num_rows, "a row group has rows"
        self._count(rows)
        if self._writer is None:
            self._writer = self._open(rows)
        start_byte = self._sink.end_byte
        self._writer.write_table(pa.Table.from_batches([rows]), row_group_size=rows.num_rows)
        data = self._sink.take()
        group_bytes = data[len(data) - (self._sink.end_byte - start_byte) :]
        group = RowGroup(
            number=len(self._groups),
            first_offset=first_offset,
            start_byte=start_byte,
            size_bytes=len(group_bytes),
            row_count=rows.num_rows,
            max_timestamp_ms=max_timestamp_ms,
            crc=crc32c(group_bytes),
        )
        self._groups.append(group)
        return EncodedGroup(group=group, data=data)

    def finish(self) -> EncodedFooter:
        """Encode the footer. Nothing can be added afterwards."""
        assert self._writer is not None, "a file without rows is not written"
        self._writer.close()
        data = self._sink.take()
        thrift_bytes, magic = _TAIL.unpack_from(data, len(data) - _TAIL.size)
        assert magic == _MAGIC and thrift_bytes + _TAIL.size == len(data), "nothing lies behind the last row group"
        return EncodedFooter(
            data=data,
            size_bytes=self._sink.end_byte,
            footer_bytes=len(data),
            footer_crc=crc32c(data),
            row_count=self.row_count,
            columns=self._column_stats(self._finished[0]),
            split_offsets=tuple(group.start_byte for group in self._groups),
        )

    def _open(self, rows: Any) -> Any:
        longest_key_bytes = pc.max(pc.binary_length(rows.column(KEY))).as_py() or 0
        statistics = [*STATISTICS, KEY] if longest_key_bytes <= MAX_STATISTICS_KEY_BYTES else STATISTICS
        return pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            self._schema,
            compression="zstd",
            compression_level=self._compression_level,
            use_dictionary=DICTIONARY,
            column_encoding=DIFFERENCES,
            write_statistics=statistics,
            # Readers know the types from the table; Arrow's own schema would make every footer longer.
            store_schema=False,
            metadata_collector=self._finished,
        )

    def _count(self, rows: Any) -> None:
        for name in rows.schema.names:
            self._tallies[name].add(rows.num_rows, rows.column(name).null_count)
        pairs = rows.column(HEADERS).flatten()
        self._tallies[HEADER_KEY].add(len(pairs))
        self._tallies[HEADER_VALUE].add(len(pairs), pc.struct_field(pairs, 1).null_count)
        if self._format.data is not None:
            self._count_inside(DATA, rows.column(DATA))
        for name in (PARTITION, OFFSET, KEY):
            self._tallies[name].widen(rows.column(name))
        for name in (TIMESTAMP, APPEND_TIME):
            self._tallies[name].widen(rows.column(name).view(pa.int64()))
        self._check_partition_value()

    def _count_inside(self, name: str, column: Any) -> None:
        """Count what lies inside of a nested column: a field of a struct once per row, nulls of the struct included;
        elements, keys and values as many as there are."""
        inner: list[tuple[str, Any]] = []
        if pa.types.is_struct(column.type):
            names = [column.type.field(number).name for number in range(column.type.num_fields)]
            inner = [(field, pc.struct_field(column, number)) for number, field in enumerate(names)]
        elif pa.types.is_list(column.type):
            inner = [(ELEMENT, column.flatten())]
        elif pa.types.is_map(column.type):
            # A null map and an empty one have no entries, so what lies between the first and the last offset is all.
            first, count = column.offsets[0].as_py(), column.offsets[-1].as_py() - column.offsets[0].as_py()
            inner = [(MAP_KEY, column.keys.slice(first, count)), (MAP_VALUE, column.items.slice(first, count))]
        for field, array in inner:
            self._tallies[f"{name}.{field}"].add(len(array), array.null_count)
            self._count_inside(f"{name}.{field}", array)

    def _check_partition_value(self) -> None:
        bucket = self._format.partitioning.bucket
        partitions, times_us = self._tallies[PARTITION], self._tallies[APPEND_TIME]
        for time_us in (times_us.least, times_us.greatest):
            if bucket.of(time_us // 1000) != self._bucket:
                raise Invalid(
                    f"a row's append time of {time_us} us lies in the {bucket} {bucket.of(time_us // 1000)}, "
                    f"its file is one of {self._bucket}: plan the file again, one {bucket} per file"
                )
        wanted = partitions.least if self._format.partitioning.by_partition else None
        if self._partition != wanted or (wanted is not None and partitions.greatest != wanted):
            raise Invalid(
                f"rows of the partitions {partitions.least} to {partitions.greatest} do not belong into a file "
                f"of partition {self._partition}: plan the file again"
            )

    def _column_stats(self, metadata: Any) -> tuple[ColumnStats, ...]:
        names = leaf_names(self._schema)
        sizes = dict.fromkeys(names, 0)
        for number, group in enumerate(self._groups):
            found = metadata.row_group(number)
            chunks = [found.column(index) for index in range(found.num_columns)]
            stored_bytes = sum(chunk.total_compressed_size for chunk in chunks)
            assert (found.num_rows, stored_bytes) == (group.row_count, group.size_bytes), f"row group {number}"
            for name, chunk in zip(names, chunks, strict=True):
                sizes[name] += chunk.total_compressed_size
        return tuple(self._stats_of(name, size_bytes) for name, size_bytes in sizes.items())

    def _stats_of(self, name: str, size_bytes: int) -> ColumnStats:
        tally = self._tallies[name]
        lower, upper = _BOUNDS.get(name, _no_bounds)(tally.least, tally.greatest)
        return ColumnStats(
            field_id=self._format.field_ids[name],
            size_bytes=size_bytes,
            value_count=tally.value_count,
            null_count=tally.null_count,
            lower=lower,
            upper=upper,
        )


class _Tally:
    """Counts one column's values over all row groups."""

    __slots__ = ("greatest", "least", "null_count", "value_count")

    def __init__(self) -> None:
        self.value_count = 0
        self.null_count = 0
        self.least: Any = None
        self.greatest: Any = None

    def add(self, value_count: int, null_count: int = 0) -> None:
        self.value_count += value_count
        self.null_count += null_count

    def widen(self, column: Any) -> None:
        found = pc.min_max(column).as_py()
        if found["min"] is not None:
            self.least = found["min"] if self.least is None else min(self.least, found["min"])
            self.greatest = found["max"] if self.greatest is None else max(self.greatest, found["max"])


Bounds = tuple[bytes | None, bytes | None]


def _no_bounds(_least: Any, _greatest: Any) -> Bounds:
    return None, None


def _int_bounds(least: int, greatest: int) -> Bounds:
    return pack("<i", least), pack("<i", greatest)


def _long_bounds(least: int, greatest: int) -> Bounds:
    return pack("<q", least), pack("<q", greatest)


def binary_bounds(least: bytes | None, greatest: bytes | None) -> Bounds:
    """Cut bounds so that they still bound: what is cut off below makes smaller, above the last byte must grow."""
    if least is None or greatest is None:
        return None, None
    lower = least[:BOUND_BYTES]
    if len(greatest) <= BOUND_BYTES:
        return lower, greatest
    upper = greatest[:BOUND_BYTES].rstrip(b"\xff")
    return lower, upper[:-1] + bytes([upper[-1] + 1]) if upper else None


_BOUNDS: Final[dict[str, Callable[[Any, Any], Bounds]]] = {
    PARTITION: _int_bounds,
    OFFSET: _long_bounds,
    TIMESTAMP: _long_bounds,
    APPEND_TIME: _long_bounds,
    KEY: binary_bounds,
}
"""Iceberg's single-value form: integers and times little-endian, binary as it is."""


class ParquetSink:
    """A file to pyarrow. It keeps what was written since it was last asked, in memory that is used again."""

    def __init__(self) -> None:
        self.closed = False
        self.end_byte = 0
        self._arena = bytearray(FIRST_ARENA_BYTES)
        self._used_bytes = 0

    def write(self, data: bytes) -> int:
        if self._used_bytes == 0 and is_seen(self._arena):
            self._arena = bytearray(len(self._arena))
        end = self._used_bytes + len(data)
        if end > len(self._arena):
            grown = bytearray(max(end, 2 * len(self._arena)))
            grown[: self._used_bytes] = memoryview(self._arena)[: self._used_bytes]
            self._arena = grown
        self._arena[self._used_bytes : end] = data
        self._used_bytes = end
        self.end_byte += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: whoever wants the bytes takes them."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> memoryview:
        """Return the bytes that came since the last call."""
        data = memoryview(self._arena)[: self._used_bytes].toreadonly()
        self._used_bytes = 0
        return data
