"""Plan a round of one topic: which streams are scanned, and, once that is done, which files are written anew.

Pure. A file is written anew by itself, whole: rows of other streams in it are copied, those that the scans have
listed are left out. What becomes small that way is for merges to bring together.

Must stay true: a file that holds rows which the index does not name is *fixed*: it stays as it is. A stream counts as
cleaned only if everything that its scan has found obsolete goes with this round.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.model.extents import TableExtent
from headrace.model.ids import StreamId
from headrace.pipeline.compaction import CompactedStream, StreamPlan, choose_files, plan_stream
from headrace.pipeline.compaction_state import StreamRound
from headrace.pipeline.planner import MIB
from headrace.pipeline.rewrites import PlannedFile, Rewrite, RewritePlan, RewriteSlice, TablePiece
from headrace.pipeline.scans import ScanLimits, ScannedStream
from headrace.tables.format import TableFormat
from headrace.tables.port import ListedFile, TableListing
from headrace.topics.compaction import CompactionRules


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    """How much one round does."""

    scan: ScanLimits = field(default_factory=ScanLimits)
    max_streams: int = 64
    """How many partitions of a topic are scanned in a round: those with most dirt first."""
    max_bytes: int = 1024 * MIB
    """How much is written anew in a round, by the size of the files that go."""
    max_files: int = 64
    look_interval_ms: int = 15_000
    """How often a topic's index is looked at for something to compact, as Kafka's `log.cleaner.backoff.ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round: `streams` are scanned; `files` are those that may be written anew, with all that the index names."""

    streams: Sequence[StreamPlan]
    files: Mapping[str, ListedFile]
    slices: Mapping[str, Sequence[RewriteSlice]]
    formats: Mapping[int, TableFormat]

    @property
    def size_bytes(self) -> int:
        return sum(plan.dirty_bytes + plan.clean_bytes for plan in self.streams)


def is_any_due(streams: Sequence[CompactedStream], rules: CompactionRules, *, now_ms: int) -> bool:
    """Say whether a round is worth it now."""
    return any(plan_stream(stream, rules, now_ms=now_ms) is not None for stream in streams)


def plan_round(
    streams: Sequence[CompactedStream],
    listing: TableListing,
    rules: CompactionRules,
    *,
    now_ms: int,
    limits: CompactionLimits,
) -> Round | None:
    """Return the next round of a topic, or `None` if nothing is due. `streams` are all that it has."""
    slices = _slices(streams)
    files = {file.path: file for file in listing.files if _is_whole(file, slices.get(file.path, ()), listing)}
    fixed = set(slices) - set(files)
    plans = [plan_stream(stream, rules, now_ms=now_ms, fixed=fixed) for stream in streams]
    due = sorted((plan for plan in plans if plan is not None), key=lambda plan: (-plan.dirty_bytes, plan.partition))
    due = due[: limits.max_streams]
    if not due:
        return None
    return Round(streams=due, files=files, slices=slices, formats=listing.formats)


def plan_rewrite(
    round_: Round, scans: Sequence[ScannedStream], limits: CompactionLimits
) -> tuple[Rewrite | None, dict[int, StreamRound]]:
    """Return what is to be rewritten after the scans, `None` if nothing is, and what this means for each stream."""
    losses: dict[str, int] = {}
    for scan in scans:
        for path, count in scan.losses.items():
            losses[path] = losses.get(path, 0) + count
    sizes = {path: round_.files[path].size_bytes for path in losses}
    chosen = choose_files(losses, sizes, max_bytes=limits.max_bytes, max_files=limits.max_files)
    rounds = {
        plan.partition: StreamRound(scan.cleaned_to, scan.tombstones, plan.expired_to, scan.expired_left)
        for plan, scan in zip(round_.streams, scans, strict=True)
        if scan.is_whole and chosen >= scan.losses.keys()
    }
    if not chosen:
        return None, rounds
    lists = {scan.stream: scan.path for scan in scans if scan.path}
    inputs = sorted(chosen)
    rewrite = Rewrite(
        inputs=tuple(inputs),
        input_rows=sum(round_.files[path].row_count for path in inputs),
        input_bytes=sum(sizes[path] for path in inputs),
        files=tuple(_planned(number, path, round_, lists) for number, path in enumerate(inputs)),
    )
    return rewrite, rounds


def _planned(number: int, path: str, round_: Round, lists: Mapping[StreamId, str]) -> PlannedFile:
    listed, slices = round_.files[path], tuple(round_.slices[path])
    return PlannedFile(
        plan=RewritePlan(number, listed.bucket, listed.partition, slices),
        format=round_.formats[listed.spec_id],
        dropped={slice_.stream: lists[slice_.stream] for slice_ in slices if slice_.stream in lists},
    )


def _slices(streams: Sequence[CompactedStream]) -> dict[str, list[RewriteSlice]]:
    """Return what the index names of each file, stream by stream.

    Entries without rows, which earlier rounds have left, go with the file behind them: else there would be one more
    for every file that has ever been emptied.
    """
    pieces: dict[str, dict[StreamId, list[TablePiece]]] = {}
    partitions = {stream.stream: stream.partition for stream in streams}
    for stream in streams:
        ahead: list[TablePiece] = []
        for entry in stream.entries:
            files = entry.extent.files if isinstance(entry.extent, TableExtent) else ()
            for file in files:
                piece = TablePiece(entry.start_offset, entry.end_offset, file)
                pieces.setdefault(file.path, {}).setdefault(stream.stream, []).extend((*ahead, piece))
                ahead = []
            if files or not isinstance(entry.extent, TableExtent):
                ahead = []
            else:
                ahead.append(TablePiece(entry.start_offset, entry.end_offset, None))
    return {
        path: [RewriteSlice(partitions[stream], stream, tuple(found)) for stream, found in by_stream.items()]
        for path, by_stream in pieces.items()
    }


def _is_whole(listed: ListedFile, slices: Collection[RewriteSlice], listing: TableListing) -> bool:
    """Say whether a file can be written anew: the index names all of its rows, each once, and we know its format."""
    pieces = [piece for slice_ in slices for piece in slice_.pieces]
    if any(piece.file and piece.file.row_groups[0].first_offset < piece.start_offset for piece in pieces):
        return False  # its first group holds rows that were trimmed
    groups = [group for piece in pieces if piece.file for group in piece.file.row_groups]
    is_named_once = len({group.number for group in groups}) == len(groups)
    rows = sum(group.row_count for group in groups)
    return is_named_once and rows == listed.row_count and listed.spec_id in listing.formats
