"""What the suite needs besides the port: topics, runs, a person with an Iceberg library of their own, and faults."""

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

from headrace.model.topics import TopicId
from headrace.runtime.clock import Clock, SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.executor import Executor
from headrace.runtime.logs import Log
from headrace.runtime.rng import Rng
from headrace.tables.files import ColumnStats, WrittenFile
from headrace.tables.format import Partitioning
from headrace.tables.iceberg.catalog import IcebergCatalog
from headrace.tables.iceberg.connections import connector
from headrace.tables.iceberg.locations import objects_root
from headrace.tables.names import NameStyle
from headrace.tables.port import Appended, ExpiryRule, TableAppend, TableInfo, TopicTable

ROWS_PER_FILE = 10
BUCKET = 20_000
KEEP_ALL = ExpiryRule(max_snapshots=10_000, max_age_ms=10**12)


@dataclass(slots=True)
class Faults:
    """What happens around the next commits. Each is called once, in order, instead of the commit; it may call it."""

    next: list[Callable[[Callable[[], Any]], Any]] = field(default_factory=list)
    commits: int = 0


class FaultyCatalog:
    """Somebody's catalog, with faults around its commits."""

    def __init__(self, inner: Catalog, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def commit_table(self, *args: Any, **kwargs: Any) -> Any:
        self._faults.commits += 1
        if self._faults.next:
            return self._faults.next.pop(0)(lambda: self._inner.commit_table(*args, **kwargs))
        return self._inner.commit_table(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@dataclass(slots=True, kw_only=True)
class Place:
    """One catalog and one object store, and whoever works there."""

    url: str
    objects_url: str
    warehouse: str | None
    rng: Rng
    log: Log
    executor: Executor
    style: NameStyle = NameStyle.EXACT
    faults: Faults = field(default_factory=Faults)
    opened: list[IcebergCatalog] = field(default_factory=list)

    def open(self, *, url: str | None = None, objects_url: str | None = None) -> IcebergCatalog:
        """Open the catalog as a pipeline would; its commits meet `faults`."""
        where = objects_url or self.objects_url
        root = objects_root(where)
        connect = connector(
            url or self.url,
            objects_url=where,
            root=root,
            properties={},
            warehouse=self.warehouse,
            crash_points=NoCrashes(),
        )

        def connect_faulty() -> Any:
            catalog, close = connect()
            return FaultyCatalog(catalog, self.faults), close

        catalog = IcebergCatalog(
            connect=connect_faulty, root=root, style=self.style, executor=self.executor, rng=self.rng, log=self.log
        )
        self.opened.append(catalog)
        return catalog

    @contextmanager
    def person(self) -> Iterator[Catalog]:
        """Let a person work with PyIceberg on the same catalog."""
        connect = connector(
            self.url,
            objects_url=self.objects_url,
            root=objects_root(self.objects_url),
            properties={},
            warehouse=self.warehouse,
            crash_points=NoCrashes(),
        )
        catalog, close = connect()
        try:
            yield catalog
        finally:
            close()

    @contextmanager
    def loaded(self, info: TableInfo) -> Iterator[Table]:
        """Let a person load a table."""
        with self.person() as catalog:
            yield catalog.load_table(info.identifier)


def new_topic(name: str | None = None, partitioning: Partitioning | None = None) -> TopicTable:
    """Return a topic that no other test uses: the catalog of a real server is shared."""
    unique = uuid.uuid4()
    return TopicTable(
        topic_id=TopicId(unique.bytes),
        topic_name=name or f"t{unique.hex}",
        partitioning=partitioning or Partitioning(),
    )


LAST_OFFSET = 7
PARTITIONS = (0, 2)
"""Bounds of every file's rows."""


def written(info: TableInfo, name: str, *, partition: int | None = None) -> WrittenFile:
    """Return a file as a task would report it. Nobody reads it, so it need not be there."""
    offset_id, bound = info.format.field_ids["offset"], LAST_OFFSET.to_bytes(8, "little")
    partition_id = info.format.field_ids["partition"]
    first, last = ((partition or number).to_bytes(4, "little") for number in PARTITIONS)
    return WrittenFile(
        path=f"{info.data_prefix}{hashlib.md5(name.encode()).hexdigest()}/0.parquet",
        size_bytes=1000,
        footer_bytes=100,
        footer_crc=0,
        row_count=ROWS_PER_FILE,
        slices=(),
        columns=(
            ColumnStats(partition_id, 40, ROWS_PER_FILE, 0, first, last),
            ColumnStats(offset_id, 80, ROWS_PER_FILE, 0, bound, bound),
        ),
        split_offsets=(4,),
        bucket=BUCKET if info.format.partitioning.bucket != "none" else None,
        partition=partition if info.format.partitioning.by_partition else None,
        spec_id=info.format.spec_id,
    )


@dataclass(slots=True, kw_only=True)
class Runs:
    """Runs of one topic, one behind the other, each of one file."""

    catalog: IcebergCatalog
    table: TopicTable
    info: TableInfo
    ends: dict[int, int] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    clock: Clock = field(default_factory=SystemClock)

    @classmethod
    async def begin(cls, catalog: IcebergCatalog, table: TopicTable) -> "Runs":
        return cls(catalog=catalog, table=table, info=await catalog.ensure(table))

    @property
    def now_ms(self) -> int:
        """The real time: a server compares its own clock with the times of snapshots."""
        return self.clock.now_ms()

    def plan(self, saga_id: str, *, partition: int = 0, files: Sequence[WrittenFile] | None = None) -> TableAppend:
        """Plan a run behind the last one that was done."""
        before = {partition: self.ends[partition]} if partition in self.ends else {}
        return TableAppend(
            table=self.table,
            saga_id=saga_id,
            epoch=3,
            after=before,
            ends={partition: self.ends.get(partition, 0) + ROWS_PER_FILE},
            files=[written(self.info, saga_id, partition=partition)] if files is None else files,
        )

    async def do(self, append: TableAppend, *, expiry: ExpiryRule = KEEP_ALL) -> Appended:
        """Append a run, and remember it where that succeeds."""
        done = await self.catalog.append(append, now_ms=self.now_ms, expiry=expiry)
        if not done.was_there:
            self.remember(append)
        return done

    def remember(self, append: TableAppend) -> None:
        self.ends.update(append.ends)
        self.paths.extend(file.path for file in append.files if file.path)

    async def named(self) -> tuple[list[str], list[str]]:
        """Return the files that `main` and our branch name, sorted."""
        main = await self.catalog.data_files(self.table, ref="main")
        log = await self.catalog.data_files(self.table, ref="headrace_log")
        return sorted(main), sorted(log)


def foreign_file(table: Table, name: str) -> DataFile:
    """Return a data file that a person adds to a table."""
    made = DataFile.from_args(
        _table_format_version=2,
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/{name}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(BUCKET),
        record_count=5,
        file_size_in_bytes=500,
    )
    made._spec_id = 0
    return made


def append_as_a_person(table: Table, name: str) -> None:
    """Add a file to `main` with PyIceberg's own means."""
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        update.append_data_file(foreign_file(table, name))


class _DeleteManifest(ManifestWriterV2):
    """PyIceberg writes no manifests of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_rows_as_a_person(table: Table, bucket: int) -> None:
    """Put a position delete file for one day on `main`, as Spark's merge-on-read does."""
    metadata = table.metadata
    parent = metadata.snapshot_by_name("main")
    assert parent is not None
    snapshot_id = uuid.uuid4().int >> 65
    where = f"{table.location()}/metadata/person-{snapshot_id}"
    file = DataFile.from_args(
        _table_format_version=2,
        content=DataFileContent.POSITION_DELETES,
        file_path=f"{where}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(bucket),
        record_count=1,
        file_size_in_bytes=100,
    )
    output = table.io.new_output(f"{where}-m.avro")
    with _DeleteManifest(metadata.specs()[0], metadata.schema(), output, snapshot_id, "deflate") as writer:
        writer.add(ManifestEntry.from_args(snapshot_id=snapshot_id, data_file=file))
    made = writer.to_manifest_file()
    sequence_number = metadata.next_sequence_number()
    manifest_list = table.io.new_output(f"{where}-l.avro")
    with write_manifest_list(2, manifest_list, snapshot_id, parent.snapshot_id, sequence_number, "deflate") as listed:
        listed.add_manifests([*parent.manifests(table.io), made])
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": parent.snapshot_id,
            "sequence-number": sequence_number,
            "timestamp-ms": metadata.last_updated_ms,
            "manifest-list": manifest_list.location,
            "summary": Summary(operation=Operation.DELETE, **{"total-delete-files": "1"}),
            "schema-id": metadata.current_schema_id,
        }
    )
    moved = SetSnapshotRefUpdate.model_validate({"ref-name": "main", "type": "branch", "snapshot-id": snapshot_id})
    table.catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=snapshot), moved))


def summary_of(table: Table, ref: str) -> Mapping[str, Any]:
    """Return the summary of a ref's snapshot."""
    snapshot = table.metadata.snapshot_by_name(ref)
    assert snapshot is not None
    assert snapshot.summary is not None
    return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}
