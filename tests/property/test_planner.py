"""The planner over random logs: gapless, complete, one partition value per file, within limits, always the same."""

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.planner import PlanLimits, PlannedStream, PlannedTopic, plan_run
from headrace.pipeline.plans import RunPlan, WalPiece
from headrace.tables.format import HOUR_MS, Bucket, Partitioning
from tests.unit.pipeline.planning import NOON_MS, entry, stream, topic

PARTITIONINGS = [Partitioning(bucket=bucket, by_partition=by) for bucket in Bucket for by in (False, True)]


@st.composite
def planned_streams(draw: st.DrawFn, partition: int) -> PlannedStream:
    """A log from some offset on, whose append times may step back, with the log start anywhere in its first entry."""
    first = draw(st.integers(0, 5))
    at, at_ms, found = first, NOON_MS, []
    for _ in range(draw(st.integers(0, 12))):
        end = at + draw(st.integers(1, 4))
        at_ms += draw(st.integers(-HOUR_MS, 2 * HOUR_MS))
        found.append(entry(at, end, size=draw(st.integers(1, 60)), at_ms=at_ms))
        at = end
    after = draw(st.sampled_from([None, first, max(0, first - 2)]))
    last_in_first = found[0].end_offset - 1 if found else first
    log_start = draw(st.integers(0, first)) if after == first else draw(st.integers(first, last_in_first))
    return stream(partition, found, after=after, log_start=log_start)


@st.composite
def planned_topics(draw: st.DrawFn) -> PlannedTopic:
    streams = [draw(planned_streams(partition)) for partition in range(draw(st.integers(0, 5)))]
    return topic(*streams, partitioning=draw(st.sampled_from(PARTITIONINGS)))


LIMITS = st.builds(
    PlanLimits,
    file_target_bytes=st.integers(1, 200),
    file_min_bytes=st.integers(1, 100),
    parallel_files=st.integers(1, 4),
    file_max_slices=st.integers(1, 4),
    run_max_bytes=st.integers(1, 2000),
    run_max_entries=st.integers(1, 70),
    run_max_files=st.integers(1, 40),
)


def pieces_of(plan: RunPlan, partition: int) -> list[WalPiece]:
    """Return all pieces of a partition, by offset."""
    slices = [one for file in plan.files for one in file.slices if one.partition == partition]
    return [piece for one in sorted(slices, key=lambda one: one.start_offset) for piece in one.pieces]


def as_pieces(stream: PlannedStream) -> list[WalPiece]:
    return [
        WalPiece(one.start_offset, one.end_offset, one.append_time_ms, one.extent)  # type: ignore[arg-type]
        for one in stream.entries
    ]


@given(planned_topics(), LIMITS)
def test_run_takes_of_every_stream_the_first_entries_without_gap_or_double(
    planned: PlannedTopic, limits: PlanLimits
) -> None:
    plan = plan_run(planned, now_ms=NOON_MS, limits=limits, force=True)
    if plan is None:
        assert not any(one.entries for one in planned.streams)
        return
    assert plan == plan_run(planned, now_ms=NOON_MS, limits=limits, force=True), "always the same"
    for one in planned.streams:
        taken = pieces_of(plan, one.partition)
        assert taken == as_pieces(one)[: len(taken)]
        assert plan.ends.get(one.partition) == (taken[-1].end_offset if taken else None)
        assert plan.after.get(one.partition) == (one.after if taken else None)


@given(planned_topics(), LIMITS)
def test_files_keep_to_one_partition_value_and_all_limits(planned: PlannedTopic, limits: PlanLimits) -> None:
    plan = plan_run(planned, now_ms=NOON_MS, limits=limits, force=True)
    if plan is None:
        return
    by = planned.partitioning
    all_pieces: list[WalPiece] = []
    for number, file in enumerate(plan.files):
        pieces = [piece for one in file.slices for piece in one.pieces]
        all_pieces += pieces
        assert file.number == number and pieces
        assert {by.bucket.of(piece.append_time_ms) for piece in pieces} == {file.bucket}
        assert {one.partition if by.by_partition else None for one in file.slices} == {file.partition}
        assert len({one.stream for one in file.slices}) == len(file.slices) <= limits.file_max_slices
        assert file.size_bytes <= limits.file_target_bytes or len(pieces) == 1
        assert all(_is_gapless(one.pieces) for one in file.slices)
    assert len(plan.files) <= limits.run_max_files
    assert len(all_pieces) <= limits.run_max_entries
    assert plan.size_bytes <= limits.run_max_bytes or len(all_pieces) == 1


def _is_gapless(pieces: Sequence[WalPiece]) -> bool:
    return all(left.end_offset == right.start_offset for left, right in itertools.pairwise(pieces))


@given(planned_topics())
def test_run_without_limits_takes_everything(planned: PlannedTopic) -> None:
    plan = plan_run(planned, now_ms=NOON_MS, limits=PlanLimits(run_max_files=1000), force=True)
    ends = {one.partition: one.entries[-1].end_offset for one in planned.streams if one.entries}
    assert ({} if plan is None else plan.ends) == ends


@given(planned_topics(), LIMITS)
def test_runs_one_after_the_other_reach_the_end(planned: PlannedTopic, limits: PlanLimits) -> None:
    """What one run leaves is what the next one is planned from; each one gets further."""
    left = sum(len(one.entries) for one in planned.streams)
    while (plan := plan_run(planned, now_ms=NOON_MS, limits=limits, force=True)) is not None:
        planned = topic(*(_behind(one, plan) for one in planned.streams), partitioning=planned.partitioning)
        still = sum(len(one.entries) for one in planned.streams)
        assert still < left
        left = still
    assert left == 0


def _behind(before: PlannedStream, plan: RunPlan) -> PlannedStream:
    end = plan.ends.get(before.partition)
    if end is None:
        return before
    rest = [one for one in before.entries if one.end_offset > end]
    return stream(before.partition, rest, after=end, log_start=before.log_start)
