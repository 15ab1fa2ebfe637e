"""Which small files become larger ones, and which are left alone."""

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.model.extents import RowGroup, TableFile
from headrace.model.ids import StreamId
from headrace.pipeline.merging import MergeLimits, MergePlan, plan_merge
from headrace.pipeline.named_files import NamedEntry, NamedFiles, NamedStream
from headrace.pipeline.rewrites import TablePiece
from headrace.tables.format import DAY_MS, Bucket, Partitioning, TableFormat
from headrace.tables.port import ListedFile, TableInfo, TableListing

DAY = 20_000
LIMITS = MergeLimits(file_target_bytes=1_000, min_files=4, max_bytes=100_000, max_files=500)
FORMAT = TableFormat(field_ids={}, schema_id=0, spec_id=0, partitioning=Partitioning(bucket=Bucket.DAY))
INFO = TableInfo(identifier=("t",), uuid="u", location="l", data_prefix="p/", format=FORMAT, head=None)


@dataclass
class Log:
    """An index and a branch, made of runs; a merge that was planned can be carried out."""

    streams: int = 1
    entries: dict[int, list[NamedEntry]] = field(default_factory=dict)
    files: dict[str, ListedFile] = field(default_factory=dict)
    made: int = 0

    def run(self, *streams: int, size: int = 10, rows: int = 5, day: int = DAY) -> str:
        """Add a file with rows of some streams."""
        path = f"file-{self.made:05d}"
        for number, stream in enumerate(streams):
            start = self.end(stream)
            group = RowGroup(number, start, 4 + number, 1, rows, 0, 0)
            self.put(stream, start, start + rows, TableFile(path, size, 1, 0, (group,)), day=day)
        self.files[path] = ListedFile(
            path=path, size_bytes=size, row_count=rows * len(streams), bucket=day, partition=None, spec_id=0
        )
        self.made += 1
        return path

    def hold_back(self, stream: int, *, is_wal: bool = True) -> None:
        """Add a batch that stays in the WAL, or one without rows."""
        start = self.end(stream)
        piece = None if is_wal else TablePiece(start, start + 1, None)
        entry = NamedEntry(
            start_offset=start, end_offset=start + 1, append_time_ms=0, is_wal=is_wal, paths=(), piece=piece
        )
        self.entries.setdefault(stream, []).append(entry)

    def put(self, stream: int, start: int, end: int, file: TableFile, *, day: int = DAY) -> None:
        self.entries.setdefault(stream, []).append(
            NamedEntry(
                start_offset=start,
                end_offset=end,
                append_time_ms=day * DAY_MS + self.made,
                is_wal=False,
                paths=(file.path,),
                piece=TablePiece(start, end, file) if file.size_bytes < LIMITS.small_bytes else None,
            )
        )

    def end(self, stream: int) -> int:
        return self.entries[stream][-1].end_offset if self.entries.get(stream) else 0

    def plan(self, *, now_day: int = DAY, limits: MergeLimits = LIMITS) -> MergePlan:
        named = NamedFiles(
            streams=[
                NamedStream(partition=s, stream=StreamId(s), log_start=0, entries=found, is_trimmed=True)
                for s, found in sorted(self.entries.items())
            ]
        )
        listing = TableListing(info=INFO, files=list(self.files.values()), formats={0: FORMAT})
        return plan_merge(named, listing, now_ms=now_day * DAY_MS + 1, limits=limits)

    def merge(self, plan: MergePlan) -> None:
        """Carry a plan out: what the task and the swap make of it."""
        assert plan.rewrite is not None
        for planned in plan.rewrite.files:
            path = f"merged-{self.made:05d}"
            inputs = planned.plan.inputs
            groups = 0
            for part in planned.plan.slices:
                stream = int(part.stream)
                inside = [e for e in self.entries[stream] if part.start_offset <= e.start_offset < part.end_offset]
                assert all(set(e.paths) <= set(inputs) for e in inside), "no other file lies in a slice"
                first = self.entries[stream].index(inside[0])
                del self.entries[stream][first : first + len(inside)]
                made: list[NamedEntry] = []
                size = sum(self.files[one].size_bytes for one in inputs)
                rows = 0
                for entry in inside:
                    if entry.is_wal:
                        made.append(entry)
                        continue
                    grows = bool(made) and not made[-1].is_wal
                    start = made.pop().start_offset if grows else entry.start_offset
                    rows = rows_of(entry) + (rows if grows else 0)
                    groups += not grows  # no row group reaches over a batch that was held back
                    group = RowGroup(groups, start, 0, 1, rows, 0, 0)
                    piece = TablePiece(start, entry.end_offset, TableFile(path, size, 1, 0, (group,)))
                    made.append(
                        NamedEntry(
                            start_offset=start,
                            end_offset=entry.end_offset,
                            append_time_ms=entry.append_time_ms,
                            is_wal=False,
                            paths=(path,),
                            piece=piece if size < LIMITS.small_bytes else None,
                        )
                    )
                self.entries[stream][first:first] = made
            wanted = [self.files[one] for one in inputs]
            self.files[path] = ListedFile(
                path=path,
                size_bytes=sum(one.size_bytes for one in wanted),
                row_count=sum(
                    p.row_count for s in planned.plan.slices for q in s.pieces if q.file for p in q.file.row_groups
                ),
                bucket=planned.plan.bucket,
                partition=None,
                spec_id=0,
            )
            self.made += 1
        for one in plan.rewrite.inputs:
            del self.files[one]

    def covered(self) -> dict[int, list[int]]:
        return {
            stream: [offset for e in found for offset in range(e.start_offset, e.end_offset)]
            for stream, found in self.entries.items()
        }


def rows_of(entry: NamedEntry) -> int:
    assert entry.piece is not None, "only what can be rewritten is"
    return 0 if entry.piece.file is None else sum(group.row_count for group in entry.piece.file.row_groups)


def paths(plan: MergePlan) -> list[str]:
    return [] if plan.rewrite is None else list(plan.rewrite.inputs)


def test_a_few_small_files_wait_until_there_are_enough() -> None:
    log = Log()
    for _ in range(3):
        log.run(0)
    assert paths(log.plan()) == []
    log.run(0)
    assert paths(log.plan()) == ["file-00000", "file-00001", "file-00002", "file-00003"]


def test_a_bucket_that_is_over_is_merged_down_however_few_there_are() -> None:
    log = Log()
    for _ in range(2):
        log.run(0)
    assert paths(log.plan(now_day=DAY + 1)) == ["file-00000", "file-00001"]
    log.merge(log.plan(now_day=DAY + 1))
    assert paths(log.plan(now_day=DAY + 1)) == [], "once is enough"


def test_what_fills_a_file_is_merged_at_once() -> None:
    log = Log()
    for _ in range(2):
        log.run(0, size=450)
    assert len(paths(log.plan())) == 2


def test_a_large_file_is_not_written_again_for_some_small_ones() -> None:
    log = Log()
    log.run(0, size=400)
    for _ in range(4):
        log.run(0, size=10)
    assert paths(log.plan()) == [f"file-{n:05d}" for n in range(1, 5)]


def test_files_of_two_days_are_never_merged() -> None:
    log = Log()
    for day in (DAY, DAY, DAY + 1, DAY + 1):
        log.run(0, day=day)
    plan = log.plan(now_day=DAY + 2)
    assert plan.rewrite is not None
    assert [file.plan.bucket for file in plan.rewrite.files] == [DAY, DAY + 1]


def test_a_large_file_between_small_ones_keeps_them_apart() -> None:
    log = Log()
    for size in (10, 10, 800, 10, 10):
        log.run(0, size=size)
    plan = log.plan(now_day=DAY + 1)
    assert plan.rewrite is not None
    assert [sorted(file.plan.inputs) for file in plan.rewrite.files] == [
        ["file-00000", "file-00001"],
        ["file-00003", "file-00004"],
    ]


def test_a_held_back_batch_and_an_empty_entry_lie_inside_of_a_slice() -> None:
    log = Log()
    log.run(0)
    log.hold_back(0)
    log.run(0)
    log.hold_back(0, is_wal=False)
    plan = log.plan(now_day=DAY + 1)
    assert plan.rewrite is not None
    (slice_,) = plan.rewrite.files[0].plan.slices
    assert [(piece.start_offset, piece.end_offset, piece.file is None) for piece in slice_.pieces] == [
        (0, 5, False),
        (6, 11, False),
        (11, 12, True),
    ]


def test_a_file_of_which_the_log_has_forgotten_rows_is_left_alone() -> None:
    log = Log()
    log.run(0, 1)
    log.run(0, 1)
    log.entries[1].pop(0)
    assert paths(log.plan(now_day=DAY + 1)) == []


def test_a_hole_in_the_index_keeps_files_apart() -> None:
    log = Log()
    log.run(0)
    log.hold_back(0)
    log.run(0)
    del log.entries[0][1]  # retention has overtaken it before it was folded
    assert paths(log.plan(now_day=DAY + 1)) == []


def test_one_merge_takes_no_more_than_its_limits() -> None:
    log = Log()
    for day in range(3):
        for _ in range(3):
            log.run(0, day=DAY + day, size=100)
    limits = MergeLimits(file_target_bytes=1_000, min_files=4, max_bytes=700)
    plan = log.plan(now_day=DAY + 5, limits=limits)
    assert len(paths(plan)) == 6
    assert plan.has_more


def test_a_window_of_many_streams_becomes_several_files() -> None:
    log = Log()
    for _ in range(4):
        log.run(*range(5))
    limits = MergeLimits(file_target_bytes=1_000, min_files=4, file_max_slices=2)
    plan = log.plan(limits=limits)
    assert plan.rewrite is not None
    assert [len(file.plan.slices) for file in plan.rewrite.files] == [2, 2, 1]


RUNS = st.lists(
    st.one_of(
        st.tuples(
            st.just("run"),
            st.sets(st.integers(0, 3), min_size=1),
            st.one_of(st.integers(1, 30), st.integers(1, 900)),
        ),
        st.tuples(st.sampled_from(["wal", "empty"]), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("day"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@example([("run", {0}, 1)] * 2 + [("wal", 0, 0)] + [("run", {0}, 1)] * 3 + [("day", 0, 0)])
@given(RUNS)
def test_whatever_runs_there_were_merging_covers_the_same_offsets_once(events: list[tuple[str, object, int]]) -> None:
    log, day = Log(), DAY
    for kind, what, size in events:
        if kind == "run":
            assert isinstance(what, set)
            log.run(*sorted(what), size=size, day=day)
        elif kind == "day":
            day += 1
        else:
            assert isinstance(what, int)
            log.hold_back(what, is_wal=kind == "wal")
        before = log.covered()
        rows = sum(file.row_count for file in log.files.values())
        plan = log.plan(now_day=day)
        if plan.rewrite is not None:
            assert len(plan.rewrite.inputs) == len(set(plan.rewrite.inputs)) > len(plan.rewrite.files)
            log.merge(plan)
        assert log.covered() == before
        assert sum(file.row_count for file in log.files.values()) == rows


def test_files_stay_in_proportion_to_bytes_and_rows_are_written_few_times() -> None:
    log = Log()
    written = 0
    for _ in range(2_000):
        log.run(0, size=1)
        plan = log.plan()
        if plan.rewrite is not None:
            written += plan.rewrite.input_bytes
            log.merge(plan)
    assert len(log.files) <= 2 * 2_000 // LIMITS.file_target_bytes + 2 * 10
    assert written <= 2_000 * 11, "log2 of the target size, and once more"
