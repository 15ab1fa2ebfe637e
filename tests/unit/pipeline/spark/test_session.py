import sys

import pytest

from headrace.pipeline.spark.session import SparkOptions, first_line, text_of
from headrace.pipeline.spark.sql import CatalogAccess, catalog_properties, packages
from headrace.pipeline.spark.writer import reason_of

FAILED_JOB = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
TypeError: unsupported operand

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:600)
"""


@pytest.mark.parametrize(
    ("master", "conf", "attempts"),
    [
        ("local[*,4]", {}, 4),
        ("local[2, 3]", {}, 3),
        ("local[*]", {}, 1),
        ("local", {}, 1),
        ("spark://host:7077", {}, 4),
        ("spark://host:7077", {"spark.task.maxFailures": "7"}, 7),
    ],
)
def test_how_often_a_task_is_tried_is_known(master: str, conf: dict[str, str], attempts: int) -> None:
    assert SparkOptions(master=master, conf=conf).task_attempts == attempts


def test_executors_on_this_host_are_this_python_and_others_have_their_own() -> None:
    assert SparkOptions(master="local[*,4]").executor_python == sys.executable
    assert SparkOptions(master="spark://host:7077").executor_python == "python3"
    assert SparkOptions(master="spark://host:7077", python="/opt/python").executor_python == "/opt/python"


def test_a_failed_job_is_told_in_the_line_that_tells_why() -> None:
    assert reason_of(RuntimeError(FAILED_JOB)) == "TypeError: unsupported operand"
    without_python = RuntimeError("\n".join(FAILED_JOB.splitlines()[:2]))
    assert reason_of(without_python).startswith("org.apache.spark.SparkException: Job aborted")
    assert first_line(RuntimeError(FAILED_JOB)).startswith("org.apache.spark.SparkException: Job aborted")


def test_an_error_that_cannot_speak_any_more_is_told_all_the_same() -> None:
    class Gone(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    assert text_of(Gone()) == "Gone, and Spark is gone"
    assert reason_of(Gone()) == "Gone, and Spark is gone"


def test_the_embedded_catalog_is_attached_by_its_file_wherever_the_process_stands() -> None:
    access = CatalogAccess(url="sqlite:data/catalog.db", objects_url="file:///srv/objects")
    found = catalog_properties(access, {})
    assert found["spark.sql.catalog.headrace.uri"].startswith("jdbc:sqlite:/")
    assert found["spark.sql.catalog.headrace.uri"].endswith("/data/catalog.db")
    assert found["spark.sql.catalog.headrace.cache-enabled"] == "false"
    assert [name.split(":")[1] for name in packages(access)] == ["iceberg-spark-runtime-4.1_2.13", "sqlite-jdbc"]


def test_a_rest_catalog_gets_what_it_asks_for_and_its_files_are_reached_at_the_endpoint() -> None:
    access = CatalogAccess(
        url="https://catalog", objects_url="s3://bucket", warehouse="w", properties={"token": "secret"}
    )
    found = catalog_properties(access, {"AWS_ENDPOINT": "http://s3", "AWS_REGION": "here"})
    ours = {name.removeprefix("spark.sql.catalog.headrace."): value for name, value in found.items()}
    assert ours["type"] == "rest" and ours["uri"] == "https://catalog" and ours["warehouse"] == "w"
    assert ours["token"] == "secret"
    assert ours["s3.endpoint"] == "http://s3" and ours["client.region"] == "here"
    assert len(packages(access)) == 2
