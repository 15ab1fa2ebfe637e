"""The same job on a real standalone master: two workers with another Python path and other working directories."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import headrace
from headrace.errors import Unsupported
from headrace.pipeline.spark.address import ObjectsAddress
from headrace.pipeline.spark.probe import probe_executors
from headrace.pipeline.spark.session import SparkHandle, SparkOptions, open_spark
from headrace.pipeline.spark.writer import SparkWriter
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.rng import seeded_rng
from tests.servers.headrace import running_headrace
from tests.servers.spark_sessions import SOCKETS_ARE_COLLECTED, end_gateway
from tests.servers.spark_standalone import make_python, running_spark_cluster
from tests.spark.pipelines import produce, run_pipeline, values_in_table
from tests.spark.wal_tasks import local_objects, put_wal, task_of, values_in

pytestmark = [SOCKETS_ARE_COLLECTED]

READY_LIMIT_SECONDS = 120.0


# One core on each worker: Spark spreads an application over them.
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A master, and the Python that its workers have."""

    url: str
    python: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with running_spark_cluster(directory) as spark:
        yield Cluster(url=spark.url, python=make_python(directory / "venv"))


@pytest.fixture(scope="module")
def spark(cluster: Cluster) -> Iterator[SparkHandle]:
    end_gateway()
    handle = open_spark(SparkOptions(master=cluster.url, python=str(cluster.python), conf=CONF))
    try:
        wait_for_executors(handle, 2)
        yield handle
    finally:
        handle.close()


@pytest.fixture
def threads() -> Iterator[ThreadExecutor]:
    executor = ThreadExecutor("spark", threads=3)
    try:
        yield executor
    finally:
        executor.close()


async def test_the_job_runs_there_unchanged(spark: SparkHandle, threads: ThreadExecutor, tmp_path: Path) -> None:
    address = ObjectsAddress(url=tmp_path.as_uri())
    objects = local_objects(tmp_path)
    reports = await probe_executors(spark, objects, address, executor=threads, rng=seeded_rng(1))
    assert len({report.process for report in reports}) == 2, "one of the executors was not asked"
    pieces = await threads.run(lambda: [put_wal(tmp_path, n, [b"%d" % n, b"x" * n]) for n in range(6)])
    writer = SparkWriter(spark, objects=address, executor=threads, rng=seeded_rng(2))
    files = await writer.write([task_of(number, piece) for number, piece in enumerate(pieces)])
    assert [values_in(tmp_path, file) for file in files] == [[b"%d" % n, b"x" * n] for n in range(6)]


async def test_executors_of_another_release_are_refused(
    spark: SparkHandle, threads: ThreadExecutor, tmp_path: Path
) -> None:
    context = spark.context
    real, context.pythonExec = context.pythonExec, str(other_release(tmp_path / "other"))
    try:
        with pytest.raises(Unsupported, match=r"has Headrace 9\.9\.9, and the pipeline is .*: install .* there"):
            await probe_executors(
                spark,
                local_objects(tmp_path),
                ObjectsAddress(url=tmp_path.as_uri()),
                executor=threads,
                rng=seeded_rng(1),
            )
        writer = SparkWriter(
            spark, objects=ObjectsAddress(url=tmp_path.as_uri()), executor=threads, rng=seeded_rng(2)
        )
        piece = await threads.run(lambda: put_wal(tmp_path, 0, [b"a"]))
        with pytest.raises(Unsupported, match=r"an executor has Headrace 9\.9\.9"):
            await writer.write([task_of(0, piece)])
    finally:
        context.pythonExec = real


async def test_a_python_that_is_not_there_is_told_with_what_to_do(
    spark: SparkHandle, threads: ThreadExecutor, tmp_path: Path
) -> None:
    context = spark.context
    real, context.pythonExec = context.pythonExec, str(tmp_path / "nowhere" / "python")
    try:
        with pytest.raises(Unsupported, match=r"let pipeline\.spark\.python name their Python"):
            await probe_executors(
                spark,
                local_objects(tmp_path),
                ObjectsAddress(url=tmp_path.as_uri()),
                executor=threads,
                rng=seeded_rng(1),
            )
    finally:
        context.pythonExec = real


def test_the_whole_pipeline_runs_there_by_one_option(cluster: Cluster, tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(300)]
    with running_headrace(tmp_path / "data", settings={"num.partitions": "3"}) as broker:
        produce(broker, "orders", values)
        ended = run_pipeline(
            tmp_path / "data",
            "--once",
            f"--master={cluster.url}",
            f"--set=pipeline.spark.python={cluster.python}",
            f"--set=pipeline.spark.conf={';'.join(f'{name}={value}' for name, value in CONF.items())}",
        )
        assert ended.returncode == 0, ended.stderr
        assert values_in_table(tmp_path / "data", "orders") == sorted(values)


def wait_for_executors(handle: SparkHandle, count: int) -> None:
    """Return when so many have registered; the driver is counted among them by Spark."""
    deadline = time.monotonic() + READY_LIMIT_SECONDS
    while handle.context._jsc.sc().getExecutorMemoryStatus().size() < count + 1:
        assert time.monotonic() < deadline, "the executors do not register: read the workers' logs"
        time.sleep(0.05)


def other_release(directory: Path) -> Path:
    """Return a Python whose Headrace says of itself that it is another release."""
    shadow = directory / "first" / "headrace"
    shadow.mkdir(parents=True)
    real = Path(headrace.__file__).parent
    (shadow / "__init__.py").write_text(f"__version__ = '9.9.9'\n__path__ = [{str(real)!r}]\n")
    return make_python(directory / "venv", first=directory / "first")
