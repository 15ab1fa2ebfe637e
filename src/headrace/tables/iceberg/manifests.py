"""Manifests: the lists of data files that a snapshot is made of, written so that a commit costs the same for ever.

Each commit adds one small manifest. Twenty of a size are merged into one of the next size, so an entry is rewritten a
few times in its life and a snapshot names some dozens of manifests. (One that holds everything, as PyIceberg's own
merge builds it, is read and written again every twenty commits.)

A rewrite takes files out of the manifests that name them; all others stay as they are.

Must stay true: a merge changes which manifest names a file, never which files are named, nor their sequence numbers.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from pyiceberg.io import FileIO, OutputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from headrace.errors import Invalid
from headrace.tables.files import WrittenFile
from headrace.tables.format import Bucket
from headrace.tables.iceberg.layout import FORMAT_VERSION, partitioning_of
from headrace.tables.iceberg.locations import ObjectsRoot

MERGE_COUNT = 20
"""So many manifests of one size become one of the next."""

MAX_MERGED_ENTRIES = MERGE_COUNT**3
"""A manifest of this many entries is never rewritten: reading it would take longer than a commit may."""

COMPRESSION: Final = "deflate"


def merge_groups(manifests: Sequence[ManifestFile]) -> list[list[ManifestFile]]:
    """Say which manifests are to be merged, each group into one. Those that are not in any group stay."""
    by_size: dict[tuple[int, int], list[ManifestFile]] = {}
    for manifest in manifests:
        entries = entry_count(manifest)
        if manifest.content == ManifestContent.DATA and entries is not None and entries < MAX_MERGED_ENTRIES:
            by_size.setdefault((manifest.partition_spec_id, _size_class(entries)), []).append(manifest)
    groups = [_fitting(group) for group in by_size.values() if len(group) >= MERGE_COUNT]
    # One alone would be written again by every commit, for nothing.
    return [group for group in groups if len(group) > 1]


def _size_class(entries: int) -> int:
    size = 0
    while entries >= MERGE_COUNT ** (size + 1):
        size += 1
    return size


def _fitting(group: Sequence[ManifestFile]) -> list[ManifestFile]:
    """Return as many of a group as make one manifest of bounded size, small ones first."""
    taken: list[ManifestFile] = []
    total = 0
    for manifest in sorted(group, key=lambda found: entry_count(found) or 0):
        total += entry_count(manifest) or 0
        if taken and total > MAX_MERGED_ENTRIES:
            break
        taken.append(manifest)
    return taken


def entry_count(manifest: ManifestFile) -> int | None:
    """Return how many live files a manifest names, or `None` where its writer did not count."""
    added, existing = manifest.added_files_count, manifest.existing_files_count
    return None if added is None or existing is None else added + existing


def data_file(file: WrittenFile, metadata: TableMetadata, root: ObjectsRoot) -> DataFile:
    """Return a written file as Iceberg knows it. Raises `Invalid` if its partition value does not fit its spec."""
    spec = metadata.specs()[file.spec_id]
    bounds = [column for column in file.columns if column.lower is not None or column.upper is not None]
    made = DataFile.from_args(
        _table_format_version=FORMAT_VERSION,
        content=DataFileContent.DATA,
        file_path=root.uri_of(file.path),
        file_format=FileFormat.PARQUET,
        partition=_partition_value(file, spec, metadata.schema()),
        record_count=file.row_count,
        file_size_in_bytes=file.size_bytes,
        column_sizes={column.field_id: column.size_bytes for column in file.columns},
        value_counts={column.field_id: column.value_count for column in file.columns},
        null_value_counts={column.field_id: column.null_count for column in file.columns},
        nan_value_counts={},
        lower_bounds={column.field_id: column.lower for column in bounds if column.lower is not None},
        upper_bounds={column.field_id: column.upper for column in bounds if column.upper is not None},
        key_metadata=None,
        split_offsets=list(file.split_offsets) or None,
        equality_ids=None,
        sort_order_id=None,
    )
    made._spec_id = file.spec_id  # The manifest says it for all its files; PyIceberg sets it the same way.
    return made


def _partition_value(file: WrittenFile, spec: PartitionSpec, schema: Schema) -> Record:
    partitioning = partitioning_of(spec, schema)
    if partitioning is None:
        raise Invalid(f"{file.path} was written for partition spec {spec.spec_id}, which is none of ours")
    wanted = []
    if partitioning.bucket is not Bucket.NONE:
        wanted.append(file.bucket)
    if partitioning.by_partition:
        wanted.append(file.partition)
    if None in wanted or (file.bucket is not None, file.partition is not None) != (
        partitioning.bucket is not Bucket.NONE,
        partitioning.by_partition,
    ):
        raise Invalid(
            f"{file.path} has the partition value ({file.bucket}, {file.partition}), which does not fit spec"
            f" {spec.spec_id} ({partitioning})"
        )
    # The fields of a spec that a person made may stand in the other order.
    if len(wanted) == 2 and str(spec.fields[0].transform) == "identity":
        wanted.reverse()
    return Record(*wanted)


class ManifestLibrary:
    """Reads and writes the manifests of one table for one snapshot."""

    def __init__(
        self, metadata: TableMetadata, io: FileIO, *, snapshot_id: int, new_output: Callable[[str], OutputFile]
    ) -> None:
        self._metadata = metadata
        self._io = io
        self._snapshot_id = snapshot_id
        self._new_output = new_output
        self._number = 0
        self.written: list[str] = []
        """Everything written so far, so that it can be thrown away if the commit is refused."""

    def added(self, files: Iterable[DataFile]) -> list[ManifestFile]:
        """Write the manifests of new files, one per partition spec."""
        by_spec: dict[int, list[DataFile]] = {}
        for file in files:
            by_spec.setdefault(file.spec_id, []).append(file)
        return [self._write_added(spec_id, found) for spec_id, found in by_spec.items()]

    def kept(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """Return what stands for the manifests of the snapshot before: themselves, or what they were merged into."""
        live = [manifest for manifest in manifests if manifest.has_added_files() or manifest.has_existing_files()]
        groups = merge_groups(live)
        merged = {manifest.manifest_path for group in groups for manifest in group}
        left = [manifest for manifest in live if manifest.manifest_path not in merged]
        return [*(self._write_merged(group) for group in groups), *left]

    def without(
        self, manifests: Sequence[ManifestFile], removed: Collection[str]
    ) -> tuple[list[ManifestFile], list[ManifestFile], list[DataFile]]:
        """Take data files out: return the manifests that name none of them, new ones for the others, and the files.

        A new manifest names what is left of its old one as existing, and what was taken out as deleted.
        """
        untouched: list[ManifestFile] = []
        rewritten: list[ManifestFile] = []
        gone: list[DataFile] = []
        for manifest in manifests:
            found = [] if manifest.content == ManifestContent.DELETES or not removed else self._entries(manifest)
            going = [entry for entry in found if entry.data_file.file_path in removed]
            if not going:
                untouched.append(manifest)
                continue
            gone += [entry.data_file for entry in going]
            with self._writer(manifest.partition_spec_id) as writer:
                for entry in found:
                    if entry.data_file.file_path in removed:
                        writer.delete(entry)
                    else:
                        writer.existing(entry)
            rewritten.append(writer.to_manifest_file())
        return untouched, rewritten, gone

    def _entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        return manifest.fetch_manifest_entry(io=self._io, discard_deleted=True)

    def write_list(self, manifests: list[ManifestFile], *, parent_id: int | None, sequence_number: int) -> str:
        """Write the list that a snapshot names, and return its location."""
        output = self._output("snap")
        with write_manifest_list(
            format_version=FORMAT_VERSION,
            output_file=output,
            snapshot_id=self._snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=sequence_number,
            avro_compression=COMPRESSION,
        ) as writer:
            writer.add_manifests(manifests)
        return output.location

    def _write_added(self, spec_id: int, files: Iterable[DataFile]) -> ManifestFile:
        with self._writer(spec_id) as writer:
            for file in files:
                writer.add(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return writer.to_manifest_file()

    def _write_merged(self, group: Sequence[ManifestFile]) -> ManifestFile:
        with self._writer(group[0].partition_spec_id) as writer:
            for manifest in group:
                for entry in self._entries(manifest):
                    writer.existing(entry)
        return writer.to_manifest_file()

    def _writer(self, spec_id: int) -> ManifestWriter:
        return write_manifest(
            format_version=FORMAT_VERSION,
            spec=self._metadata.specs()[spec_id],
            schema=self._metadata.schema(),
            output_file=self._output("m"),
            snapshot_id=self._snapshot_id,
            avro_compression=COMPRESSION,
        )

    def _output(self, kind: str) -> OutputFile:
        output = self._new_output(f"{kind}-{self._snapshot_id}-{self._number}.avro")
        self._number += 1
        self.written.append(output.location)
        return output
