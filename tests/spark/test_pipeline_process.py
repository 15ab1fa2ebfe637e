"""The pipeline as users run it: a real broker, real processes, a real Spark, and tables that PyIceberg reads."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.spark.pipelines import (
    LIMIT_SECONDS,
    create_fresh_topic,
    produce,
    run_pipeline,
    start_pipeline,
    values_in_table,
)

SOON = {"pipeline.interval.ms": "200"}


def test_what_was_produced_is_in_the_table_once(tmp_path: Path) -> None:
    with running_headrace(tmp_path / "data", settings={"num.partitions": "2"}) as broker:
        produce(broker, "orders", [b"%d" % number for number in range(500)])
        first = run_pipeline(tmp_path / "data", "--once")
        assert first.returncode == 0, first.stderr
        assert first.stdout == "500 rows in 1 runs; tables that grew: 1\n"
        assert values_in_table(tmp_path / "data", "orders") == sorted(b"%d" % number for number in range(500))
        produce(broker, "orders", [b"more"])
        second = run_pipeline(tmp_path / "data", "--once")
        assert second.returncode == 0, second.stderr
        found = values_in_table(tmp_path / "data", "orders")
        assert found == sorted([*(b"%d" % number for number in range(500)), b"more"])
        # Spark has a lot to say, and none of it is ours.
        assert all(line.startswith("{") for line in second.stderr.splitlines()), second.stderr


def test_a_broker_brings_its_own_pipeline_and_takes_it_along(tmp_path: Path) -> None:
    with running_headrace(tmp_path / "data", options=["--pipeline"], settings=SOON) as broker:
        create_fresh_topic(broker, "orders")
        produce(broker, "orders", [b"a"])
        wait_for(lambda: has_line(broker, "a run is in the table"), broker)
        child = pipeline_of(broker)
        everything = [child, *descendants(child)]
        assert len(everything) > 1, "no Java runs beside it"

        os.kill(child, signal.SIGKILL)
        wait_for(lambda: not any(is_alive(process) for process in everything), broker)
        wait_for(lambda: children_of(broker.process.pid) not in ([], [child]), broker)
        produce(broker, "orders", [b"b"])
        wait_for(lambda: table_has(tmp_path / "data", "orders", [b"a", b"b"]), broker)

        child = pipeline_of(broker)
        everything = [child, *descendants(child)]
        broker.kill()
        wait_for(lambda: not any(is_alive(process) for process in everything), broker)


def test_a_stopped_broker_has_stopped_its_pipeline(tmp_path: Path) -> None:
    with running_headrace(tmp_path / "data", options=["--pipeline"]) as broker:
        wait_for(lambda: has_line(broker, "the pipeline is ready"), broker)
        child = pipeline_of(broker)
        everything = [child, *descendants(child)]
        assert broker.terminate() == 0
        assert not is_alive(child)
        wait_for(lambda: not any(is_alive(process) for process in everything), broker)
        assert not has_line(broker, "did not end in time")


def test_without_java_the_broker_serves_on_and_says_what_to_install(tmp_path: Path) -> None:
    environment = without_java(tmp_path / "bin")
    with running_headrace(tmp_path / "data", options=["--pipeline"], environment=environment) as broker:
        wait_for(lambda: has_line(broker, "the pipeline does not run, the broker serves on"), broker)
        assert has_line(broker, "apt install openjdk-17-jre-headless")
        produce(broker, "orders", [b"a"])
    ended = run_pipeline(tmp_path / "data", "--once", environment=environment)
    assert ended.returncode == 1
    assert "headrace: Spark needs Java, and there is none on this host: install a Java 17 runtime" in ended.stderr


def test_a_pipeline_that_is_told_to_stop_ends_in_good_order(tmp_path: Path) -> None:
    with running_headrace(tmp_path / "data"):
        process = start_pipeline(tmp_path / "data", "--loop")
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "the pipeline is ready" in line:
                    break
            left = descendants(process.pid)
            process.terminate()
            _, told = process.communicate(timeout=LIMIT_SECONDS)
            assert process.returncode == 0, told
            wait_until(lambda: not any(is_alive(one) for one in left))
        finally:
            process.kill()
            process.wait()


def table_has(data_dir: Path, topic: str, values: list[bytes]) -> bool:
    return values_in_table(data_dir, topic) == values


def has_line(broker: HeadraceProcess, words: str) -> bool:
    return any(words in line for line in broker.log)


def pipeline_of(broker: HeadraceProcess) -> int:
    """Return the pipeline's process, the only child that a broker has."""
    (child,) = children_of(broker.process.pid)
    return child


def children_of(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(path.parent.name))
    return sorted(found)


def descendants(root: int) -> list[int]:
    found = []
    ahead = [root]
    while ahead:
        below = children_of(ahead.pop())
        found += below
        ahead += below
    return found


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def without_java(directory: Path) -> dict[str, str]:
    """Return an environment whose path has what a shell needs, and no Java."""
    directory.mkdir()
    for name in ("bash", "sh", "env", "dirname"):
        found = shutil.which(name)
        if found is not None:
            (directory / name).symlink_to(found)
    return {"PATH": f"{Path(sys.executable).parent}:{directory}", "JAVA_HOME": ""}


def wait_for(is_so: Callable[[], bool], broker: HeadraceProcess) -> None:
    wait_until(is_so, lambda: "\n".join(broker.log[-30:]))


def wait_until(is_so: Callable[[], bool], explain: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.05)
