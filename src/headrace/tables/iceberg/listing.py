"""List the files of a table's branch, and those that `main` alone has kept: what a planner of rewrites must know."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from headrace.tables.columns import OFFSET, PARTITION
from headrace.tables.files import is_of_saga
from headrace.tables.format import Bucket, TableFormat
from headrace.tables.iceberg import layout
from headrace.tables.iceberg.known_files import DeleteReach, KnownFile, KnownFiles, unpartitioned_specs
from headrace.tables.iceberg.locations import ObjectsRoot
from headrace.tables.iceberg.typed_columns import is_data_known
from headrace.tables.port import LOG_BRANCH, ListedFile, RowSpan, TableInfo, TableListing


def list_branch(
    table: Table, info: TableInfo, *, known: KnownFiles, root: ObjectsRoot, with_spans: bool = False
) -> TableListing:
    """Return the branch's data files that lie in our store and have a partition spec of ours, and what is left of
    ours in `main` alone: files below the prefix of sagas, which nobody else writes to."""
    metadata = table.metadata
    specs = metadata.specs()
    formats = {
        spec_id: layout.table_format(metadata, spec, partitioning)
        for spec_id, spec in specs.items()
        if is_data_known(metadata.schema())
        and (partitioning := layout.partitioning_of(spec, metadata.schema())) is not None
    }
    named = {
        ref: list(known.of_snapshot(metadata.snapshot_by_name(ref), table.io)) for ref in (LOG_BRANCH, MAIN_BRANCH)
    }
    branch, main = ({file.location: file for file in files if not file.is_delete} for files in named.values())
    reach = DeleteReach(named[MAIN_BRANCH], unpartitioned=unpartitioned_specs(metadata))
    kept = [file for location, file in main.items() if location not in branch]
    spans = _spans(table, info.format, {file.location for file in kept}) if with_spans and kept else {}

    def listed(file: KnownFile) -> ListedFile | None:
        return _listed(file, specs[file.spec_id], formats, root)

    return TableListing(
        info=info,
        files=[file for file in map(listed, branch.values()) if file is not None],
        formats=formats,
        left=[
            replace(found, is_touched=reach.touches(file), span=spans.get(file.location))
            for file in kept
            if (found := listed(file)) is not None and is_of_saga(found.path, info.data_prefix)
        ],
        # Whichever of the two has less in files of its own: what only one of them has at all is not there twice.
        held_twice_bytes=min(_own_bytes(branch, main), _own_bytes(main, branch)),
    )


def _spans(table: Table, format_: TableFormat, locations: Collection[str]) -> dict[str, RowSpan]:
    """Return the bounds of files of `main`, as far as manifests tell them. They are read anew: few ask for this."""
    partition_id, offset_id = (format_.field_ids[name] for name in (PARTITION, OFFSET))
    snapshot = table.metadata.snapshot_by_name(MAIN_BRANCH)
    spans: dict[str, RowSpan] = {}
    for manifest in () if snapshot is None else snapshot.manifests(table.io):
        if manifest.content == ManifestContent.DELETES:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file = entry.data_file
            if file.file_path not in locations:
                continue
            lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
            raw = (lower.get(partition_id), upper.get(partition_id), upper.get(offset_id))
            first, last, offset = (None if one is None else int.from_bytes(one, "little", signed=True) for one in raw)
            if first is not None and last is not None and offset is not None:
                spans[file.file_path] = RowSpan(first_partition=first, last_partition=last, last_offset=offset)
    return spans


def _own_bytes(files: Mapping[str, KnownFile], others: Mapping[str, KnownFile]) -> int:
    return sum(file.size_bytes for location, file in files.items() if location not in others)


def _listed(
    file: KnownFile, spec: PartitionSpec, formats: Mapping[int, TableFormat], root: ObjectsRoot
) -> ListedFile | None:
    path = root.key_of(file.location)
    if path is None or spec.spec_id not in formats:
        return None
    values = {str(field.transform): file.partition[position] for position, field in enumerate(spec.fields)}
    partitioning = formats[spec.spec_id].partitioning
    return ListedFile(
        path=path,
        size_bytes=file.size_bytes,
        row_count=file.row_count,
        bucket=None if partitioning.bucket is Bucket.NONE else values[str(partitioning.bucket)],
        partition=values["identity"] if partitioning.by_partition else None,
        spec_id=spec.spec_id,
        sequence_number=file.sequence_number,
    )
