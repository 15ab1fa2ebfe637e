"""One run's Iceberg commit: its files in `main` and in `headrace_log`, or in neither.

While both refs stand on one snapshot, one new snapshot serves both. Once a person has changed `main`, each gets its
own, in the same commit. A run without files moves the branch alone then, for the sake of its vector.

Must stay true:
- The commit asserts the table's UUID and both refs as they were read; what anybody did since makes all of it fail.
- The branch names the run's files and those of its own past, never what others put into `main`.
- The branch head's summary holds the whole vector: the old one, with this run's partitions moved on.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import TableRequirement, TableUpdate

from headrace.errors import Corrupt
from headrace.runtime.rng import Rng
from headrace.tables.iceberg.locations import ObjectsRoot
from headrace.tables.iceberg.manifests import data_file
from headrace.tables.iceberg.snapshots import Change, SnapshotBuilder
from headrace.tables.port import LOG_BRANCH, BranchHead, TableAppend

SAGA_ID = "headrace.saga-id"
EPOCH = "headrace.epoch"
ENDS = "headrace.ends"


@dataclass(slots=True, kw_only=True)
class PreparedCommit:
    """Everything that the catalog is asked to do at once, and the metadata files that lie ready for it."""

    head: BranchHead
    updates: list[TableUpdate] = field(default_factory=list)
    requirements: list[TableRequirement] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    main_moved: bool = True


def branch_head(table: Table) -> BranchHead | None:
    """Return what the branch says of itself, or `None` before the first run. Raises `Corrupt` for a head not ours."""
    ref = table.metadata.refs.get(LOG_BRANCH)
    if ref is None:
        return None
    snapshot = table.metadata.snapshot_by_id(ref.snapshot_id)
    summary = None if snapshot is None else snapshot.summary
    name = ".".join(table.name())
    if summary is None or summary[ENDS] is None:
        raise Corrupt(
            f"the head of {LOG_BRANCH} in the table {name}, snapshot {ref.snapshot_id}, was not written by Headrace:"
            " set the branch back to the snapshot before"
        )
    try:
        ends = msgspec.json.decode(str(summary[ENDS]), type=dict[int, int])
        epoch = int(str(summary[EPOCH]))
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corrupt(f"snapshot {ref.snapshot_id} of the table {name} has no readable vector: {error}") from error
    return BranchHead(snapshot_id=ref.snapshot_id, saga_id=str(summary[SAGA_ID]), epoch=epoch, ends=ends)


def prepare_commit(
    table: Table, append: TableAppend, *, head: BranchHead | None, root: ObjectsRoot, rng: Rng, now_ms: int
) -> PreparedCommit:
    """Write the manifests of a run and return its commit. Nothing is in the table yet."""
    metadata = table.metadata
    files = [data_file(file, metadata, root) for file in append.files if file.path]
    assert len({file.file_path for file in files}) == len(files), "a run names each of its files once"
    ends = {**(head.ends if head is not None else {}), **append.ends}
    change = Change(
        operation=Operation.APPEND, added=files, properties=head_properties(append.saga_id, append.epoch, ends)
    )
    main_id, log_id = ref_ids(table)
    builder = SnapshotBuilder(table, rng=rng, now_ms=now_ms)
    with building(builder):
        if main_id == log_id:
            new_id = builder.snapshot(log_id, [MAIN_BRANCH, LOG_BRANCH], change)
        else:
            if files:
                builder.snapshot(main_id, [MAIN_BRANCH], change)
            new_id = builder.snapshot(log_id, [LOG_BRANCH], change)
    builder.require(main_id=main_id, log_id=log_id)
    head = BranchHead(snapshot_id=new_id, saga_id=append.saga_id, epoch=append.epoch, ends=ends)
    return PreparedCommit(
        head=head, updates=builder.updates, requirements=builder.requirements, written=builder.written
    )


def head_properties(saga_id: str, epoch: int, ends: Mapping[int, int]) -> dict[str, str]:
    """Return what a snapshot of ours says of itself in its summary."""
    vector = msgspec.json.encode(dict(sorted(ends.items()))).decode()
    return {SAGA_ID: saga_id, EPOCH: str(epoch), ENDS: vector}


def ref_ids(table: Table) -> tuple[int | None, int | None]:
    """Return which snapshots `main` and our branch stand on."""
    refs = table.metadata.refs
    main, log = refs.get(MAIN_BRANCH), refs.get(LOG_BRANCH)
    return (None if main is None else main.snapshot_id, None if log is None else log.snapshot_id)


@contextmanager
def building(builder: SnapshotBuilder) -> Iterator[None]:
    """Throw away what was written where a commit cannot be prepared."""
    try:
        yield
    except BaseException:
        builder.discard()
        raise
