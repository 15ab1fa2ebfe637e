"""List the files of a table's branch, with what a planner of rewrites must know of them."""

from collections.abc import Mapping

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from headrace.tables.format import Bucket, TableFormat
from headrace.tables.iceberg import layout
from headrace.tables.iceberg.known_files import KnownFile, KnownFiles
from headrace.tables.iceberg.locations import ObjectsRoot
from headrace.tables.port import LOG_BRANCH, ListedFile, TableInfo, TableListing


def list_branch(table: Table, info: TableInfo, *, known: KnownFiles, root: ObjectsRoot) -> TableListing:
    """Return the branch's data files that lie in our store and have a partition spec of ours."""
    metadata = table.metadata
    specs = metadata.specs()
    formats = {
        spec_id: layout.table_format(metadata, spec, partitioning)
        for spec_id, spec in specs.items()
        if (partitioning := layout.partitioning_of(spec, metadata.schema())) is not None
    }
    branch, main = (
        {
            file.location: file
            for file in known.of_snapshot(metadata.snapshot_by_name(ref), table.io)
            if not file.is_delete
        }
        for ref in (LOG_BRANCH, MAIN_BRANCH)
    )
    listed = [_listed(file, specs[file.spec_id], formats, root) for file in branch.values()]
    return TableListing(
        info=info,
        files=[file for file in listed if file is not None],
        formats=formats,
        # Whichever of the two has less in files of its own: what only one of them has at all is not there twice.
        held_twice_bytes=min(_own_bytes(branch, main), _own_bytes(main, branch)),
    )


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
    )
