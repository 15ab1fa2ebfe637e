"""Plan runs: which contiguous, folded entries of which streams become which files of one topic's table.

Pure: no clock, no store. `backlog.py` reads what is planned from.

1. Say whether a run is due: the oldest entry is old enough, or there is enough for a file, or a limit is reached.
2. Take entries, the oldest of all streams first, until the run is full.
3. Cut each stream's part into stretches: one bucket each, about a file's size at most, at entry boundaries.
4. Large stretches become files of their own; small ones of several streams share a file.

Must stay true: of every stream a run takes a gapless part that begins where the table ends; a file has one partition
value and at most one slice per stream; the same input gives the same plan.

An entry is planned whole, even if the log start lies inside of it: the index swaps whole entries, and the rows below
the log start are committed records like any other.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.index.rule import StalePlan
from headrace.index.values import IndexEntry
from headrace.model.extents import WalExtent
from headrace.model.ids import StreamId
from headrace.model.topics import TopicId
from headrace.pipeline.plans import FilePlan, RunPlan, Slice, WalPiece
from headrace.tables.format import Bucket, Partitioning

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """How large a file, a run and a job may become. Bytes are those of the WAL, before Parquet compresses them."""

    file_target_bytes: int = 256 * MIB
    file_min_bytes: int = 32 * MIB
    parallel_files: int = 1
    """How many tasks can write at once: a run that is too small for so many files of the target size is spread over
    smaller ones, of `file_min_bytes` at least."""
    file_max_slices: int = 500
    """Every slice has row groups of its own, and every row group makes a file's footer larger."""
    run_max_bytes: int = 1024 * MIB
    run_max_entries: int = 100_000
    run_max_files: int = 64
    round_max_topics: int = 200
    """How many topics are run before all others are looked at again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStream:
    """What is known of one stream: `after` is its end in the table, `None` before its first run.

    `entries` are the folded ones from `start_offset` on, in order; `has_more` says that reading stopped at a limit.
    """

    partition: int
    stream: StreamId
    after: int | None
    log_start: int
    entries: Sequence[IndexEntry]
    has_more: bool = False

    @property
    def start_offset(self) -> int:
        """The first offset that is wanted: the table's end, or the log start where that has gone further."""
        return self.log_start if self.after is None else max(self.after, self.log_start)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTopic:
    """What a run of one topic is planned from. `last_run_at_ms` is when it was last served, 0 if never.

    `waiting_bytes` is how much waits, where more is known of that than `entries` tell.
    """

    topic_id: TopicId
    topic_name: str
    partitioning: Partitioning
    target_lag_ms: int
    streams: Sequence[PlannedStream]
    last_run_at_ms: int = 0
    waiting_bytes: int = 0

    @property
    def oldest_append_ms(self) -> int | None:
        """When the oldest record that waits was appended; `None` if none waits."""
        return min((stream.entries[0].append_time_ms for stream in self.streams if stream.entries), default=None)


def is_due(topic: PlannedTopic, *, now_ms: int, limits: PlanLimits) -> bool:
    """Say whether a run is worth it now.

    At half of the target lag, so that the other half is left for the run itself. An append time that lies as far in
    the future counts alike: a broker's clock that is ahead must not keep records out of the table.
    """
    oldest_ms = topic.oldest_append_ms
    if oldest_ms is None:
        return False
    if abs(now_ms - oldest_ms) * 2 >= topic.target_lag_ms:
        return True
    if any(stream.has_more for stream in topic.streams):
        return True
    entries = [entry for stream in topic.streams for entry in stream.entries]
    size_bytes = max(topic.waiting_bytes, sum(_size_bytes(entry) for entry in entries))
    return size_bytes >= limits.file_target_bytes or len(entries) >= limits.run_max_entries


def choose_topics(topics: Iterable[PlannedTopic], *, now_ms: int, limits: PlanLimits) -> list[PlannedTopic]:
    """Return the topics whose runs are due, who waits longest first, at most `round_max_topics`.

    A topic waits since its target lag was reached, or since its last run where that was later. So one with a long
    backlog, which is always behind its target, takes its turn with the others and not before them.
    """

    def waits_since_ms(topic: PlannedTopic) -> int:
        assert topic.oldest_append_ms is not None, "what is due has an entry"
        return max(topic.oldest_append_ms + topic.target_lag_ms, topic.last_run_at_ms)

    due = [topic for topic in topics if is_due(topic, now_ms=now_ms, limits=limits)]
    due.sort(key=lambda topic: (waits_since_ms(topic), topic.topic_name, topic.topic_id))
    return due[: limits.round_max_topics]


def plan_run(topic: PlannedTopic, *, now_ms: int, limits: PlanLimits, force: bool = False) -> RunPlan | None:
    """Return the next run of a topic, or `None` if none is due; `force` asks for one whenever anything waits.

    Raises `StalePlan` if the entries are not what can be planned: a gap, or one that is in a table already.
    """
    for stream in topic.streams:
        _check(stream)
    if not force and not is_due(topic, now_ms=now_ms, limits=limits):
        return None
    taken = _oldest_first(topic.streams, limits)
    if not taken:
        return None
    file_bytes = _file_bytes([_size_bytes(entry) for _, entries in taken for entry in entries], limits)
    stretches = [
        stretch
        for stream, entries in taken
        for stretch in _stretches(stream, entries, topic.partitioning.bucket, file_bytes)
    ]
    packing = _Packing(topic.partitioning, limits, file_bytes)
    for stretch in sorted(stretches, key=lambda stretch: stretch.order):
        packing.place(stretch)
    files = tuple(file.plan(number) for number, file in enumerate(packing.files))
    ends: dict[int, int] = {}
    for slice_ in (slice_ for file in files for slice_ in file.slices):
        ends[slice_.partition] = max(ends.get(slice_.partition, 0), slice_.end_offset)
    after = {
        stream.partition: stream.after
        for stream in topic.streams
        if stream.after is not None and stream.partition in ends
    }
    return RunPlan(topic_id=topic.topic_id, topic_name=topic.topic_name, files=files, after=after, ends=ends)


def _check(stream: PlannedStream) -> None:
    """Raise `StalePlan` unless the entries go on from the table's end without a gap, and lie in the WAL."""
    at = stream.start_offset
    for number, entry in enumerate(stream.entries):
        is_first_cut = (
            number == 0
            and (stream.after is None or stream.after <= entry.start_offset)
            and (entry.start_offset <= at < entry.end_offset)
        )
        if not is_first_cut and entry.start_offset != at:
            raise StalePlan(
                f"partition {stream.partition} (stream {stream.stream}) has an entry at {entry.start_offset}–"
                f"{entry.end_offset} where one was to begin at {at}: plan again; if it stays, run `headrace table "
                "verify`"
            )
        if not isinstance(entry.extent, WalExtent):
            raise StalePlan(
                f"partition {stream.partition} (stream {stream.stream}) has offsets {entry.start_offset}–"
                f"{entry.end_offset} in a table file already, behind the table's end at {at}: plan again; if it "
                "stays, run `headrace table verify`"
            )
        at = entry.end_offset


def _size_bytes(entry: IndexEntry) -> int:
    return entry.extent.size_bytes if isinstance(entry.extent, WalExtent) else 0


def _file_bytes(entry_bytes: Sequence[int], limits: PlanLimits) -> int:
    """Return how large the files of a run become: the target, or less where that keeps more tasks busy.

    Files end at entry boundaries; an entry more of room, and what is left over needs no file of its own.
    """
    spread_bytes = -(-sum(entry_bytes) // limits.parallel_files) + max(entry_bytes)
    return min(limits.file_target_bytes, max(limits.file_min_bytes, spread_bytes))


def _oldest_first(
    streams: Sequence[PlannedStream], limits: PlanLimits
) -> list[tuple[PlannedStream, Sequence[IndexEntry]]]:
    """Return how much of each stream is taken: the oldest entries of all, as far as the run's limits reach.

    The first entry is taken whatever its size, so that a run always gets further.
    """
    taken = [0] * len(streams)
    ahead = [(stream.entries[0].append_time_ms, n) for n, stream in enumerate(streams) if stream.entries]
    heapq.heapify(ahead)
    size_bytes = entry_count = 0
    while ahead and entry_count < limits.run_max_entries:
        _, n = ahead[0]
        entries = streams[n].entries
        size_bytes += _size_bytes(entries[taken[n]])
        if entry_count and size_bytes > limits.run_max_bytes:
            break
        entry_count += 1
        taken[n] += 1
        if taken[n] < len(entries):
            heapq.heapreplace(ahead, (entries[taken[n]].append_time_ms, n))
        else:
            heapq.heappop(ahead)
    return [(stream, stream.entries[:count]) for stream, count in zip(streams, taken, strict=True) if count]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """A part of one stream that goes into one file. `order` sorts the oldest first, and each stream's by offset."""

    partition: int
    stream: StreamId
    bucket: int | None
    size_bytes: int
    order: tuple[int, int, int]
    pieces: tuple[WalPiece, ...]


def _stretches(
    stream: PlannedStream, entries: Sequence[IndexEntry], bucket: Bucket, file_bytes: int
) -> list[_Stretch]:
    """Cut a stream where the bucket changes and where a file is full. Clocks of brokers differ, so that append times
    may step back into an earlier bucket: that is a change like any other."""
    stretches: list[_Stretch] = []
    pieces: list[WalPiece] = []
    size_bytes = 0
    newest_ms = entries[0].append_time_ms

    def end_stretch() -> None:
        nonlocal size_bytes, newest_ms
        newest_ms = max(newest_ms, pieces[0].append_time_ms)
        stretches.append(
            _Stretch(
                partition=stream.partition,
                stream=stream.stream,
                bucket=bucket.of(pieces[0].append_time_ms),
                size_bytes=size_bytes,
                order=(newest_ms, stream.partition, len(stretches)),
                pieces=tuple(pieces),
            )
        )
        pieces.clear()
        size_bytes = 0

    for entry in entries:
        assert isinstance(entry.extent, WalExtent), "checked before"
        is_full = size_bytes + entry.extent.size_bytes > file_bytes
        if pieces and (is_full or bucket.of(pieces[0].append_time_ms) != bucket.of(entry.append_time_ms)):
            end_stretch()
        pieces.append(WalPiece(entry.start_offset, entry.end_offset, entry.append_time_ms, entry.extent))
        size_bytes += entry.extent.size_bytes
    end_stretch()
    return stretches


@dataclass(slots=True, kw_only=True)
class _File:
    """A file that is being filled."""

    bucket: int | None
    partition: int | None
    size_bytes: int = 0
    slices: dict[StreamId, Slice] = field(default_factory=dict)

    def add(self, stretch: _Stretch) -> None:
        self.slices[stretch.stream] = Slice(stretch.partition, stretch.stream, stretch.pieces)
        self.size_bytes += stretch.size_bytes

    def plan(self, number: int) -> FilePlan:
        slices = sorted(self.slices.values(), key=lambda slice_: slice_.partition)
        return FilePlan(number, self.bucket, self.partition, tuple(slices))


class _Packing:
    """Puts stretches into files, each into the first that has room for it. A stretch that finds none any more ends
    its stream for this run, so that no later one of it leaves a gap."""

    def __init__(self, partitioning: Partitioning, limits: PlanLimits, file_bytes: int) -> None:
        self._by_partition = partitioning.by_partition
        self._limits = limits
        self._file_bytes = file_bytes
        self._open: dict[tuple[int | None, int | None], list[_File]] = {}
        self._ended: set[StreamId] = set()
        self.files: list[_File] = []

    def place(self, stretch: _Stretch) -> None:
        if stretch.stream in self._ended:
            return
        partition = stretch.partition if self._by_partition else None
        is_small = stretch.size_bytes * 2 < self._file_bytes
        file = self._with_room(stretch, partition) if is_small else None
        if file is None:
            if len(self.files) >= self._limits.run_max_files:
                self._ended.add(stretch.stream)
                return
            file = _File(bucket=stretch.bucket, partition=partition)
            self.files.append(file)
            if is_small:
                self._open.setdefault((stretch.bucket, partition), []).append(file)
        file.add(stretch)

    def _with_room(self, stretch: _Stretch, partition: int | None) -> _File | None:
        for file in self._open.get((stretch.bucket, partition), ()):
            has_room = file.size_bytes + stretch.size_bytes <= self._file_bytes
            if has_room and len(file.slices) < self._limits.file_max_slices and stretch.stream not in file.slices:
                return file
        return None
