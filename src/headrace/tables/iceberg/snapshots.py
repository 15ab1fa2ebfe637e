"""Build the snapshots of one commit: manifests, manifest list, summary, and the refs that move onto them.

Must stay true:
- A snapshot names what its parent named, without what the change removes and with what it adds. A removed file stands
  once more in a manifest of the snapshot that removes it, marked as deleted, with the sequence numbers it had.
- Nothing is in the table before the catalog has taken the commit; what was written for it can be thrown away.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from headrace.errors import HeadraceError
from headrace.runtime.rng import Rng
from headrace.tables.iceberg.manifests import ManifestLibrary
from headrace.tables.port import LOG_BRANCH

_SNAPSHOT_ID_BITS: Final = 63

LOG_BRANCH_AGE_MS: Final = 86_400_000
"""How long other people's expiry leaves the branch's snapshots alone, whatever its options are for the table.

Between a rewrite's commit and the end of its swap the index names files that only the snapshots before it name, and
who has read an index entry may come for its file a while later. Our own expiry goes by its own rule.
"""

_TOTALS: Final = (
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-delete-files", "", ""),
    ("total-position-deletes", "", ""),
    ("total-equality-deletes", "", ""),
)
_NOTHING: Final = {total: "0" for total, _, _ in _TOTALS}
_ALWAYS: Final = frozenset({"changed-partition-count", *_NOTHING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a snapshot changes. `removed` are locations of data files, all of which its parent names."""

    operation: Operation
    added: Sequence[DataFile]
    properties: Mapping[str, str]
    removed: frozenset[str] = field(default_factory=frozenset)


class SnapshotBuilder:
    """Gathers the updates of one commit, snapshot by snapshot."""

    def __init__(self, table: Table, *, rng: Rng, now_ms: int) -> None:
        self._table = table
        self._metadata = table.metadata
        self._rng = rng
        # A clock that went back must not make history look out of order: engines refuse such a table.
        self._now_ms = max(now_ms, table.metadata.last_updated_ms)
        self._sequence_number = table.metadata.next_sequence_number() - 1
        self.updates: list[TableUpdate] = []
        self.requirements: list[TableRequirement] = []
        self.written: list[str] = []

    def snapshot(self, parent_id: int | None, ref_names: Sequence[str], change: Change) -> int:
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
            untouched, rewritten, removed = library.without(before, change.removed)
            manifests = [*library.added(change.added), *rewritten, *library.kept(untouched)]
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
                "summary": _summary(change, removed, parent),
                "schema-id": metadata.current_schema_id,
            }
        )
        self.updates.append(AddSnapshotUpdate(snapshot=made))
        self.updates.extend(_set_ref(name, snapshot_id, metadata.refs.get(name)) for name in ref_names)
        return snapshot_id

    def require(self, *, main_id: int | None, log_id: int | None) -> None:
        """Let the commit fail if the table is another one by now, or one of the refs has moved."""
        self.requirements.append(AssertTableUUID(uuid=self._metadata.table_uuid))
        self.requirements.append(stands_on(MAIN_BRANCH, main_id))
        # PyIceberg refuses this of a table without any snapshot. There the first one says it all: whoever makes a
        # branch in the meantime makes `main` with it.
        if self._metadata.snapshots:
            self.requirements.append(stands_on(LOG_BRANCH, log_id))

    def discard(self) -> None:
        """Delete what was written for a commit that is not going to be."""
        discard_files(self._table, self.written)

    def _new_snapshot_id(self) -> int:
        taken = {snapshot.snapshot_id for snapshot in self._metadata.snapshots}
        while (snapshot_id := self._rng.getrandbits(_SNAPSHOT_ID_BITS)) in taken or snapshot_id == 0:
            pass
        return snapshot_id


def _summary(change: Change, removed: Sequence[DataFile], parent: Snapshot | None) -> Summary:
    """Say what a snapshot changes and what there is then. PyIceberg adds up no `replace`."""
    partitions = {(file.spec_id, file.partition) for file in (*change.added, *removed)}
    counts = {
        "added-data-files": len(change.added),
        "added-records": sum(file.record_count for file in change.added),
        "added-files-size": sum(file.file_size_in_bytes for file in change.added),
        "deleted-data-files": len(removed),
        "deleted-records": sum(file.record_count for file in removed),
        "removed-files-size": sum(file.file_size_in_bytes for file in removed),
        "changed-partition-count": len(partitions),
    }
    before: Mapping[str, str] = _NOTHING if parent is None or parent.summary is None else parent.summary
    for total, added, gone in _TOTALS:
        known = before.get(total)
        if known is not None and known.isdecimal():
            counts[total] = int(known) + counts.get(added, 0) - counts.get(gone, 0)
    said = {name: str(count) for name, count in counts.items() if count or name in _ALWAYS}
    return Summary(operation=change.operation, **said, **change.properties)


def discard_files(table: Table, locations: Sequence[str]) -> None:
    """Delete metadata files that nothing names, as far as that goes: what is left is garbage, not damage."""
    for location in locations:
        try:
            table.io.delete(location)
        except (HeadraceError, OSError, ValueError):
            continue


def _set_ref(name: str, snapshot_id: int, ref: SnapshotRef | None) -> SetSnapshotRefUpdate:
    """Move a ref; what a person said about its retention stays."""
    max_age_ms = None if ref is None else ref.max_snapshot_age_ms
    if max_age_ms is None and name == LOG_BRANCH:
        max_age_ms = LOG_BRANCH_AGE_MS
    return SetSnapshotRefUpdate.model_validate(
        {
            "ref-name": name,
            "type": SnapshotRefType.BRANCH,
            "snapshot-id": snapshot_id,
            "max-ref-age-ms": None if ref is None else ref.max_ref_age_ms,
            "max-snapshot-age-ms": max_age_ms,
            "min-snapshots-to-keep": None if ref is None else ref.min_snapshots_to_keep,
        }
    )


def stands_on(name: str, snapshot_id: int | None) -> AssertRefSnapshotId:
    """Return what lets a commit fail if a ref has moved."""
    return AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": snapshot_id})
