"""Plan merges: which small files of a topic's table become which larger ones.

Pure: no clock, no store. `named_files.py` reads what is planned from.

1. Take the files that are small, that the branch has, and of which the index names every row.
2. Line them up by age per partition value, and cut the line where two files do not follow each other in some stream.
3. Choose windows of the line: what fills a file; else, if enough files are there, the window with the most of them
   that is at least twice as large as its largest file. In a bucket that is over: everything.
4. Make of each window a file, or several where it has too many streams.

Must stay true: files are taken whole, and of every stream a window is a range without a gap, but for batches that
were held back. A row is written again only into a file of at least half the target size, or of at least twice the
size of the one it was in, or once when its bucket is over: so it is written O(log n) times.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.model.ids import StreamId
from headrace.pipeline.named_files import NamedFiles, NamedStream
from headrace.pipeline.rewrites import PlannedFile, Rewrite, RewritePlan, RewriteSlice, TablePiece
from headrace.tables.port import ListedFile, TableListing

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLimits:
    """What is small, when merging is worth it, and how much one merge takes. Bytes are those of Parquet files."""

    file_target_bytes: int = 256 * MIB
    min_files: int = 8
    max_bytes: int = 512 * MIB
    max_files: int = 1_000
    file_max_slices: int = 500

    @property
    def small_bytes(self) -> int:
        """A file below this size is small."""
        return self.file_target_bytes // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """What is to be merged now, if anything; `has_more` says that a limit left something for the next time."""

    rewrite: Rewrite | None
    has_more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A small file: where it stands in the order of each stream's files."""

    file: ListedFile
    append_time_ms: int
    positions: Mapping[StreamId, int]


def plan_merge(named: NamedFiles, listing: TableListing, *, now_ms: int, limits: MergeLimits) -> MergePlan:
    """Choose what to merge. The same input gives the same plan."""
    windows: list[list[_Candidate]] = []
    for line in _lines(_candidates(named, listing, limits)):
        bucket = line[0].file.bucket
        now_bucket = listing.formats[line[0].file.spec_id].partitioning.bucket.of(now_ms)
        is_over = bucket is not None and now_bucket is not None and bucket < now_bucket
        sizes = [candidate.file.size_bytes for candidate in line]
        windows += [line[one.start : one.stop] for one in choose_windows(sizes, is_over=is_over, limits=limits)]
    if not windows:
        return MergePlan(rewrite=None, has_more=not named.is_whole)
    count = within_limits([[candidate.file for candidate in window] for window in windows], limits)
    taken, has_more = windows[:count], count < len(windows)
    streams = {stream.stream: stream for stream in named.streams}
    files: list[PlannedFile] = []
    for window in taken:
        files += _planned_files(window, streams, listing, first_number=len(files), limits=limits)
    rewrite = rewrite_of([candidate.file for window in taken for candidate in window], files)
    return MergePlan(rewrite=rewrite, has_more=has_more or not named.is_whole)


def rewrite_of(inputs: Sequence[ListedFile], files: Sequence[PlannedFile] = ()) -> Rewrite:
    """Return what makes files of others, or lets them go."""
    return Rewrite(
        inputs=tuple(file.path for file in inputs),
        input_rows=sum(file.row_count for file in inputs),
        input_bytes=sum(file.size_bytes for file in inputs),
        files=tuple(files),
    )


def _candidates(named: NamedFiles, listing: TableListing, limits: MergeLimits) -> list[_Candidate]:
    """Return the small files that can be rewritten, whole."""
    small = {file.path: file for file in listing.files if file.size_bytes < limits.small_bytes}
    positions: dict[str, dict[StreamId, int]] = {}
    rows: dict[str, dict[int, int]] = {}
    newest: dict[str, int] = {}
    unfit: set[str] = set()
    for stream in named.streams:
        position, last_path, reached = -1, None, None
        for entry in stream.entries:
            if reached is not None and entry.start_offset != reached:
                # Below the log start the index may have holes: what lies on both sides is about to be trimmed.
                position, last_path = position + 1, None
            reached = entry.end_offset
            if len(entry.paths) > 1 or (entry.paths and entry.piece is None):
                unfit.update(entry.paths)
            for path in entry.paths:
                if path != last_path:
                    position, last_path = position + 1, path
                    if stream.stream in positions.setdefault(path, {}):
                        unfit.add(path)  # another file lies between its rows
                    positions[path][stream.stream] = position
                newest[path] = max(newest.get(path, 0), entry.append_time_ms)
            if entry.piece is not None and entry.piece.file is not None:
                found = rows.setdefault(entry.piece.file.path, {})
                found.update((group.number, group.row_count) for group in entry.piece.file.row_groups)
    return [
        _Candidate(file=file, append_time_ms=newest[path], positions=positions[path])
        for path, file in small.items()
        if path in positions
        and path not in unfit
        and file.spec_id in listing.formats
        and sum(rows.get(path, {}).values()) == file.row_count
    ]


def _lines(candidates: Sequence[_Candidate]) -> Iterator[list[_Candidate]]:
    """Line candidates up, oldest first, in lines of one partition value that follow each other in every stream."""
    by_value: dict[tuple[int, int | None, int | None], list[_Candidate]] = {}
    for candidate in candidates:
        file = candidate.file
        by_value.setdefault((file.spec_id, file.bucket, file.partition), []).append(candidate)
    for _, found in sorted(by_value.items(), key=lambda item: repr(item[0])):
        line: list[_Candidate] = []
        reached: dict[StreamId, int] = {}
        for candidate in sorted(found, key=lambda one: (one.append_time_ms, min(one.positions.items()))):
            follows = all(
                stream not in reached or reached[stream] + 1 == position
                for stream, position in candidate.positions.items()
            )
            if line and not follows:
                yield line
                line, reached = [], {}
            line.append(candidate)
            reached.update(candidate.positions)
        if line:
            yield line


def choose_windows(sizes: Sequence[int], *, is_over: bool, limits: MergeLimits) -> list[range]:
    """Return the windows of a line of files that are to be merged, each into about one file."""
    windows: list[range] = []
    first = size_bytes = 0
    for position, file_bytes in enumerate(sizes):
        is_full = size_bytes + file_bytes > limits.file_target_bytes
        if position > first and (is_full or position - first >= limits.max_files):
            windows.append(range(first, position))  # more than half of the target, as every file is below half
            first, size_bytes = position, 0
        size_bytes += file_bytes
    if is_over or 4 * size_bytes >= 3 * limits.file_target_bytes:
        windows.append(range(first, len(sizes)))
    else:
        windows += _tiered(sizes, first, limits)
    return [one for one in windows if len(one) > 1]


def _tiered(sizes: Sequence[int], start: int, limits: MergeLimits) -> list[range]:
    """Return the window from `start` on with the most files that is worth it: at least twice its largest file."""
    best = range(0)
    for first in range(start, len(sizes)):
        size_bytes = largest_bytes = 0
        for end in range(first + 1, len(sizes) + 1):
            size_bytes += sizes[end - 1]
            largest_bytes = max(largest_bytes, sizes[end - 1])
            count = end - first
            if count >= limits.min_files and size_bytes >= 2 * largest_bytes and count > len(best):
                best = range(first, end)
    return [best] if best else []


def within_limits(windows: Sequence[Sequence[ListedFile]], limits: MergeLimits) -> int:
    """Say how many of the windows one merge may hold: at least one, if there is any."""
    size_bytes = file_count = 0
    for number, window in enumerate(windows):
        size_bytes += sum(file.size_bytes for file in window)
        file_count += len(window)
        if number and (size_bytes > limits.max_bytes or file_count > limits.max_files):
            return number
    return len(windows)


def _planned_files(
    window: Sequence[_Candidate],
    streams: Mapping[StreamId, NamedStream],
    listing: TableListing,
    *,
    first_number: int,
    limits: MergeLimits,
) -> list[PlannedFile]:
    """Make files of a window: one, or several where it has more streams than a file may hold."""
    file = window[0].file
    paths = {candidate.file.path for candidate in window}
    wanted = sorted({stream for candidate in window for stream in candidate.positions})
    slices = sorted((slice_of(streams[stream], paths) for stream in wanted), key=lambda one: one.partition)
    count = limits.file_max_slices
    return [
        PlannedFile(
            plan=RewritePlan(
                first_number + number, file.bucket, file.partition, tuple(slices[first : first + count])
            ),
            format=listing.formats[file.spec_id],
        )
        for number, first in enumerate(range(0, len(slices), count))
    ]


def slice_of(stream: NamedStream, paths: set[str] | frozenset[str]) -> RewriteSlice:
    """Return the range of a stream that files hold: their entries, and those without rows between and behind them."""
    pieces: list[TablePiece] = []
    ahead: list[TablePiece] = []
    for entry in stream.entries:
        piece = entry.piece
        if piece is not None and piece.file is not None and piece.file.path in paths:
            pieces += [*ahead, piece]
            ahead = []
        elif pieces and piece is not None and piece.file is None and not entry.paths:
            ahead.append(piece)
        elif pieces and entry.paths:
            break
    # Entries without rows that follow at once go with the last file; those behind a held-back batch stay.
    for piece in ahead:
        if piece.start_offset != pieces[-1].end_offset:
            break
        pieces.append(piece)
    return RewriteSlice(stream.partition, stream.stream, tuple(pieces))
