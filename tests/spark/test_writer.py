"""Files of a run, written by a real Spark on this host."""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import Corrupt, Missing, Retryable, Unsupported
from headrace.index.objects import wal_object_key
from headrace.model.ids import DomainId
from headrace.pipeline.plans import WriteTask
from headrace.pipeline.spark.address import ObjectsAddress
from headrace.pipeline.spark.probe import probe_executors
from headrace.pipeline.spark.session import SparkHandle, SparkOptions, open_spark
from headrace.pipeline.spark.writer import SparkWriter
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.rng import seeded_rng
from headrace.tables.files import WrittenFile
from tests.servers.spark_sessions import SOCKETS_ARE_COLLECTED, end_gateway
from tests.spark.wal_tasks import local_objects, put_wal, task_of, values_in

pytestmark = [SOCKETS_ARE_COLLECTED]

PROMISE_LIMIT_SECONDS = 120.0

# One for the whole module: Spark remembers the names of job groups that were cancelled, and refuses them for good.
RNG = seeded_rng("writers")

# An S3 that nobody can reach, for executors only: nothing listens on port 1.
NO_S3 = {
    "spark.executorEnv.AWS_ENDPOINT": "http://127.0.0.1:1",
    "spark.executorEnv.AWS_ALLOW_HTTP": "true",
    "spark.executorEnv.AWS_REGION": "nowhere",
    "spark.executorEnv.AWS_ACCESS_KEY_ID": "nobody",
    "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "nothing",
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkHandle]:
    end_gateway()
    handle = open_spark(SparkOptions(master="local[2,4]", conf=NO_S3))
    try:
        yield handle
    finally:
        handle.close()


@pytest.fixture
def threads() -> Iterator[ThreadExecutor]:
    executor = ThreadExecutor("spark", threads=5)
    try:
        yield executor
    finally:
        executor.close()


@pytest.fixture
def writer(spark: SparkHandle, threads: ThreadExecutor, tmp_path: Path) -> SparkWriter:
    address = ObjectsAddress(url=tmp_path.as_uri())
    return SparkWriter(spark, objects=address, executor=threads, rng=RNG)


async def put_tasks(directory: Path, *value_lists: list[bytes]) -> list[WriteTask]:
    pieces = await asyncio.to_thread(
        lambda: [put_wal(directory, number, values) for number, values in enumerate(value_lists)]
    )
    return [task_of(number, piece) for number, piece in enumerate(pieces)]


async def test_files_come_back_in_the_order_of_the_tasks_whatever_their_size(
    writer: SparkWriter, tmp_path: Path
) -> None:
    small, large = [b"a", b"b"], [bytes([n]) * 1000 for n in range(200)]
    files = await writer.write(await put_tasks(tmp_path, small, large, [b"c"]))
    assert [values_in(tmp_path, file) for file in files] == [small, large, [b"c"]]
    assert [file.slices[0].partition for file in files] == [0, 1, 2]


async def test_no_tasks_are_no_job(writer: SparkWriter) -> None:
    assert await writer.write([]) == []


async def test_runs_of_several_topics_share_one_spark(writer: SparkWriter, tmp_path: Path) -> None:
    tasks = await put_tasks(tmp_path, *([b"%d" % number] for number in range(6)))
    written = await asyncio.gather(*(writer.write([task]) for task in tasks[:4]), writer.write(tasks[4:]))
    found = [values_in(tmp_path, file) for files in written for file in files]
    assert found == [[b"%d" % number] for number in range(6)]


async def test_a_wal_object_that_is_gone_is_missing_on_the_driver_too(writer: SparkWriter, tmp_path: Path) -> None:
    tasks = await put_tasks(tmp_path, [b"a"], [b"b"])
    gone = wal_object_key(DomainId(0), tasks[1].file.slices[0].pieces[0].extent.object_id)
    await local_objects(tmp_path).delete([gone])
    with pytest.raises(Missing, match=gone):
        await writer.write(tasks)


async def test_damage_is_corrupt_on_the_driver_too(writer: SparkWriter, tmp_path: Path) -> None:
    tasks = await put_tasks(tmp_path, [b"abcdefgh" * 20])
    path = tmp_path / wal_object_key(DomainId(0), tasks[0].file.slices[0].pieces[0].extent.object_id)
    damaged = bytearray(path.read_bytes())
    damaged[-20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(Corrupt):
        await writer.write(tasks)


async def test_a_store_that_cannot_be_reached_is_tried_again_and_then_told_in_one_line(
    spark: SparkHandle, threads: ThreadExecutor, tmp_path: Path
) -> None:
    tasks = await put_tasks(tmp_path, [b"a"])
    nowhere = ObjectsAddress(url="s3://bucket", retry_attempts=1)
    writer = SparkWriter(spark, objects=nowhere, executor=threads, rng=RNG)
    with pytest.raises(Retryable, match="after 4 attempts") as raised:
        await writer.write(tasks)
    assert "\n" not in str(raised.value)


async def test_a_python_process_that_is_killed_in_its_task_leaves_every_row_once(
    writer: SparkWriter, spark: SparkHandle, tmp_path: Path
) -> None:
    values = [os.urandom(1000) for _ in range(20_000)]
    async with asyncio.timeout(PROMISE_LIMIT_SECONDS):
        while True:  # A kill may come when the tasks are just done: then it has shown nothing.
            tasks = await put_tasks(tmp_path, values, values[::-1])
            writing = asyncio.create_task(writer.write(tasks))
            await at_work(tmp_path, writing)
            for process_id in python_workers(spark):
                os.kill(process_id, signal.SIGKILL)
            files = await writing
            assert [values_in(tmp_path, file) for file in files] == [values, values[::-1]]
            if any(attempt_of(file) > 0 for file in files):
                break
            shutil.rmtree(tmp_path / "tables")


async def test_a_cancelled_call_has_ended_its_job(writer: SparkWriter, spark: SparkHandle, tmp_path: Path) -> None:
    values = [os.urandom(1000) for _ in range(20_000)]
    tasks = await put_tasks(tmp_path, *([values] * 4))
    writing = asyncio.create_task(writer.write(tasks))
    async with asyncio.timeout(PROMISE_LIMIT_SECONDS):
        await at_work(tmp_path, writing)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    tracker = spark.context.statusTracker()
    assert list(tracker.getActiveJobsIds()) == []
    # The session goes on.
    assert len(await writer.write(tasks[:1])) == 1


async def test_the_probe_tells_what_an_executor_has(
    spark: SparkHandle, threads: ThreadExecutor, tmp_path: Path
) -> None:
    objects = local_objects(tmp_path)
    address = ObjectsAddress(url=tmp_path.as_uri())
    reports = await probe_executors(spark, objects, address, executor=threads, rng=RNG)
    assert [report.problem for report in reports] == [""]
    assert [info.key async for info in objects.list("")] == []


async def test_the_probe_refuses_an_executor_that_looks_at_another_store(
    spark: SparkHandle, threads: ThreadExecutor, tmp_path: Path
) -> None:
    elsewhere = ObjectsAddress(url=(tmp_path / "elsewhere").as_uri())
    with pytest.raises(Unsupported, match="an object store that all hosts reach"):
        await probe_executors(spark, local_objects(tmp_path / "here"), elsewhere, executor=threads, rng=RNG)


async def at_work(directory: Path, writing: "asyncio.Task[list[WrittenFile]]") -> None:
    """Return when something lies under the table's prefix, which shows that a task has begun to write."""
    while not any((directory / "tables").rglob("*")) and not writing.done():
        await asyncio.sleep(0.001)


def attempt_of(file: WrittenFile) -> int:
    """Return which attempt of its task has written a file, from its name: `…-<stage>.<attempt>.<token>.parquet`."""
    return int(file.path.split("-")[-1].split(".")[1])


def python_workers(spark: SparkHandle) -> list[int]:
    """Return the Python processes that do tasks: children of the one that Spark's Java process has started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    daemons = {process for process, parent in parents.items() if parent == spark.process_id}
    return [process for process, parent in parents.items() if parent in daemons]
