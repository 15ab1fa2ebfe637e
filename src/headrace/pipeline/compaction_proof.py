"""The part of a proof that is about compaction: what the log lacks had to go.

1. While the log is read, remember the latest offset of every key, and count keys that are twice where it is clean.
2. Where `main` is the full history: of every row there that the log lacks, the log has a later one of the same key,
   or the latest that there ever was is a tombstone.

Must stay true: memory is bounded; what does not fit is reported as not proved. Nothing that is found here is guessed.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline.compaction_state import CompactionState
from headrace.pipeline.latest_offsets import LatestOffsets
from headrace.pipeline.offset_runs import OffsetRuns
from headrace.tables.arrow_runs import runs_of
from headrace.tables.columns import KEY, OFFSET, PARTITION, VALUE

MAP_BYTES = 256 * 1024 * 1024
"""How much the keys of all partitions may take."""


class CompactionProof:
    """What is known of the keys of one topic."""

    def __init__(self, state: CompactionState, *, map_bytes: int = MAP_BYTES) -> None:
        self._state = state
        self._left_bytes = map_bytes
        self._log: dict[int, LatestOffsets] = {}
        self._lost: dict[int, LatestOffsets] = {}
        self._tombstones: dict[int, OffsetRuns] = {}
        self.is_whole = True
        """Whether all keys found room."""

    def cleaned_to(self, partition: int) -> int:
        """Return how far a partition is clean."""
        stream = self._state.streams.get(partition)
        return 0 if stream is None else stream.cleaned_to

    def note_log(self, partition: int, records: Any) -> int:
        """Take records of the log, in order; return how many keys were there before, in the clean part."""
        records = records.filter(pc.is_valid(records.column("key")))
        keys, offsets = records.column("key"), records.column("offset")
        known = self._map(self._log, partition)
        is_clean = pc.less(offsets, self.cleaned_to(partition))
        before = pc.is_valid(known.latest(keys))
        twice = int(pc.sum(pc.and_(before, is_clean)).as_py() or 0)
        self.is_whole &= known.add(keys, offsets)
        return twice

    def note_main(self, rows: Any, log: dict[int, OffsetRuns], starts: dict[int, int], ends: dict[int, int]) -> None:
        """Take rows of `main`: those that the log lacks between its start and the table's end are looked into."""
        for partition in pc.unique(rows.column(PARTITION)).to_pylist():
            own = rows.filter(pc.equal(rows.column(PARTITION), partition))
            offsets = own.column(OFFSET)
            inside = pc.and_(
                pc.greater_equal(offsets, starts.get(partition, 0)), pc.less(offsets, ends.get(partition, 0))
            )
            own = own.filter(pc.and_(inside, pc.is_valid(own.column(KEY))))
            gone = self._gone(own, log.get(partition, OffsetRuns()))
            later = self._map(self._log, partition).latest(gone.column(KEY))
            is_last = pc.fill_null(pc.less(later, gone.column(OFFSET)), True)
            orphans = gone.filter(is_last)
            if not len(orphans):
                continue
            self.is_whole &= self._map(self._lost, partition).add(orphans.column(KEY), orphans.column(OFFSET))
            is_tombstone = pc.is_null(orphans.column(VALUE))
            found = self._tombstones.setdefault(partition, OffsetRuns())
            for start, end in runs_of(orphans.column(OFFSET).filter(is_tombstone)):
                found.add(start, end)

    def lost(self) -> dict[int, OffsetRuns]:
        """Return the offsets of records that were the latest of their keys, no tombstones, and are gone."""
        found: dict[int, OffsetRuns] = {}
        for partition, latest in self._lost.items():
            runs = OffsetRuns(runs_of(latest.offsets()))
            missing = runs.minus(self._tombstones.get(partition, OffsetRuns()))
            if missing.count():
                found[partition] = missing
        return found

    def _map(self, maps: dict[int, LatestOffsets], partition: int) -> LatestOffsets:
        if partition not in maps:
            maps[partition] = LatestOffsets(max_bytes=self._left_bytes)
        return maps[partition]

    def _gone(self, rows: Any, log: OffsetRuns) -> Any:
        """Return the rows whose offsets the log lacks."""
        wanted = OffsetRuns(runs_of(rows.column(OFFSET))).minus(log)
        offsets = pa.array([offset for start, end in wanted.runs() for offset in range(start, end)], pa.int64())
        return rows.filter(pc.is_in(rows.column(OFFSET), value_set=offsets))
