"""One rewrite's Iceberg commit: files go from `headrace_log` and others come, and `main` follows where it may.

A rewrite of `main` alone gives the branch a snapshot that changes nothing; its summary says that it is there.

Must stay true:
- The commit asserts the table's UUID and both refs as they were read. The vector of the branch stays.
- New files come into `main` only in the place of all inputs, and only if no delete file applies to any of them: a row
  that a person has deleted must not come back, and none may be there twice.
- While both refs stand on one snapshot and `main` takes part, one new snapshot serves both.
"""

from collections.abc import Sequence

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation

from headrace.runtime.rng import Rng
from headrace.tables.iceberg.commit import PreparedCommit, building, head_properties, ref_ids
from headrace.tables.iceberg.known_files import DeleteReach, KnownFile, KnownFiles, unpartitioned_specs
from headrace.tables.iceberg.locations import ObjectsRoot
from headrace.tables.iceberg.manifests import data_file
from headrace.tables.iceberg.snapshots import Change, SnapshotBuilder
from headrace.tables.port import LOG_BRANCH, BranchHead, MainPolicy, TableRewrite, TableStale


def prepare_rewrite(
    table: Table,
    rewrite: TableRewrite,
    *,
    head: BranchHead,
    known: KnownFiles,
    root: ObjectsRoot,
    rng: Rng,
    now_ms: int,
) -> PreparedCommit:
    """Write the manifests of a rewrite and return its commit. Nothing is in the table yet.

    Raises `TableStale` where `main` alone was to be rewritten and may not be.
    """
    metadata = table.metadata
    files = [data_file(file, metadata, root) for file in rewrite.files if file.path]
    inputs = frozenset(root.uri_of(path) for path in rewrite.inputs)
    properties = head_properties(rewrite.saga_id, rewrite.epoch, head.ends)
    operation = Operation(rewrite.operation.value)
    change = Change(operation=operation, added=files, properties=properties, removed=inputs)
    main_id, log_id = ref_ids(table)
    main = None if main_id is None else metadata.snapshot_by_id(main_id)
    taken = main_part(metadata, list(known.of_snapshot(main, table.io)), inputs, rewrite)
    if rewrite.main is MainPolicy.ALONE:
        if not taken:
            raise TableStale(f"somebody has touched files of main that rewrite {rewrite.saga_id} was planned from")
        change = Change(operation=Operation.REPLACE, added=(), properties=properties)
    builder = SnapshotBuilder(table, rng=rng, now_ms=now_ms)
    with building(builder):
        if taken and main_id == log_id:
            new_id = builder.snapshot(log_id, [MAIN_BRANCH, LOG_BRANCH], change)
        else:
            if taken:
                own = Change(operation=operation, added=files, properties=properties, removed=taken)
                builder.snapshot(main_id, [MAIN_BRANCH], own)
            new_id = builder.snapshot(log_id, [LOG_BRANCH], change)
    builder.require(main_id=main_id, log_id=log_id)
    return PreparedCommit(
        head=BranchHead(snapshot_id=new_id, saga_id=rewrite.saga_id, epoch=rewrite.epoch, ends=head.ends),
        updates=builder.updates,
        requirements=builder.requirements,
        written=builder.written,
        main_moved=bool(taken),
    )


def main_part(
    metadata: TableMetadata, files: Sequence[KnownFile], inputs: frozenset[str], rewrite: TableRewrite
) -> frozenset[str]:
    """Say which inputs go from `main`, whose files are given: all of them, some, or none."""
    if rewrite.main is MainPolicy.NEVER:
        return frozenset()
    there = {file.location: file for file in files if not file.is_delete and file.location in inputs}
    if rewrite.main in (MainPolicy.ALONG, MainPolicy.ALONE) and not rewrite.files:
        return frozenset(there)
    reach = DeleteReach(files, unpartitioned=unpartitioned_specs(metadata))
    is_untouched = len(there) == len(inputs) and not any(map(reach.touches, there.values()))
    return frozenset(there) if is_untouched else frozenset()
