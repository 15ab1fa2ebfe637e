"""Files that other engines read, with what readers want to know of them."""

import io
from collections.abc import Sequence
from struct import pack
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from pyiceberg.io.pyarrow import pyarrow_to_schema

from headrace.errors import Invalid
from headrace.records.arrow import to_arrow
from headrace.records.record import Record, columns_of
from headrace.tables.columns import COLUMNS
from headrace.tables.format import DAY_MS, Bucket
from headrace.tables.parquet_writing import (
    MAX_STATISTICS_KEY_BYTES,
    EncodedFooter,
    EncodedGroup,
    ParquetFileWriter,
    binary_bounds,
    cut_rows,
)
from headrace.tables.rows import rows_of
from tests.table_kit import APPEND_MS, DAY, table_format


def records(count: int, *, first_offset: int = 0, value: bytes = b"v", key: bytes | None = None) -> list[Record]:
    return [
        Record(
            offset=first_offset + n, timestamp_ms=1_700_000_000_000 - n, key=key, value=value, headers=((b"h", None),)
        )
        for n in range(count)
    ]


def rows(found: Sequence[Record], *, partition: int = 2, append_ms: int = APPEND_MS) -> Any:
    return rows_of(to_arrow(columns_of(found)), partition=partition, append_times=[(len(found), append_ms)])


def writer(**changes: Any) -> ParquetFileWriter:
    plain: dict[str, Any] = {"table_format": table_format(), "bucket": DAY, "partition": None}
    return ParquetFileWriter(**(plain | changes))


class Written:
    """A file that was written group by group into memory."""

    def __init__(self, *groups: Any) -> None:
        self.groups: list[EncodedGroup] = []
        file = io.BytesIO()
        parquet = writer()
        for number, group in enumerate(groups):
            encoded = parquet.add(group, first_offset=100 * number, max_timestamp_ms=number)
            file.write(encoded.data)
            self.groups.append(encoded)
        self.footer: EncodedFooter = parquet.finish()
        file.write(self.footer.data)
        self.data = file.getvalue()
        self.opened = pq.ParquetFile(io.BytesIO(self.data))
        self.stats = {column.field_id: column for column in self.footer.columns}

    def stat(self, name: str) -> Any:
        return self.stats[table_format().field_ids[name]]


def test_every_group_lies_where_it_says_with_its_checksum() -> None:
    file = Written(rows(records(10)), rows(records(7, first_offset=10)))
    places = [encoded.group for encoded in file.groups]
    assert [(group.number, group.first_offset, group.max_timestamp_ms, group.row_count) for group in places] == [
        (0, 0, 0, 10),
        (1, 100, 1, 7),
    ]
    assert places[0].start_byte == 4
    assert places[1].start_byte == places[0].start_byte + places[0].size_bytes
    assert file.footer.split_offsets == tuple(group.start_byte for group in places)
    for group in places:
        assert crc32c(file.data[group.start_byte : group.start_byte + group.size_bytes]) == group.crc
        chunk = file.opened.metadata.row_group(group.number).column(0)
        assert (chunk.dictionary_page_offset or chunk.data_page_offset) == group.start_byte
    assert (file.footer.size_bytes, file.footer.row_count) == (len(file.data), 17)
    assert file.footer.footer_crc == crc32c(file.data[-file.footer.footer_bytes :])
    assert places[1].start_byte + places[1].size_bytes == len(file.data) - file.footer.footer_bytes


def test_columns_are_encoded_as_the_design_says() -> None:
    group = Written(rows(records(50, key=b"k"))).opened.metadata.row_group(0)
    chunks = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert {chunk.compression for chunk in chunks.values()} == {"ZSTD"}
    dictionary = {name for name, chunk in chunks.items() if chunk.has_dictionary_page}
    assert dictionary == {
        "partition",
        "append_time",
        "timestamp_type",
        "producer_id",
        "producer_epoch",
        "attributes",
    }
    assert {name for name, chunk in chunks.items() if "DELTA_BINARY_PACKED" in chunk.encodings} == {
        "offset",
        "sequence",
    }
    described = {name for name, chunk in chunks.items() if chunk.is_stats_set and chunk.statistics.has_min_max}
    assert described == {"partition", "offset", "timestamp", "append_time", "key"}


def test_long_keys_stay_out_of_the_footer() -> None:
    file = Written(rows(records(5, key=b"k" * (MAX_STATISTICS_KEY_BYTES + 1))))
    group = file.opened.metadata.row_group(0)
    chunks = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert not (chunks["key"].is_stats_set and chunks["key"].statistics.has_min_max)
    assert file.stat("key").upper == b"k" * 15 + b"l"


def test_statistics_are_those_that_iceberg_wants() -> None:
    file = Written(
        rows(records(10, key=b"b")), rows([*records(5, first_offset=10), *records(2, first_offset=15, key=b"a")])
    )
    ids = set(table_format().field_ids.values())
    leaves = {column.name for column in COLUMNS} - {"headers", "headers.element"}
    assert set(file.stats) == {table_format().field_ids[name] for name in leaves} < ids
    offset = file.stat("offset")
    assert (offset.value_count, offset.null_count, offset.lower, offset.upper) == (
        17,
        0,
        pack("<q", 0),
        pack("<q", 16),
    )
    assert (file.stat("partition").lower, file.stat("partition").upper) == (pack("<i", 2), pack("<i", 2))
    time = file.stat("timestamp")
    assert (time.lower, time.upper) == (pack("<q", 1_699_999_999_991_000), pack("<q", 1_700_000_000_000_000))
    assert file.stat("append_time").lower == pack("<q", APPEND_MS * 1000)
    key = file.stat("key")
    assert (key.value_count, key.null_count, key.lower, key.upper) == (17, 5, b"a", b"b")
    value = file.stat("value")
    assert (value.null_count, value.lower, value.upper) == (0, None, None)
    assert file.stat("raw").null_count == 17
    header_value = file.stat("headers.element.value")
    assert (header_value.value_count, header_value.null_count) == (17, 17)
    assert sum(column.size_bytes for column in file.footer.columns) == sum(g.group.size_bytes for g in file.groups)


@pytest.mark.parametrize(
    ("least", "greatest", "bounds"),
    [
        (None, None, (None, None)),
        (b"", b"", (b"", b"")),
        (b"a" * 16, b"b" * 16, (b"a" * 16, b"b" * 16)),
        (b"a" * 17, b"b" * 17, (b"a" * 16, b"b" * 15 + b"c")),
        (b"a", b"b" + b"\xff" * 20, (b"a", b"c")),
        (b"a", b"\xff" * 17, (b"a", None)),
        (b"a", b"\xff" * 16, (b"a", b"\xff" * 16)),
    ],
)
def test_bounds_of_keys_are_short_and_still_bound(least: Any, greatest: Any, bounds: Any) -> None:
    assert binary_bounds(least, greatest) == bounds


def test_iceberg_finds_its_field_ids_in_the_file() -> None:
    schema = pyarrow_to_schema(Written(rows(records(3))).opened.schema_arrow)
    found = {schema.find_column_name(number): number for number in table_format().field_ids.values()}
    assert found == table_format().field_ids
    assert str(schema.find_type("append_time")) == "timestamptz"
    assert schema.find_field("offset").required and not schema.find_field("raw").required


def test_duckdb_reads_the_plain_file(tmp_path: Any) -> None:
    extreme = [
        Record(offset=10, timestamp_ms=2**63 - 1, headers=((b"\xff", b"x"),)),
        Record(offset=11, timestamp_ms=-(2**63), value=b"\x00\xff"),
    ]
    path = tmp_path / "file.parquet"
    path.write_bytes(Written(rows(records(10)), rows(extreme)).data)
    with duckdb.connect() as connection:
        query = (
            'select count(*), max("offset"), min(epoch_us(timestamp)), max(epoch_us(timestamp)) from read_parquet(?)'
        )
        found = connection.execute(query, [str(path)]).fetchone()
        assert found == (12, 11, -9_223_372_022_400_000_000, 9_223_372_036_854_775_000)
        texts = connection.execute(
            'select headers[1].key, value from read_parquet(?) where "offset" >= 10 order by "offset"',
            [str(path)],
        ).fetchall()
    assert texts[0] == ("�", None)
    assert texts[1] == (None, b"\x00\xff")


def test_rows_of_another_day_are_refused() -> None:
    parquet = writer()
    parquet.add(rows(records(1)), first_offset=0, max_timestamp_ms=0)
    with pytest.raises(Invalid, match="one day per file"):
        parquet.add(rows(records(1), append_ms=APPEND_MS + DAY_MS), first_offset=1, max_timestamp_ms=0)


def test_rows_of_another_partition_are_refused_where_the_table_keeps_them_apart() -> None:
    parquet = writer(table_format=table_format(bucket=Bucket.NONE, by_partition=True), bucket=None, partition=2)
    parquet.add(rows(records(1)), first_offset=0, max_timestamp_ms=0)
    with pytest.raises(Invalid, match="file of partition 2"):
        parquet.add(rows(records(1), partition=3), first_offset=1, max_timestamp_ms=0)
    with pytest.raises(Invalid, match="file of partition 3"):
        writer(partition=3).add(rows(records(1)), first_offset=0, max_timestamp_ms=0)


def test_a_file_of_several_partitions_is_fine_where_the_table_does_not_ask() -> None:
    parquet = writer()
    for partition in (4, 1):
        parquet.add(rows(records(1), partition=partition), first_offset=0, max_timestamp_ms=0)
    stats = {column.field_id: column for column in parquet.finish().columns}
    column = stats[table_format().field_ids["partition"]]
    assert (column.lower, column.upper) == (pack("<i", 1), pack("<i", 4))


def test_groups_are_cut_by_bytes_into_similar_parts() -> None:
    columns = columns_of(records(1000, value=bytes(1000)))
    cuts = cut_rows(columns, 100_000)
    assert [first for first, _ in cuts] == [0, *(end for _, end in cuts[:-1])]
    assert cuts[-1][1] == 1000
    sizes = [end - first for first, end in cuts]
    assert len(cuts) == 11 and max(sizes) - min(sizes) <= 1


def test_a_little_more_than_a_group_is_one_group() -> None:
    assert cut_rows(columns_of(records(100, value=bytes(1000))), 80_000) == [(0, 100)]


def test_one_huge_row_is_a_group_of_its_own() -> None:
    found = [*records(2), *records(1, first_offset=2, value=bytes(100_000)), *records(2, first_offset=3)]
    cuts = cut_rows(columns_of(found), 10_000)
    assert cuts[-1][1] == 5
    assert [row for first, end in cuts for row in range(first, end)] == [0, 1, 2, 3, 4]
    assert cut_rows(columns_of(found[2:3]), 10) == [(0, 1)]


def test_bytes_that_somebody_holds_are_not_written_over() -> None:
    parquet = writer()
    first = parquet.add(rows(records(10, value=b"first")), first_offset=0, max_timestamp_ms=0)
    kept = bytes(first.data)
    second = parquet.add(rows(records(10, first_offset=10, value=b"other")), first_offset=10, max_timestamp_ms=0)
    assert first.data == kept != second.data
