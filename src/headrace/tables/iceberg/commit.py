"""One run's Iceberg commit: its files in `main` and in `headrace_log`, or in neither.

While both refs stand on one snapshot, one new snapshot serves both. Once a person has changed `main`, each gets its
own, in the same commit. A run without files moves the branch alone then, for the sake of its vector.

Must stay true:
- The commit asserts the table's UUID and both refs as they were read; what anybody did since makes all of it fail.
- The branch names the run's files and those of its own past, never what others put into `main`.
- The branch head's summary holds the whole vector: the old one, with this run's partitions moved on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from headrace.errors import Corrupt, HeadraceError
from headrace.runtime.rng import Rng
from headrace.tables.iceberg.locations import ObjectsRoot
from headrace.tables.iceberg.manifests import ManifestLibrary, data_file
from headrace.tables.port import LOG_BRANCH, BranchHead, TableAppend

SAGA_ID = "headrace.saga-id"
EPOCH = "headrace.epoch"
ENDS = "headrace.ends"

_SNAPSHOT_ID_BITS = 63


@dataclass(slots=True, kw_only=True)
class PreparedCommit:
    """Everything that the catalog is asked to do at once, and the metadata files that lie ready for it."""

    head: BranchHead
    updates: list[TableUpdate] = field(default_factory=list)
    requirements: list[TableRequirement] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


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
    properties = {
        SAGA_ID: append.saga_id,
        EPOCH: str(append.epoch),
        ENDS: msgspec.json.encode(dict(sorted(ends.items()))).decode(),
    }
    refs = [metadata.refs.get(MAIN_BRANCH), metadata.refs.get(LOG_BRANCH)]
    main_id, log_id = (None if ref is None else ref.snapshot_id for ref in refs)
    builder = _Builder(table, rng=rng, now_ms=now_ms, files=files, properties=properties)
    try:
        if main_id == log_id:
            new_id = builder.snapshot(log_id, [MAIN_BRANCH, LOG_BRANCH])
        else:
            if files:
                builder.snapshot(main_id, [MAIN_BRANCH])
            new_id = builder.snapshot(log_id, [LOG_BRANCH])
    except BaseException:
        builder.discard()
        raise
    builder.require(main_id=main_id, log_id=log_id)
    head = BranchHead(snapshot_id=new_id, saga_id=append.saga_id, epoch=append.epoch, ends=ends)
    return PreparedCommit(
        head=head, updates=builder.updates, requirements=builder.requirements, written=builder.written
    )


class _Builder:
    """Gathers the updates of one commit, snapshot by snapshot."""

    def __init__(
        self, table: Table, *, rng: Rng, now_ms: int, files: Sequence[DataFile], properties: Mapping[str, str]
    ) -> None:
        self._table = table
        self._metadata = table.metadata
        self._rng = rng
        # A clock that went back must not make history look out of order: engines refuse such a table.
        self._now_ms = max(now_ms, table.metadata.last_updated_ms)
        self._files = files
        self._properties = properties
        self._sequence_number = table.metadata.next_sequence_number() - 1
        self.updates: list[TableUpdate] = []
        self.requirements: list[TableRequirement] = []
        self.written: list[str] = []

    def snapshot(self, parent_id: int | None, ref_names: Sequence[str]) -> int:
        """Add a snapshot behind another one, and put refs onto it."""
        metadata, table = self._metadata, self._table
        parent = None if parent_id is None else metadata.snapshot_by_id(parent_id)
        assert parent is not None or parent_id is None, "a ref names a snapshot that is there"
        snapshot_id = self._new_snapshot_id()
        self._sequence_number += 1
        locations = table.location_provider()
        library = ManifestLibrary(
            metadata,
            table.io,
            snapshot_id=snapshot_id,
            new_output=lambda name: table.io.new_output(locations.new_metadata_location(name)),
        )
        try:
            before: list[ManifestFile] = [] if parent is None else parent.manifests(table.io)
            manifests = [*library.added(self._files), *library.kept(before)]
            manifest_list = library.write_list(manifests, parent_id=parent_id, sequence_number=self._sequence_number)
        finally:
            self.written.extend(library.written)
        made = Snapshot.model_validate(
            {
                "snapshot-id": snapshot_id,
                "parent-snapshot-id": parent_id,
                "sequence-number": self._sequence_number,
                "timestamp-ms": self._now_ms,
                "manifest-list": manifest_list,
                "summary": self._summary(parent),
                "schema-id": metadata.current_schema_id,
            }
        )
        self.updates.append(AddSnapshotUpdate(snapshot=made))
        self.updates.extend(_set_ref(name, snapshot_id, metadata.refs.get(name)) for name in ref_names)
        return snapshot_id

    def require(self, *, main_id: int | None, log_id: int | None) -> None:
        """Let the commit fail if the table is another one by now, or one of the refs has moved."""
        self.requirements.append(AssertTableUUID(uuid=self._metadata.table_uuid))
        self.requirements.append(_stands_on(MAIN_BRANCH, main_id))
        # PyIceberg refuses this of a table without any snapshot. There the first one says it all: whoever makes a
        # branch in the meantime makes `main` with it.
        if self._metadata.snapshots:
            self.requirements.append(_stands_on(LOG_BRANCH, log_id))

    def discard(self) -> None:
        """Delete what was written for a commit that is not going to be."""
        discard_files(self._table, self.written)

    def _new_snapshot_id(self) -> int:
        taken = {snapshot.snapshot_id for snapshot in self._metadata.snapshots}
        while (snapshot_id := self._rng.getrandbits(_SNAPSHOT_ID_BITS)) in taken or snapshot_id == 0:
            pass
        return snapshot_id

    def _summary(self, parent: Snapshot | None) -> Summary:
        counts = {
            "added-data-files": len(self._files),
            "added-records": sum(file.record_count for file in self._files),
            "added-files-size": sum(file.file_size_in_bytes for file in self._files),
            "changed-partition-count": len({(file.spec_id, file.partition) for file in self._files}),
        }
        added = {name: str(count) for name, count in counts.items() if count or name == "changed-partition-count"}
        return update_snapshot_summaries(
            Summary(operation=Operation.APPEND, **added, **self._properties),
            None if parent is None else parent.summary,
        )


def discard_files(table: Table, locations: Sequence[str]) -> None:
    """Delete metadata files that nothing names, as far as that goes: what is left is garbage, not damage."""
    for location in locations:
        try:
            table.io.delete(location)
        except (HeadraceError, OSError, ValueError):
            continue


def _set_ref(name: str, snapshot_id: int, ref: SnapshotRef | None) -> SetSnapshotRefUpdate:
    """Move a ref; what a person said about its retention stays."""
    return SetSnapshotRefUpdate.model_validate(
        {
            "ref-name": name,
            "type": SnapshotRefType.BRANCH,
            "snapshot-id": snapshot_id,
            "max-ref-age-ms": None if ref is None else ref.max_ref_age_ms,
            "max-snapshot-age-ms": None if ref is None else ref.max_snapshot_age_ms,
            "min-snapshots-to-keep": None if ref is None else ref.min_snapshots_to_keep,
        }
    )


def _stands_on(name: str, snapshot_id: int | None) -> AssertRefSnapshotId:
    return AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": snapshot_id})
