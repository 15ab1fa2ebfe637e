"""Two pipelines at once, one of them paused for longer than its session lives, and a catalog that is away."""

import signal
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.servers.headrace import running_headrace
from tests.servers.pausing import stop_process
from tests.spark.pipelines import (
    LIMIT_SECONDS,
    consumed,
    create_fresh_topic,
    headrace,
    produce,
    run_pipeline,
    start_pipeline,
    values_in_table,
)

SESSION_SECONDS = 3
SOON = (f"--set=broker.session.timeout.ms={SESSION_SECONDS}000", "--set=pipeline.interval.ms=200")


def test_two_pipelines_of_which_one_is_paused_bring_every_record_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_headrace(data) as broker:
        create_fresh_topic(broker, "orders")
        pipelines = [start_pipeline(data, "--loop", *SOON) for _ in range(2)]
        try:
            expected: list[bytes] = []
            for number in range(3):
                more = [b"%d-%d" % (number, count) for count in range(100)]
                expected += more
                produce(broker, "orders", more)
                sleeper = pipelines[number % 2]
                stop_process(sleeper, data / "meta.db")
                time.sleep(SESSION_SECONDS + 1)  # so long that its session is gone: that is the case to be shown
                produce(broker, "orders", [b"paused-%d" % number])
                expected.append(b"paused-%d" % number)
                sleeper.send_signal(signal.SIGCONT)
                wait_for(partial(has_rows, data, "orders", len(expected)))
        finally:
            for pipeline in pipelines:
                pipeline.send_signal(signal.SIGCONT)
                pipeline.terminate()
            for pipeline in pipelines:
                pipeline.communicate(timeout=LIMIT_SECONDS)
        assert values_in_table(data, "orders") == sorted(expected)
        assert consumed(broker, "orders") == sorted(expected)
        verified = headrace("table", "verify", "orders", f"--data-dir={data}")
        assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_catalog_that_is_away_holds_up_nobody_but_the_table(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_headrace(data) as broker:
        produce(broker, "orders", [b"a"])
        assert run_pipeline(data, "--once", *SOON).returncode == 0
        produce(broker, "orders", [b"b"])
        locked = sqlite3.connect(data / "catalog.db", isolation_level=None)
        try:
            locked.execute("begin exclusive")
            ended = run_pipeline(data, "--once", *SOON)
            assert ended.returncode == 1
            assert "orders" in ended.stderr and "locked" in ended.stderr, ended.stderr
            produce(broker, "orders", [b"c"])
            assert consumed(broker, "orders") == [b"a", b"b", b"c"]
        finally:
            locked.close()
        ended = run_pipeline(data, "--once", *SOON)
        assert ended.returncode == 0, ended.stderr
        assert values_in_table(data, "orders") == [b"a", b"b", b"c"]
    verified = headrace("table", "verify", "orders", f"--data-dir={data}")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def has_rows(data: Path, topic: str, count: int) -> bool:
    try:
        return len(values_in_table(data, topic)) >= count
    except Exception:  # the table is not there yet, or its catalog is being written
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.3)
