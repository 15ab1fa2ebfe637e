"""A Spark session of its own for a module of tests: started with the jars it names, and gone with its JVM in the end.

A process has one JVM, and that takes jars for its driver only when it starts. Whoever leaves one behind hands the
next module of tests a session without its jars. So a session here begins and ends with a JVM.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

STOP_LIMIT_SECONDS = 60.0

# PySpark leaves the sockets through which results come to the garbage collector, and says so in its source.
SOCKETS_ARE_COLLECTED = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@contextlib.contextmanager
def running_spark(
    directory: Path, *, jars: Sequence[Path] = (), settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start a local session whose files lie in `directory`, and end it and its JVM on the way out."""
    end_gateway()
    own = {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "scratch"),
    }
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    builder: Any = SparkSession.Builder().master("local[2]").appName("headrace-tests")
    for key, value in {**SETTINGS, **own, **(settings or {})}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        end_gateway()
        gc.collect()


def end_gateway() -> None:
    """End the JVM of this process, if there is one."""
    context: Any = SparkContext  # the class keeps the gateway for the whole process
    gateway = context._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(STOP_LIMIT_SECONDS)  # its end of the pipe closed, the JVM ends by itself
    context._gateway = context._jvm = None
