"""Some dozens of histories of tables. A seed that fails here replays alone: `make simulate` tells how."""

from collections import Counter

import pytest

from headrace.runtime.crash_points import CrashPoint
from headrace.testing.simulation.tables.scenario import CRASH_POINTS, run_table_seed

SEEDS = 60
SEEDS_PER_TEST = 5
MOST_SEEDS_FOR_COVERAGE = 60


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_record_is_in_its_table_once_and_nothing_is_lost_or_left(first: int) -> None:
    reports = [run_table_seed(seed) for seed in range(first, first + SEEDS_PER_TEST)]
    assert all(report.commit_count > 0 for report in reports)
    assert sum(report.record_count for report in reports) > 0 and sum(report.row_count for report in reports) > 0
    assert sum(report.read_count for report in reports) > 0
    assert sum(report.held_back_count for report in reports) > 0, "no batch was held back"


def test_one_seed_is_one_history() -> None:
    first, again, other = run_table_seed(7), run_table_seed(7), run_table_seed(8)
    assert first == again
    assert first.digest != other.digest


def test_every_crash_point_of_a_run_comes_up_and_topics_are_created_again() -> None:
    arrivals: Counter[CrashPoint] = Counter()
    most_topics = merges = released = persons = 0
    for seed in range(10_000, 10_000 + MOST_SEEDS_FOR_COVERAGE):
        report = run_table_seed(seed)
        arrivals += report.crash_points
        most_topics = max(most_topics, report.topic_count)
        merges += report.merge_count
        released += report.released_count
        persons += report.person_count
        assert set(arrivals) <= set(CRASH_POINTS), f"seed {seed} came past points that are not listed"
        if set(arrivals) == set(CRASH_POINTS) and most_topics > 2 and min(merges, released, persons) > 2:
            return
    pytest.fail(
        f"never happened: {set(CRASH_POINTS) - set(arrivals)}; at most {most_topics} topics, {merges} merges,"
        f" {released} files released, {persons} changes of main"
    )
