"""The planner: when a run is due, what it takes, and which files it makes of that."""

import pytest

from headrace.index.rule import StalePlan
from headrace.index.values import IndexEntry
from headrace.model.extents import TableExtent
from headrace.pipeline.planner import PlanLimits, PlannedTopic, choose_topics, is_due, plan_run
from headrace.pipeline.plans import RunPlan
from headrace.tables.format import DAY_MS, HOUR_MS, Bucket, Partitioning
from tests.unit.pipeline.planning import NOON_MS, entries, entry, stream, topic

LIMITS = PlanLimits(file_target_bytes=1000, run_max_bytes=100_000, run_max_entries=1000, run_max_files=50)
MIDNIGHT_MS = 20_001 * DAY_MS


def forced(planned: PlannedTopic, limits: PlanLimits = LIMITS) -> RunPlan:
    plan = plan_run(planned, now_ms=NOON_MS, limits=limits, force=True)
    assert plan is not None
    return plan


def ranges(plan: RunPlan) -> list[list[tuple[int, int, int]]]:
    """Return partition, start and end of every slice, by file."""
    return [[(one.partition, one.start_offset, one.end_offset) for one in file.slices] for file in plan.files]


def test_run_is_due_at_half_of_the_target_lag() -> None:
    waiting = topic(stream(0, entries(1)), target_lag_ms=60_000)
    assert not is_due(waiting, now_ms=NOON_MS + 29_999, limits=LIMITS)
    assert is_due(waiting, now_ms=NOON_MS + 30_000, limits=LIMITS)


def test_clock_that_is_far_ahead_does_not_keep_records_out_of_the_table() -> None:
    waiting = topic(stream(0, entries(1, at_ms=NOON_MS + HOUR_MS)))
    assert is_due(waiting, now_ms=NOON_MS, limits=LIMITS)


def test_run_is_due_as_soon_as_a_file_can_be_filled_or_a_limit_is_reached() -> None:
    def due(*streams: int, has_more: bool = False) -> bool:
        waiting = topic(*(stream(n, entries(count), has_more=has_more) for n, count in enumerate(streams)))
        return is_due(waiting, now_ms=NOON_MS, limits=LIMITS)

    assert not due(5, 4)
    assert due(5, 5), "1,000 bytes of all streams are a file"
    assert due(1, has_more=True)
    few = PlanLimits(run_max_entries=3)
    assert is_due(topic(stream(0, entries(3))), now_ms=NOON_MS, limits=few)


def test_nothing_is_due_and_nothing_planned_where_nothing_waits() -> None:
    idle = topic(stream(0, [], after=10), stream(1, []))
    assert not is_due(idle, now_ms=NOON_MS, limits=LIMITS)
    assert plan_run(idle, now_ms=NOON_MS, limits=LIMITS, force=True) is None
    waiting = topic(stream(0, entries(1)))
    assert plan_run(waiting, now_ms=NOON_MS, limits=LIMITS) is None
    assert plan_run(waiting, now_ms=NOON_MS + 30_000, limits=LIMITS) is not None


def test_small_streams_share_a_file_and_large_ones_have_their_own() -> None:
    plan = forced(topic(stream(0, entries(2)), stream(1, entries(14)), stream(2, entries(3))))
    assert ranges(plan) == [[(0, 0, 20), (1, 100, 140), (2, 0, 30)], [(1, 0, 100)]]
    assert plan.ends == {0: 20, 1: 140, 2: 30}
    assert plan.after == {}


def test_vectors_name_only_partitions_of_the_run() -> None:
    plan = forced(
        topic(
            stream(0, entries(1, start=50), after=50),
            stream(1, [], after=70),
            stream(2, entries(1)),
        )
    )
    assert plan.after == {0: 50}
    assert plan.ends == {0: 60, 2: 10}


def test_file_is_cut_at_the_target_size_at_entry_boundaries() -> None:
    plan = forced(topic(stream(0, entries(5, size=400))))
    assert ranges(plan) == [[(0, 0, 20)], [(0, 20, 40)], [(0, 40, 50)]]


def test_entry_larger_than_a_file_is_a_file_of_its_own() -> None:
    found = [entry(0, 10), entry(10, 20, size=5000), entry(20, 30)]
    assert sorted(ranges(forced(topic(stream(0, found))))) == [[(0, 0, 10)], [(0, 10, 20)], [(0, 20, 30)]]


def test_file_is_cut_where_the_day_changes_also_when_clocks_step_back() -> None:
    times = [MIDNIGHT_MS - 2, MIDNIGHT_MS, MIDNIGHT_MS - 1, MIDNIGHT_MS + 1]
    found = [entry(n * 10, n * 10 + 10, at_ms=at_ms) for n, at_ms in enumerate(times)]
    plan = forced(topic(stream(0, found)))
    assert ranges(plan) == [[(0, 0, 10)], [(0, 10, 20)], [(0, 20, 30)], [(0, 30, 40)]]
    assert [file.bucket for file in plan.files] == [20_000, 20_001, 20_000, 20_001]


@pytest.mark.parametrize(
    ("partitioning", "values"),
    [
        (Partitioning(bucket=Bucket.DAY), [(20_000, None)]),
        (Partitioning(bucket=Bucket.HOUR), [(20_000 * 24 + 12, None), (20_000 * 24 + 13, None)]),
        (Partitioning(bucket=Bucket.NONE, by_partition=True), [(None, 0), (None, 1)]),
        (Partitioning(bucket=Bucket.DAY, by_partition=True), [(20_000, 0), (20_000, 1)]),
    ],
)
def test_file_has_one_partition_value(
    partitioning: Partitioning, values: list[tuple[int | None, int | None]]
) -> None:
    found = entries(2, step_ms=HOUR_MS)
    plan = forced(topic(stream(0, found), stream(1, found), partitioning=partitioning))
    assert [(file.bucket, file.partition) for file in plan.files] == values
    assert [file.number for file in plan.files] == list(range(len(values)))


def test_run_takes_the_oldest_entries_of_all_streams() -> None:
    limits = PlanLimits(run_max_entries=4)
    late, early = entries(9, at_ms=NOON_MS + 2), entries(9, at_ms=NOON_MS)
    plan = forced(topic(stream(0, late), stream(1, early)), limits)
    assert plan.ends == {0: 10, 1: 30}


def test_run_ends_at_its_bytes_but_always_takes_one_entry() -> None:
    limits = PlanLimits(run_max_bytes=250)
    assert forced(topic(stream(0, entries(9))), limits).ends == {0: 20}
    assert forced(topic(stream(0, entries(9, size=900))), limits).ends == {0: 10}


def test_run_ends_at_its_files_and_leaves_no_gap() -> None:
    limits = PlanLimits(file_target_bytes=1000, run_max_files=2)
    big = stream(0, entries(4, size=900))
    small = stream(1, entries(1, at_ms=NOON_MS + 2))
    plan = forced(topic(big, small), limits)
    assert len(plan.files) == 2
    assert plan.ends == {0: 20}


@pytest.mark.parametrize(
    ("entry_count", "sizes"), [(8, [500, 300]), (3, [200, 100]), (1, [100]), (22, [1000, 1000, 200])]
)
def test_small_run_is_spread_over_as_many_files_as_can_be_written_at_once(entry_count: int, sizes: list[int]) -> None:
    limits = PlanLimits(file_target_bytes=1000, file_min_bytes=150, parallel_files=2)
    plan = forced(topic(stream(0, entries(entry_count))), limits)
    assert [file.size_bytes for file in plan.files] == sizes


def test_file_has_a_limit_of_slices() -> None:
    limits = PlanLimits(file_max_slices=2)
    plan = forced(topic(*(stream(n, entries(1)) for n in range(5))), limits)
    assert [len(file.slices) for file in plan.files] == [2, 2, 1]


def test_first_run_begins_with_the_entry_that_holds_the_log_start() -> None:
    plan = forced(topic(stream(0, entries(2, start=40), log_start=45)))
    assert ranges(plan) == [[(0, 40, 60)]], "whole: the index swaps whole entries"


def test_run_goes_on_at_the_log_start_where_retention_was_faster() -> None:
    plan = forced(topic(stream(0, entries(2, start=40), after=20, log_start=45)))
    assert ranges(plan) == [[(0, 40, 60)]]
    assert (plan.after, plan.ends) == ({0: 20}, {0: 60}), "fenced by the vector that the table has"


@pytest.mark.parametrize(
    ("found", "after", "log_start"),
    [
        ([entry(10, 20)], None, 0),
        ([entry(0, 10), entry(20, 30)], None, 0),
        ([entry(0, 10), entry(5, 30)], None, 0),
        ([entry(5, 15)], 10, 0),
        ([entry(0, 10)], 10, 0),
        ([entry(15, 40)], 20, 30),
    ],
    ids=["late", "gap", "overlap", "across the table's end", "in the table", "across, behind log start"],
)
def test_entries_that_do_not_go_on_from_the_table_are_not_planned(
    found: list[IndexEntry], after: int | None, log_start: int
) -> None:
    broken = stream(3, found, after=after, log_start=log_start)
    with pytest.raises(StalePlan, match=r"partition 3 \(stream 103\)"):
        forced(topic(broken))


def test_entry_in_a_table_file_is_not_planned_again() -> None:
    with pytest.raises(StalePlan, match="10–20 in a table file already"):
        forced(topic(stream(0, [entry(0, 10), entry(10, 20, extent=TableExtent(()))])))


def test_topics_take_turns_and_who_waits_longest_is_first() -> None:
    def waiting(name: str, *, since_ms: int, lag_ms: int = 60_000, last_run_at_ms: int = 0) -> PlannedTopic:
        found = stream(0, entries(1, at_ms=since_ms))
        return topic(found, name=name, target_lag_ms=lag_ms, last_run_at_ms=last_run_at_ms)

    topics = [
        waiting("late", since_ms=NOON_MS - 70_000),
        waiting("later", since_ms=NOON_MS - 90_000),
        waiting("strict", since_ms=NOON_MS - 40_000, lag_ms=5_000),
        waiting("backlog", since_ms=NOON_MS - DAY_MS, last_run_at_ms=NOON_MS - 1),
        waiting("young", since_ms=NOON_MS - 1_000),
    ]
    order = [one.topic_name for one in choose_topics(topics, now_ms=NOON_MS, limits=LIMITS)]
    assert order == ["strict", "later", "late", "backlog"]
    two = PlanLimits(round_max_topics=2)
    assert [one.topic_name for one in choose_topics(topics, now_ms=NOON_MS, limits=two)] == ["strict", "later"]
