"""A stream whose driver is killed again and again: every record once, with exactly the offsets of its checkpoint."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.servers.headrace import running_headrace
from tests.spark.pipelines import produce
from tests.spark.table_cluster import run_pipeline_here

pytestmark = [pytest.mark.timeout(900)]

LIMIT_SECONDS = 300.0
STOP_SECONDS = 60.0
ROOT = Path(__file__).parents[2]
COUNT = 300


@contextmanager
def running_driver(data_dir: Path, directory: Path) -> Iterator["queue.SimpleQueue[str | None]"]:
    """Start a driver, yield the lines that it tells, and kill it with its Java and all its workers, at any moment."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.stream_driver", str(data_dir), "orders", str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def collect() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line.strip())
        lines.put(None)
        process.stdout.close()

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)
        reader.join(STOP_SECONDS)


def wait_for(lines: "queue.SimpleQueue[str | None]", wanted: str, *, times: int = 1) -> None:
    while times:
        line = lines.get(timeout=LIMIT_SECONDS)
        assert line is not None, "the driver has ended by itself"
        times -= line.startswith(wanted)


def test_a_driver_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    data_dir, directory = tmp_path / "data", tmp_path / "stream"
    values = [b"value %d" % number for number in range(COUNT)]
    with running_headrace(data_dir, settings={"num.partitions": "2"}) as broker:
        produce(broker, "orders", values[:200])
        with running_driver(data_dir, directory) as lines:
            wait_for(lines, "batch", times=3)
        # What the checkpoint has planned from the log lies in the table when the next driver comes.
        assert run_pipeline_here(data_dir).problems == {}
        produce(broker, "orders", values[200:])
    with running_driver(data_dir, directory) as lines:
        wait_for(lines, "all")
    committed = rows_of_log(directory / "kept")
    assert sorted(row["value"] for row in committed) == sorted(values)
    places = [(row["partition"], row["offset"]) for row in committed]
    assert len(set(places)) == len(places) == COUNT


def rows_of_log(directory: Path) -> list[dict[str, Any]]:
    """Return the rows of the files that Spark's own log of committed batches names: others are of killed attempts."""
    named: set[str] = set()
    for entry in (directory / "_spark_metadata").iterdir():
        if entry.name.partition(".")[0].isdigit():
            for line in entry.read_text().splitlines()[1:]:
                named.add(Path(json.loads(line)["path"].removeprefix("file://")).name)
    return [row for name in sorted(named) for row in pq.read_table(directory / name).to_pylist()]
