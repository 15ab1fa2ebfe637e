"""Some histories of two weeks. A seed that fails here replays alone: `run_keeping_seed(seed)`."""

import pytest

from headrace.runtime.crash_points import CrashPoint
from headrace.testing.simulation.keeping import scenario
from headrace.testing.simulation.keeping.scenario import run_keeping_seed

SEEDS = 3
FORTNIGHT_SECONDS = 14 * 86_400
COMING_UP = (
    CrashPoint.RETAIN_AFTER_STEP,
    CrashPoint.TRIM_AFTER_STEP,
    CrashPoint.REPACK_AFTER_SWAPS,
    CrashPoint.COMPACTION_AFTER_SCAN,
    CrashPoint.KEEP_AFTER_EXPIRY,
    CrashPoint.COLLECT_AFTER_DELETE,
    CrashPoint.TIDY_AFTER_DELETE,
)
"""Where every job that keeps a log comes past."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_weeks_leave_what_retention_keeps_and_little_more(seed: int) -> None:
    report = run_keeping_seed(seed)
    assert report.virtual_seconds >= FORTNIGHT_SECONDS
    assert min(report.record_count, report.row_count, report.read_count, report.crash_count) > 0
    assert min(report.retained_count, report.compacted_count, report.merge_count, report.released_count) > 0
    assert all(report.crash_points[point] > 0 for point in COMING_UP)
    assert max(report.most_of_bounds.values()) <= 1


def test_one_seed_is_one_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "PERIODS", 1)
    assert run_keeping_seed(5) == run_keeping_seed(5)
