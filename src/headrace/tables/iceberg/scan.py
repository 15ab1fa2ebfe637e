"""What a loaded table shows, through PyIceberg: the same refs, files and rows that any other engine sees.

Only the columns that place a row are read for a proof, so that a file of 256 MB costs some megabytes of memory.
"""

import datetime
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, In, Or, Reference
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform

from headrace.errors import Corrupt, HeadraceError, Missing, Unsupported
from headrace.runtime.executor import Executor
from headrace.runtime.text import one_line
from headrace.tables.arrow_runs import place_runs
from headrace.tables.columns import APPEND_TIME, KEY, OFFSET, PARTITION, VALUE
from headrace.tables.format import DAY_MS, HOUR_MS
from headrace.tables.iceberg.commit import branch_head
from headrace.tables.iceberg.failures import asking
from headrace.tables.iceberg.locations import ObjectsRoot
from headrace.tables.port import BranchHead
from headrace.tables.scanning import ColumnInfo, NamedFile, RefInfo, ScannedRows, TableDescription

T = TypeVar("T")

MAX_REASON_CHARS = 300
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PLACE = (PARTITION, OFFSET, APPEND_TIME)
_KEYED = (PARTITION, OFFSET, KEY, VALUE)


class IcebergLook:
    """`TableLook` on a table that PyIceberg has loaded. Nothing is loaded again: the refs stay what they were."""

    def __init__(self, table: Table, *, root: ObjectsRoot, executor: Executor) -> None:
        self._table = table
        self._root = root
        self._executor = executor
        self.description = describe(table)

    @property
    def head(self) -> BranchHead | None:
        return branch_head(self._table)

    async def files(self, ref: str) -> Sequence[NamedFile]:
        return await self._run("listing files", lambda: self._files(ref))

    async def rows(self, ref: str, *, without: Container[str] = ()) -> AsyncIterator[ScannedRows]:
        for task in await self._run("listing files", lambda: self._tasks(ref)):
            if self._key(task.file.file_path) in without:
                continue
            batches = await self._run("reading rows", partial(self._place_rows, task))
            for scanned in batches:
                yield scanned

    async def keyed_rows(self, ref: str, *, without: Container[str] = ()) -> AsyncIterator[Any]:
        for task in await self._run("listing files", lambda: self._tasks(ref)):
            if self._key(task.file.file_path) in without:
                continue
            batches = iter(self._batches(task, _KEYED))
            while (batch := await self._run("reading rows", partial(next, batches, None))) is not None:
                yield batch

    async def newest(self, ref: str, *, count: int, partition: int | None = None) -> Sequence[Mapping[str, object]]:
        return await self._run("reading rows", lambda: self._newest(ref, count, partition))

    async def _run(self, what: str, work: Callable[[], T]) -> T:
        def run() -> T:
            with asking(what):
                return work()

        return await self._executor.run(run)

    def _files(self, ref: str) -> list[NamedFile]:
        snapshot = self._table.snapshot_by_name(ref)
        if snapshot is None:
            return []
        deleted_in = {task.file.file_path for task in self._tasks(ref) if task.delete_files}
        return [
            NamedFile(
                key=self._key(entry.data_file.file_path),
                size_bytes=entry.data_file.file_size_in_bytes,
                row_count=entry.data_file.record_count,
                has_deletes=entry.data_file.file_path in deleted_in,
            )
            for manifest in snapshot.manifests(self._table.io)
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(io=self._table.io, discard_deleted=True)
        ]

    def _tasks(self, ref: str) -> list[FileScanTask]:
        snapshot = self._table.snapshot_by_name(ref)
        if snapshot is None:
            return []
        try:
            return list(self._table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
        except ValueError as error:  # PyIceberg reads positional deletes; equality deletes it refuses.
            raise Unsupported(
                f"the rows of {'.'.join(self._table.name())} at {ref} cannot be read here: {_reason(error)}"
            ) from error

    def _place_rows(self, task: FileScanTask) -> list[ScannedRows]:
        """Read where a file's rows stand in the log."""
        found = []
        for batch in self._batches(task, _PLACE):
            runs, unplaced = place_runs(batch.column(PARTITION), batch.column(OFFSET))
            found.append(
                ScannedRows(
                    key=self._key(task.file.file_path),
                    row_count=batch.num_rows,
                    runs=runs,
                    unplaced_count=unplaced,
                    astray_count=self._astray(task.file, batch),
                )
            )
        return found

    def _batches(self, task: FileScanTask, columns: tuple[str, ...]) -> Iterator[Any]:
        where = self._key(task.file.file_path)
        try:
            projected = self._table.schema().select(*columns)
            scan = ArrowScan(self._table.metadata, self._table.io, projected, AlwaysTrue())
            yield from scan.to_record_batches([task])
        except HeadraceError:
            raise
        except FileNotFoundError as error:
            raise Missing(f"the data file {where} is not there") from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Corrupt(f"the data file {where} cannot be read: {_reason(error)}") from error

    def _astray(self, file: DataFile, batch: Any) -> int:
        """Count the rows that are not what the file's partition value says; a query with a filter misses those."""
        spec = self._table.specs().get(file.spec_id)
        astray = pa.scalar(False)
        for position, field in enumerate(spec.fields if spec is not None else ()):
            name = self._table.schema().find_column_name(field.source_id)
            value = file.partition[position]
            if name == PARTITION and isinstance(field.transform, IdentityTransform):
                astray = pc.or_(astray, pc.not_equal(batch.column(PARTITION), value))
            elif name == APPEND_TIME and isinstance(field.transform, DayTransform | HourTransform):
                size_us = 1000 * (DAY_MS if isinstance(field.transform, DayTransform) else HOUR_MS)
                times = batch.column(APPEND_TIME).cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
                inside = pc.and_(pc.greater_equal(times, value * size_us), pc.less(times, (value + 1) * size_us))
                astray = pc.or_(astray, pc.invert(inside))
        return 0 if isinstance(astray, pa.Scalar) else int(pc.sum(pc.fill_null(astray, True)).as_py() or 0)

    def _newest(self, ref: str, count: int, partition: int | None) -> list[Mapping[str, object]]:
        """Find the places of the newest rows in the files that can hold them, then read those rows alone."""
        newest: Any = None
        for task, upper in self._by_newest(ref):
            if newest is not None and len(newest) == count and upper < newest.column(APPEND_TIME)[-1].value:
                break
            for batch in self._batches(task, _PLACE):
                rows = pa.Table.from_batches([batch])
                if partition is not None:
                    rows = rows.filter(pc.equal(rows.column(PARTITION), partition))
                rows = rows if newest is None else pa.concat_tables([newest, rows], promote_options="permissive")
                newest = rows.sort_by([(APPEND_TIME, "descending"), (OFFSET, "descending")]).slice(0, count)
        if newest is None or not len(newest):
            return []
        snapshot = self._table.snapshot_by_name(ref)
        assert snapshot is not None, "a ref that has rows has a snapshot"
        found = self._table.scan(snapshot_id=snapshot.snapshot_id, row_filter=_these(newest)).to_arrow()
        ordered = found.sort_by([(APPEND_TIME, "descending"), (OFFSET, "descending")]).slice(0, count)
        return rows_as_values(ordered)

    def _by_newest(self, ref: str) -> list[tuple[FileScanTask, int]]:
        """Return the files with the latest append time in each, in microseconds; latest first, unknown before."""
        field_id = self._table.schema().find_field(APPEND_TIME).field_id
        uppers = []
        for task in self._tasks(ref):
            raw = (task.file.upper_bounds or {}).get(field_id)
            uppers.append((task, 2**63 - 1 if raw is None else int.from_bytes(raw, "little", signed=True)))
        return sorted(uppers, key=lambda pair: pair[1], reverse=True)

    def _key(self, location: str) -> str:
        return self._root.key_of(location) or location


def rows_as_values(table: Any) -> list[Mapping[str, object]]:
    """Return Arrow rows as Python values; a time beyond Python's years becomes text."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            micros = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
            columns[name] = [None if value is None else _time(value) for value in micros]
        else:
            columns[name] = column.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _time(micros: int) -> datetime.datetime | str:
    try:
        return _EPOCH + datetime.timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros} µs since 1970"


def describe(table: Table) -> TableDescription:
    """Return a loaded table in plain words."""
    schema = table.schema()
    return TableDescription(
        identifier=table.name(),
        uuid=str(table.metadata.table_uuid),
        location=table.location(),
        metadata_location=table.metadata_location,
        partition_spec=[
            f"{field.transform}({schema.find_column_name(field.source_id)})" for field in table.spec().fields
        ],
        columns=[
            ColumnInfo(
                field_id=field.field_id, name=field.name, type=str(field.field_type), is_required=field.required
            )
            for field in schema.fields
        ],
        refs=[_ref(table, name) for name in sorted(table.metadata.refs)],
        snapshot_count=len(table.metadata.snapshots),
        properties=dict(table.properties),
    )


def _ref(table: Table, name: str) -> RefInfo:
    ref = table.metadata.refs[name]
    snapshot = table.metadata.snapshot_by_id(ref.snapshot_id)
    summary = None if snapshot is None else snapshot.summary

    def total(what: str) -> int | None:
        text = None if summary is None else summary[what]
        return int(text) if text is not None and text.isdigit() else None

    return RefInfo(
        name=name,
        kind=str(ref.snapshot_ref_type.value),
        snapshot_id=ref.snapshot_id,
        committed_at_ms=0 if snapshot is None else snapshot.timestamp_ms,
        operation="" if summary is None else str(summary.operation.value),
        row_count=total("total-records"),
        file_count=total("total-data-files"),
        size_bytes=total("total-files-size"),
    )


def _these(rows: Any) -> BooleanExpression:
    """Return the filter that finds rows by their places."""
    wanted: BooleanExpression | None = None
    for partition in pc.unique(rows.column(PARTITION)).to_pylist():
        own = rows.filter(pc.equal(rows.column(PARTITION), partition)).column(OFFSET).to_pylist()
        here = And(EqualTo(term=Reference(PARTITION), value=partition), In(term=Reference(OFFSET), values=own))
        wanted = here if wanted is None else Or(wanted, here)
    assert wanted is not None, "there are rows"
    return wanted


def _reason(error: Exception) -> str:
    return one_line(str(error), max_chars=MAX_REASON_CHARS)
