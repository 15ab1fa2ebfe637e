"""Some histories of compaction. A seed that fails here replays alone: `make simulate` tells how."""

from collections import Counter

import pytest

from headrace.runtime.crash_points import CrashPoint
from headrace.testing.simulation.compaction.scenario import CRASH_POINTS, run_compaction_seed

SEEDS = 12
SEEDS_PER_TEST = 2
MOST_SEEDS_FOR_COVERAGE = 12


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_what_goes_had_to_go_and_the_latest_of_every_key_is_left(first: int) -> None:
    reports = [run_compaction_seed(seed) for seed in range(first, first + SEEDS_PER_TEST)]
    assert all(report.round_count > 0 for report in reports)
    assert sum(report.gone_count for report in reports) > 0 and sum(report.record_count for report in reports) > 0
    assert sum(report.read_count for report in reports) > 0
    assert sum(sum(report.crash_points.values()) for report in reports) > 0


def test_one_seed_is_one_history() -> None:
    assert run_compaction_seed(3) == run_compaction_seed(3)


def test_every_crash_point_of_a_round_comes_up() -> None:
    arrivals: Counter[CrashPoint] = Counter()
    for seed in range(10_000, 10_000 + MOST_SEEDS_FOR_COVERAGE):
        arrivals += run_compaction_seed(seed).crash_points
        assert set(arrivals) <= set(CRASH_POINTS), f"seed {seed} came past points that are not listed"
        if set(arrivals) == set(CRASH_POINTS):
            return
    pytest.fail(f"never happened: {set(CRASH_POINTS) - set(arrivals)}")
