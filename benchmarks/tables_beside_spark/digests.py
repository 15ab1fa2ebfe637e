"""What is in a table, partition by partition, so that two tables can be compared whatever wrote them.

Files are named by the Iceberg table, freshly loaded through PyIceberg, and read by DuckDB: neither side's own code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import duckdb
from pyiceberg.catalog.sql import SqlCatalog

QUERY = """
select partition, count(*), min("offset"), max("offset"), count(distinct "offset"),
       sum(octet_length(value)), sum(hash(key) % 1000000007), sum(hash(value) % 1000000007),
       sum(hash(headers::varchar) % 1000000007)
from read_parquet(?) group by partition order by partition
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """One partition's rows. The sums do not depend on their order."""

    rows: int
    first_offset: int
    last_offset: int
    offsets: int
    value_bytes: int
    key_sum: int
    value_sum: int
    header_sum: int


class RowsDiffer(Exception):
    """A table does not hold what was written. The benchmark's figures are worth nothing then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLook:
    """A table as a fresh load shows it."""

    files: int
    file_bytes: int
    partitions: Mapping[int, Digest]


def look_at(database: Path, catalog: str, identifier: tuple[str, ...]) -> TableLook:
    """Load the table from a catalog in SQLite and read all of its rows."""
    loaded = SqlCatalog(catalog, uri=f"sqlite:///{database}")
    try:
        files = [task.file for task in loaded.load_table(identifier).scan().plan_files()]
    finally:
        loaded.engine.dispose()
    paths = [unquote(urlsplit(file.file_path).path) for file in files]
    with duckdb.connect() as connection:
        connection.execute("set enable_progress_bar = false")
        found = connection.execute(QUERY, [paths]).fetchall()
    return TableLook(
        files=len(files),
        file_bytes=sum(file.file_size_in_bytes for file in files),
        partitions={int(row[0]): _digest(row) for row in found},
    )


def _digest(row: tuple[int, ...]) -> Digest:
    _, rows, first, last, offsets, value_bytes, key_sum, value_sum, header_sum = (int(cell) for cell in row)
    return Digest(
        rows=rows,
        first_offset=first,
        last_offset=last,
        offsets=offsets,
        value_bytes=value_bytes,
        key_sum=key_sum,
        value_sum=value_sum,
        header_sum=header_sum,
    )


def check(look: TableLook, written: Mapping[int, int], *, record_bytes: int, where: str) -> None:
    """Raise `RowsDiffer` unless every record that was written is there once."""
    for partition, count in written.items():
        found = look.partitions.get(partition)
        if found is None or (found.rows, found.offsets, found.first_offset, found.last_offset) != (
            count,
            count,
            0,
            count - 1,
        ):
            raise RowsDiffer(f"{where}: partition {partition} got {count} records, the table has {found}")
        if found.value_bytes != count * record_bytes:
            raise RowsDiffer(f"{where}: partition {partition} has {found.value_bytes} bytes of values")


def check_same(ours: TableLook, theirs: TableLook) -> None:
    """Raise `RowsDiffer` unless both tables hold the same rows."""
    if ours.partitions != theirs.partitions:
        raise RowsDiffer(f"the tables differ: {ours.partitions} and {theirs.partitions}")
