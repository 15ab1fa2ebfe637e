"""What manifests say, read once: a manifest never changes, so its live entries are remembered, bounded.

Must stay true: what is remembered of a manifest depends on nothing but the manifest.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

MAX_KNOWN_FILES = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """A data or delete file that a manifest names. `sequence_number` is that of its rows."""

    location: str
    is_delete: bool
    row_count: int
    size_bytes: int
    spec_id: int
    partition: Record
    sequence_number: int


class KnownFiles:
    """The live entries of manifests, at most about `max_files` of them in memory. Any thread may ask."""

    def __init__(self, *, max_files: int = MAX_KNOWN_FILES) -> None:
        self._max_files = max_files
        self._count = 0
        self._known: OrderedDict[str, tuple[KnownFile, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, manifest: ManifestFile, io: FileIO) -> tuple[KnownFile, ...]:
        """Return the files that a manifest names and has not marked as deleted."""
        path = manifest.manifest_path
        with self._lock:
            found = self._known.get(path)
            if found is not None:
                self._known.move_to_end(path)
                return found
        found = tuple(_read(manifest, io))
        with self._lock:
            if path not in self._known:
                self._known[path] = found
                self._count += len(found)
            while self._count > self._max_files and len(self._known) > 1:
                self._count -= len(self._known.popitem(last=False)[1])
        return found

    def of_snapshot(self, snapshot: Snapshot | None, io: FileIO) -> Iterator[KnownFile]:
        """Go through all files of a snapshot, delete files included."""
        for manifest in () if snapshot is None else snapshot.manifests(io):
            if manifest.has_added_files() or manifest.has_existing_files():
                yield from self.of(manifest, io)


class DeleteReach:
    """Which data files of a snapshot its delete files may take rows from; in doubt they do.

    A delete file reaches the data files of its own partition that are not younger than it, and one without a
    partition those of every partition.
    """

    def __init__(self, files: Iterable[KnownFile], *, unpartitioned: Collection[int]) -> None:
        """`unpartitioned` are the ids of the table's partition specs without fields."""
        self._everywhere = -1
        self._newest: dict[tuple[int, Record], int] = {}
        for file in files:
            if not file.is_delete:
                continue
            if file.spec_id in unpartitioned:
                self._everywhere = max(self._everywhere, file.sequence_number)
            else:
                place = (file.spec_id, file.partition)
                self._newest[place] = max(self._newest.get(place, -1), file.sequence_number)

    def touches(self, file: KnownFile) -> bool:
        """Say whether a delete file may take rows from a data file."""
        newest = max(self._everywhere, self._newest.get((file.spec_id, file.partition), -1))
        return newest >= file.sequence_number


def unpartitioned_specs(metadata: TableMetadata) -> frozenset[int]:
    """Return the ids of a table's partition specs that have no fields."""
    return frozenset(spec_id for spec_id, spec in metadata.specs().items() if not spec.fields)


def _read(manifest: ManifestFile, io: FileIO) -> Iterator[KnownFile]:
    for entry in manifest.fetch_manifest_entry(io=io, discard_deleted=True):
        file = entry.data_file
        yield KnownFile(
            location=file.file_path,
            is_delete=manifest.content == ManifestContent.DELETES or file.content != DataFileContent.DATA,
            row_count=file.record_count,
            size_bytes=file.file_size_in_bytes,
            spec_id=manifest.partition_spec_id,
            partition=file.partition,
            sequence_number=entry.sequence_number or 0,
        )
