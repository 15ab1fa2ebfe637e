"""Compaction by key with the real Spark: consumers see the latest, tables what they were asked for."""

import signal
from pathlib import Path

import pytest

from headrace.runtime.crash_points import CrashPoint
from tests.integration.tables.test_compaction import compacted, create, produce, read
from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.spark.pipelines import headrace, run_pipeline
from tests.spark.table_cluster import pyiceberg_rows, wait_until

pytestmark = [pytest.mark.timeout(600)]

# The session of a process that was killed holds its leases until it times out.
SOON = "--set=broker.session.timeout.ms=3000"

ROWS: list[tuple[bytes | None, bytes | None]] = [
    (b"k%d" % (number * 7 % 30), None if number % 13 == 0 else b"v%d" % number) for number in range(300)
]
TOPICS = ("history", "latest")


def test_compaction_from_end_to_end(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_headrace(data) as broker:
        for topic in TOPICS:
            create(broker.bootstrap, topic, headrace_table_compaction=topic)
            produce(broker.bootstrap, topic, ROWS[:200])
        killed = run_pipeline(
            data, "--once", SOON, environment={"HEADRACE_CRASH_AT": CrashPoint.COMPACTION_AFTER_SCAN}
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        for topic in TOPICS:
            produce(broker.bootstrap, topic, ROWS[200:], first=200)
        killed = run_pipeline(
            data,
            "--once",
            SOON,
            environment={"HEADRACE_CRASH_AT": f"{CrashPoint.SAGA_AFTER_IN_TABLE}:3"},
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        ended = run_pipeline(data, "--once", SOON)
        assert ended.returncode == 0, ended.stderr
        wait_until(lambda: is_compacted(broker), step=lambda: None)
        for topic in TOPICS:
            verified = headrace("table", "verify", topic, f"--data-dir={data}")
            assert verified.returncode == 0, verified.stdout + verified.stderr
        everything = [(offset, key, value) for offset, (key, value) in enumerate(ROWS)]
        assert shown(data, "history") == everything
        assert shown(data, "latest") == compacted(ROWS)


def is_compacted(broker: HeadraceProcess) -> bool:
    """Whether the broker has heard of it, and serves what is left."""
    return all(read(broker.bootstrap, topic) == (compacted(ROWS), len(ROWS)) for topic in TOPICS)


def shown(data: Path, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(row[1], row[5], row[6]) for row in pyiceberg_rows(data, topic)]
