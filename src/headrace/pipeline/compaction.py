"""Rules of compaction by key: what of a stream may be compacted, when it is due, which files are to be rewritten.

Pure: no clock, no store. As Kafka's log cleaner has it, a stream is three parts:

    log start ── clean ── cleaned_to ── dirty ── cleanable end ── not yet ── high watermark

A round looks for the latest record of every key in the dirty part, and takes away all earlier ones, of the clean part
as well. Behind the cleanable end nothing is touched: these records are too young (`min.compaction.lag.ms`), or not
in the table yet.

Must stay true: the latest record of a key goes only if it is a tombstone that was kept long enough; nothing behind
the cleanable end goes; the same input gives the same plan.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.index.values import IndexEntry
from headrace.model.batches import NO_TIMESTAMP_MS
from headrace.model.extents import TableExtent, TableFile, WalExtent
from headrace.model.ids import StreamId
from headrace.pipeline.compaction_state import StreamCompaction, expired_to, tombstones_below
from headrace.pipeline.scans import ScanRange
from headrace.topics.compaction import CompactionRules

TOMBSTONE_PATIENCE = 2
"""A round for nothing but tombstones waits until they are this many times as old as `delete.retention.ms` asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedStream:
    """What a round is planned from: the entries from `log_start` on, in order, and how far the table reaches."""

    partition: int
    stream: StreamId
    log_start: int
    table_end: int
    entries: Sequence[IndexEntry]
    state: StreamCompaction = field(default_factory=StreamCompaction)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """What a round does with one stream.

    Keys of `dirty_from` to `cleanable_end` are collected, and what they replace is looked for from `start_offset` on.
    Tombstones below `expired_to` may go.
    """

    partition: int
    stream: StreamId
    start_offset: int
    dirty_from: int
    cleanable_end: int
    expired_to: int
    dirty_bytes: int
    clean_bytes: int
    ranges: Sequence[ScanRange]


def plan_stream(
    stream: CompactedStream, rules: CompactionRules, *, now_ms: int, fixed: Collection[str] = ()
) -> StreamPlan | None:
    """Return what a round would do with a stream, or `None` if none is due. `fixed` files cannot be rewritten."""
    state = stream.state
    end = cleanable_end(stream, rules, now_ms=now_ms)
    dirty_from = max(state.cleaned_to, stream.log_start)
    clean_bytes, dirty_bytes = _parts(stream, dirty_from, end)
    expired = expired_to(state, now_ms=now_ms, delete_retention_ms=rules.delete_retention_ms)
    if not tombstones_below(state, expired):
        expired = 0
    is_due = _is_dirty(stream, rules, dirty_from, end, clean_bytes, dirty_bytes, now_ms)
    if not is_due and not _has_old_tombstones(state, rules, now_ms):
        return None
    reach = max(end, min(dirty_from, stream.table_end))
    return StreamPlan(
        partition=stream.partition,
        stream=stream.stream,
        start_offset=stream.log_start,
        dirty_from=dirty_from,
        cleanable_end=max(end, dirty_from),
        expired_to=expired,
        dirty_bytes=dirty_bytes,
        clean_bytes=clean_bytes,
        ranges=tuple(_ranges(stream, reach, fixed)),
    )


def cleanable_end(stream: CompactedStream, rules: CompactionRules, *, now_ms: int) -> int:
    """Return the first offset that must not be compacted yet.

    As in Kafka, records are too young by their own times, so a producer whose clock is ahead keeps them longer.
    """
    end = stream.log_start
    for entry in stream.entries:
        if isinstance(entry.extent, WalExtent) and entry.end_offset > stream.table_end:
            break
        if rules.min_lag_ms > 0 and entry.max_timestamp_ms > now_ms - rules.min_lag_ms:
            break
        end = entry.end_offset
    return max(end, stream.log_start)


def table_ranges(entry: IndexEntry) -> Iterator[tuple[int, int, TableFile]]:
    """Go through the files of an entry: from which offset to which each of them has its rows, holes included."""
    if not isinstance(entry.extent, TableExtent):
        return
    files = entry.extent.files
    for number, file in enumerate(files):
        start = entry.start_offset if number == 0 else file.row_groups[0].first_offset
        is_last = number == len(files) - 1
        yield start, entry.end_offset if is_last else files[number + 1].row_groups[0].first_offset, file


def _ranges(stream: CompactedStream, end: int, fixed: Collection[str]) -> Iterator[ScanRange]:
    for entry in stream.entries:
        for start_offset, end_offset, file in table_ranges(entry):
            if start_offset < end and end_offset > stream.log_start:
                yield ScanRange(max(start_offset, stream.log_start), min(end_offset, end), file, file.path in fixed)


def _parts(stream: CompactedStream, dirty_from: int, end: int) -> tuple[int, int]:
    """Return the bytes of the clean and of the dirty part, as they are stored: what was taken away counts no more."""
    clean_bytes = dirty_bytes = 0
    for entry in stream.entries:
        for _, file_end, file in table_ranges(entry):
            group_ends = [*(group.first_offset for group in file.row_groups[1:]), file_end]
            for group, group_end in zip(file.row_groups, group_ends, strict=True):
                if group_end <= dirty_from:
                    clean_bytes += group.size_bytes
                elif group.first_offset < end:
                    dirty_bytes += group.size_bytes
    return clean_bytes, dirty_bytes


def _is_dirty(
    stream: CompactedStream,
    rules: CompactionRules,
    dirty_from: int,
    end: int,
    clean_bytes: int,
    dirty_bytes: int,
    now_ms: int,
) -> bool:
    """Say whether so much is dirty, or dirty for so long, that a round is due; Kafka compares in the same way."""
    if end <= dirty_from:
        return False
    if dirty_bytes > rules.dirty_ratio * (clean_bytes + dirty_bytes):
        return True
    dirty = [entry for entry in stream.entries if dirty_from < entry.end_offset <= end]
    return any(_oldest_ms(entry) < now_ms - rules.max_lag_ms for entry in dirty)


def _oldest_ms(entry: IndexEntry) -> int:
    return entry.append_time_ms if entry.min_timestamp_ms == NO_TIMESTAMP_MS else entry.min_timestamp_ms


def _has_old_tombstones(state: StreamCompaction, rules: CompactionRules, now_ms: int) -> bool:
    patience_ms = TOMBSTONE_PATIENCE * rules.delete_retention_ms
    return tombstones_below(state, expired_to(state, now_ms=now_ms, delete_retention_ms=patience_ms)) > 0


def choose_files(losses: Mapping[str, int], sizes: Mapping[str, int], *, max_bytes: int, max_files: int) -> set[str]:
    """Return which files that lose rows one run rewrites: those that lose most per byte first.

    At least one is taken, so that every run gets further.
    """
    order = sorted(losses, key=lambda path: (-losses[path] / max(sizes[path], 1), path))
    chosen: set[str] = set()
    size_bytes = 0
    for path in order:
        if chosen and (size_bytes + sizes[path] > max_bytes or len(chosen) >= max_files):
            continue
        chosen.add(path)
        size_bytes += sizes[path]
    return chosen
