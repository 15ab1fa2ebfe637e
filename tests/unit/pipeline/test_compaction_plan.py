"""A round scans what is due, and rewrites only files that lose rows and that the index names whole."""

from headrace.index.values import IndexEntry
from headrace.model.extents import RowGroup, TableExtent, TableFile, WalExtent
from headrace.model.ids import ObjectId, StreamId
from headrace.pipeline.compaction import CompactedStream
from headrace.pipeline.compaction_plan import CompactionLimits, Round, plan_rewrite, plan_round
from headrace.pipeline.compaction_state import StreamCompaction, StreamRound
from headrace.pipeline.scans import ScannedStream
from headrace.tables.port import ListedFile, TableInfo, TableListing
from headrace.topics.compaction import CompactionRules
from tests.table_kit import table_format

RULES = CompactionRules(enable=True, dirty_ratio=0.0)
FORMAT = table_format()


def entry(path: str, start: int, end: int, *, number: int = 0) -> IndexEntry:
    group = RowGroup(number, start, 4 + 100 * number, 100, end - start, 0, 0)
    extent = TableExtent((TableFile(path, 1_000, 40, 0, (group,)),))
    return IndexEntry(start, end, end - start, end, 0, 0, 0, start, 0, 0, extent)


def stream(partition: int, *entries: IndexEntry, log_start: int = 0, cleaned_to: int = 0) -> CompactedStream:
    return CompactedStream(
        partition=partition,
        stream=StreamId(10 + partition),
        log_start=log_start,
        table_end=entries[-1].end_offset,
        entries=entries,
        state=StreamCompaction(cleaned_to),
    )


def listing(**row_counts: int) -> TableListing:
    files = [
        ListedFile(path=path, size_bytes=1_000, row_count=rows, bucket=3, partition=None, spec_id=FORMAT.spec_id)
        for path, rows in row_counts.items()
    ]
    info = TableInfo(identifier=("t",), uuid="u", location="l", data_prefix="d/", format=FORMAT, head=None)
    return TableListing(info=info, files=files, formats={FORMAT.spec_id: FORMAT})


def planned(*streams: CompactedStream, listed: TableListing, max_streams: int = 64) -> Round:
    round_ = plan_round(streams, listed, RULES, now_ms=0, limits=CompactionLimits(max_streams=max_streams))
    assert round_ is not None
    return round_


def scan(partition: int, *, cleaned_to: int, is_whole: bool = True, **losses: int) -> ScannedStream:
    path = f"list-{partition}" if losses else ""
    return ScannedStream(partition, StreamId(10 + partition), cleaned_to, is_whole, path, losses, 2)


SHARED = (
    stream(0, entry("a", 0, 10), entry("b", 10, 20)),
    stream(1, entry("b", 0, 5, number=1)),
)


def test_file_is_rewritten_whole_and_rows_of_others_are_copied() -> None:
    round_ = planned(*SHARED, listed=listing(a=10, b=15))
    assert [plan.partition for plan in round_.streams] == [0, 1]
    scans = [scan(0, cleaned_to=20, b=3), scan(1, cleaned_to=5)]
    rewrite, rounds = plan_rewrite(round_, scans, CompactionLimits())
    assert rewrite is not None
    assert (rewrite.inputs, rewrite.input_rows, rewrite.input_bytes) == (("b",), 15, 1_000)
    (file,) = rewrite.files
    assert [(part.stream, part.start_offset, part.end_offset) for part in file.plan.slices] == [
        (10, 10, 20),
        (11, 0, 5),
    ]
    assert (file.plan.bucket, file.dropped) == (3, {10: "list-0"})
    assert rounds == {0: StreamRound(20, 2), 1: StreamRound(5, 2)}


def test_entries_without_rows_go_with_the_file_behind_them() -> None:
    """Otherwise the index of a topic of few keys would have one more of them for every file that was emptied."""
    emptied = [IndexEntry(start, start + 5, 5, 0, 0, 0, 0, start, 0, 0, TableExtent(())) for start in (0, 5, 20, 35)]
    held = IndexEntry(25, 30, 5, 0, 0, 0, 0, 25, 0, 0, WalExtent(ObjectId("w-1"), 0, 10))
    known = stream(
        0, *emptied[:2], entry("a", 10, 20), emptied[2], held, entry("b", 30, 35), emptied[3], entry("c", 40, 45)
    )
    round_ = planned(known, listed=listing(a=10, b=5, c=5))
    rewrite, _ = plan_rewrite(round_, [scan(0, cleaned_to=45, a=3, b=5, c=1)], CompactionLimits())
    assert rewrite is not None
    ranges = [(part.start_offset, part.end_offset) for file in rewrite.files for part in file.plan.slices]
    assert ranges == [(0, 20), (30, 35), (35, 45)]  # those before a batch that was held back stay
    assert [piece.file is None for piece in rewrite.files[0].plan.slices[0].pieces] == [True, True, False]


def test_nothing_obsolete_needs_no_rewrite_and_counts_all_the_same() -> None:
    round_ = planned(SHARED[0], listed=listing(a=10, b=10))
    rewrite, rounds = plan_rewrite(round_, [scan(0, cleaned_to=20)], CompactionLimits())
    assert rewrite is None and rounds == {0: StreamRound(20, 2)}


def test_stream_whose_files_do_not_all_fit_is_not_called_clean() -> None:
    round_ = planned(SHARED[0], listed=listing(a=10, b=10))
    rewrite, rounds = plan_rewrite(round_, [scan(0, cleaned_to=20, a=9, b=1)], CompactionLimits(max_files=1))
    assert rewrite is not None and rewrite.inputs == ("a",)
    assert rounds == {}
    _, rounds = plan_rewrite(round_, [scan(0, cleaned_to=20, is_whole=False, a=9)], CompactionLimits())
    assert rounds == {}, "nor is one whose scan met a limit"


def test_file_of_which_the_index_names_a_part_is_fixed() -> None:
    round_ = planned(SHARED[0], listed=listing(a=10, b=15))
    assert set(round_.files) == {"a"}
    assert [range_.is_fixed for range_ in round_.streams[0].ranges] == [False, True]


def test_file_whose_first_group_begins_below_its_entry_is_fixed() -> None:
    cut = entry("a", 0, 10)
    group = RowGroup(0, 0, 4, 100, 10, 0, 0)
    assert isinstance(cut.extent, TableExtent)
    late = IndexEntry(4, 10, 6, 10, 0, 0, 0, 4, 0, 0, TableExtent((TableFile("a", 1_000, 40, 0, (group,)),)))
    round_ = planned(stream(0, late, log_start=4), listed=listing(a=10))
    assert round_.streams[0].ranges[0].is_fixed


def test_partitions_with_most_dirt_come_first_and_a_round_takes_so_many() -> None:
    large = stream(1, entry("b", 0, 10), entry("c", 10, 20))
    round_ = planned(stream(0, entry("a", 0, 10)), large, listed=listing(a=10, b=10, c=10), max_streams=1)
    assert [plan.partition for plan in round_.streams] == [1]
    none = plan_round([large], listing(b=10, c=10), RULES, now_ms=0, limits=CompactionLimits(max_streams=0))
    assert none is None
