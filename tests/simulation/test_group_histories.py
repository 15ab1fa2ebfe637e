"""Some hundreds of histories of groups. A seed that fails here replays alone: `make simulate` tells how."""

from collections import Counter

import pytest

from headrace.runtime.crash_points import CrashPoint
from headrace.testing.simulation.groups.scenario import CRASH_POINTS, run_group_seed

SEEDS = 200
SEEDS_PER_TEST = 10
MOST_SEEDS_FOR_COVERAGE = 100


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_no_partition_has_two_owners_and_no_commit_is_lost(first: int) -> None:
    reports = [run_group_seed(seed) for seed in range(first, first + SEEDS_PER_TEST)]
    assert all(report.assignment_count > 0 for report in reports)
    assert sum(report.commit_count for report in reports) > 0 and sum(report.fetch_count for report in reports) > 0


def test_one_seed_is_one_history() -> None:
    first, again, other = run_group_seed(7), run_group_seed(7), run_group_seed(8)
    assert first == again
    assert first.digest != other.digest


def test_every_crash_point_of_groups_and_every_kind_of_group_comes_up() -> None:
    arrivals: Counter[CrashPoint] = Counter()
    groups: set[str] = set()
    for seed in range(10_000, 10_000 + MOST_SEEDS_FOR_COVERAGE):
        report = run_group_seed(seed)
        arrivals += report.crash_points
        groups |= set(report.groups)
        if set(arrivals) == set(CRASH_POINTS) and groups == {"classic", "consumer", "mixed"}:
            return
    pytest.fail(f"never happened: {set(CRASH_POINTS) - set(arrivals)}; groups: {groups}")
