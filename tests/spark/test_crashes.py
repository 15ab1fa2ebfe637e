"""A pipeline that is killed at any step, with the real Spark: the next one goes on, and every row is there once."""

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.runtime.crash_points import CrashPoint
from tests.servers.headrace import running_headrace
from tests.spark.pipelines import consumed, headrace, produce, run_pipeline, values_in_table

# The session of a process that was killed holds its leases until it times out.
SOON = "--set=broker.session.timeout.ms=3000"


@pytest.mark.parametrize(
    "points",
    [
        (CrashPoint.SAGA_AFTER_PLAN, CrashPoint.SAGA_AFTER_FILES, CrashPoint.SAGA_AFTER_WRITTEN),
        (CrashPoint.SAGA_AFTER_APPEND, CrashPoint.SAGA_AFTER_IN_TABLE, CrashPoint.SWAP_AFTER_STEP),
        (CrashPoint.SAGA_AFTER_SWAPPED, CrashPoint.SAGA_AFTER_DONE),
    ],
    ids=["before the table", "in the table", "after the swap"],
)
def test_a_pipeline_that_was_killed_is_continued_by_the_next(tmp_path: Path, points: Sequence[CrashPoint]) -> None:
    data, values = tmp_path / "data", []
    with running_headrace(data, settings={"num.partitions": "2"}) as broker:
        for number, point in enumerate(points):
            more = [b"%d-%d" % (number, count) for count in range(200)]
            produce(broker, "orders", more)
            values += more
            killed = run_pipeline(data, "--once", SOON, environment={"HEADRACE_CRASH_AT": point})
            assert killed.returncode == -signal.SIGKILL, killed.stderr
            assert consumed(broker, "orders") == sorted(values)
        ended = run_pipeline(data, "--once", SOON)
        assert ended.returncode == 0, ended.stderr
        assert values_in_table(data, "orders") == sorted(values)
        assert consumed(broker, "orders") == sorted(values)
    verified = headrace("table", "verify", "orders", f"--data-dir={data}")
    assert verified.returncode == 0, verified.stdout + verified.stderr
