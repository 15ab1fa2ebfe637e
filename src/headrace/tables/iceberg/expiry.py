"""Which snapshots of a table go, and which files nothing names once they are gone.

`main` keeps a number of snapshots for a time. `headrace_log` keeps its head and a short past. Heads of all refs stay,
and so does the past of every branch that a person made.

Must stay true: a file is free only if no snapshot that stays names it, whichever ref that one belongs to.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from headrace.tables.port import LOG_BRANCH, ExpiryRule

LOG_SNAPSHOTS = 10
"""How many snapshots the branch keeps where it has a past of its own: for whoever is reading it right now."""

SLACK = 10
"""When the number of snapshots is over its limit, so many percent go at once: not every run need expire."""

MAX_KNOWN_LISTS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSnapshot:
    """What expiry must know of a snapshot."""

    snapshot_id: int
    parent_id: int | None
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRef:
    """What expiry must know of a branch or a tag."""

    snapshot_id: int
    is_branch: bool


def expiring_ids(
    snapshots: Collection[KnownSnapshot], refs: Mapping[str, KnownRef], rule: ExpiryRule, *, now_ms: int
) -> set[int]:
    """Say which snapshots go. Pure."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
    kept: set[int] = set()
    for name, ref in refs.items():
        past = list(_ancestors(ref.snapshot_id, by_id)) if ref.is_branch else []
        if name == MAIN_BRANCH:
            past = _recent(past, rule.max_snapshots, rule.max_age_ms, now_ms)
        elif name == LOG_BRANCH:
            past = _recent(past, min(LOG_SNAPSHOTS, rule.max_snapshots), rule.max_age_ms, now_ms)
        kept.add(ref.snapshot_id)
        kept.update(snapshot.snapshot_id for snapshot in past)
    # What no ref leads to may be staged by somebody who is about to publish it: it has its time as well.
    reached = {snapshot.snapshot_id for ref in refs.values() for snapshot in _ancestors(ref.snapshot_id, by_id)}
    staged = {
        snapshot.snapshot_id
        for snapshot in snapshots
        if snapshot.snapshot_id not in reached and snapshot.timestamp_ms > now_ms - rule.max_age_ms
    }
    return set(by_id) - kept - staged


def _ancestors(snapshot_id: int | None, by_id: Mapping[int, KnownSnapshot]) -> Iterator[KnownSnapshot]:
    seen: set[int] = set()
    while snapshot_id is not None and snapshot_id in by_id and snapshot_id not in seen:
        seen.add(snapshot_id)
        yield by_id[snapshot_id]
        snapshot_id = by_id[snapshot_id].parent_id


def _recent(past: Sequence[KnownSnapshot], max_count: int, max_age_ms: int, now_ms: int) -> list[KnownSnapshot]:
    """Return what stays of a branch's past, newest first."""
    if len(past) > max_count:
        past = past[: max(1, max_count - max_count * SLACK // 100)]
    return [snapshot for snapshot in past if snapshot.timestamp_ms >= now_ms - max_age_ms]


def expiring_snapshots(metadata: TableMetadata, rule: ExpiryRule, *, now_ms: int) -> list[Snapshot]:
    """Return the snapshots of a loaded table that go."""
    ids = expiring_ids(
        [
            KnownSnapshot(
                snapshot_id=snapshot.snapshot_id,
                parent_id=snapshot.parent_snapshot_id,
                timestamp_ms=snapshot.timestamp_ms,
            )
            for snapshot in metadata.snapshots
        ],
        {
            name: KnownRef(snapshot_id=ref.snapshot_id, is_branch=ref.snapshot_ref_type == SnapshotRefType.BRANCH)
            for name, ref in metadata.refs.items()
        },
        rule,
        now_ms=now_ms,
    )
    return [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in ids]


class ManifestPaths:
    """Which manifests a manifest list names. Lists never change, so what was read once is remembered, bounded."""

    def __init__(self, *, max_lists: int = MAX_KNOWN_LISTS) -> None:
        self._max_lists = max_lists
        self._known: OrderedDict[str, frozenset[str]] = OrderedDict()

    def of(self, snapshot: Snapshot, io: FileIO) -> frozenset[str]:
        """Return the manifests that a snapshot names."""
        found = self._known.get(snapshot.manifest_list)
        if found is None:
            found = frozenset(manifest.manifest_path for manifest in snapshot.manifests(io))
            self._known[snapshot.manifest_list] = found
            while len(self._known) > self._max_lists:
                self._known.popitem(last=False)
        return found


def may_free_data(gone: Sequence[Snapshot], left: Sequence[Snapshot]) -> bool:
    """Say whether data files can be free at all, by what snapshots say of themselves.

    As long as all of them only append, and each that goes is followed by one that is known, whatever it named is
    named by those that stay.
    """
    known = [*gone, *left]
    parents = {snapshot.parent_snapshot_id for snapshot in known}
    only_append = all(
        snapshot.summary is not None and snapshot.summary.operation is Operation.APPEND for snapshot in known
    )
    return not only_append or any(snapshot.snapshot_id not in parents for snapshot in gone)


def freed_data(
    gone: Sequence[Snapshot], left: Sequence[Snapshot], files_of: Callable[[Snapshot], Iterable[str]]
) -> list[str]:
    """Return the locations of data and delete files that only snapshots that are gone name."""
    candidates = {location for snapshot in gone for location in files_of(snapshot)}
    for snapshot in left:
        if not candidates:
            break
        candidates.difference_update(files_of(snapshot))
    return sorted(candidates)


def freed_files(
    gone: Sequence[Snapshot], left: Sequence[Snapshot], paths_of: Callable[[Snapshot], frozenset[str]]
) -> list[str]:
    """Return the locations of manifests and manifest lists that only snapshots that are gone name."""
    candidates = {path for snapshot in gone for path in paths_of(snapshot)}
    candidates.update(snapshot.manifest_list for snapshot in gone)
    for snapshot in left:
        if not candidates:
            break
        candidates -= paths_of(snapshot)
        candidates.discard(snapshot.manifest_list)
    return sorted(candidates)
