"""Some hundreds of histories. A seed that fails here replays alone: `make simulate` tells how."""

from collections import Counter

import pytest

from headrace.runtime.crash_points import CrashPoint
from headrace.testing.simulation.plan import FaultKind
from headrace.testing.simulation.scenario import SIMULATED_CRASH_POINTS, run_seed

SEEDS = 300
SEEDS_PER_TEST = 10
FIRST_SEED_FOR_COVERAGE = 10_064
MOST_SEEDS_FOR_COVERAGE = 200


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_no_promise_is_broken(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        report = run_seed(seed)
        assert report.record_count > 0 and report.read_count > 0, f"seed {seed} tested nothing"
        assert report.retained_count > 0, f"nothing expired in seed {seed}"


def test_one_seed_is_one_history() -> None:
    first, again, other = run_seed(7), run_seed(7), run_seed(8)
    assert first == again
    assert first.digest != other.digest


def test_every_fault_and_every_crash_point_comes_up() -> None:
    faults: Counter[FaultKind] = Counter()
    arrivals: Counter[CrashPoint] = Counter()
    for seed in range(FIRST_SEED_FOR_COVERAGE, FIRST_SEED_FOR_COVERAGE + MOST_SEEDS_FOR_COVERAGE):
        report = run_seed(seed)
        faults += report.faults
        arrivals += report.crash_points
        if set(faults) == set(FaultKind) and set(arrivals) == set(SIMULATED_CRASH_POINTS):
            return
    missing = [*(set(FaultKind) - set(faults)), *(set(SIMULATED_CRASH_POINTS) - set(arrivals))]
    pytest.fail(f"never happened in {MOST_SEEDS_FOR_COVERAGE} histories: {missing}")
