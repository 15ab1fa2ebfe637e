"""A warm Spark session that reads a topic when it is told to, with whatever source it is told to use.

The work behind the source is the same for both: count the rows and add up the lengths of keys and values, the offsets
and the partitions. So every column that a user would look at is looked at, and the sums say whether all came.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.tables_beside_spark.processes import Message, answer_lines
from tests.servers.spark_jars import kafka_source_jars
from tests.servers.spark_sessions import running_spark

SUMS = (
    "count(*)",
    "sum(octet_length(key))",
    "sum(octet_length(value))",
    "sum(offset)",
    "sum(partition)",
    "sum(octet_length(topic))",
)


@contextlib.contextmanager
def open_side(settings: Message) -> Iterator[Callable[[Message], Message]]:
    """Start the session and yield what does one read."""
    directory = Path(settings["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    with running_spark(directory, jars=kafka_source_jars(), settings={"spark.driver.memory": "2g"}) as session:
        yield lambda message: _perform(session, directory, message)


def _perform(session: Any, directory: Path, message: Message) -> Message:
    began = time.monotonic()
    read = _stream if message["do"] == "stream" else _batch
    sums = read(session, directory, message)
    return {"seconds": time.monotonic() - began, "sums": sums}


def _batch(session: Any, directory: Path, message: Message) -> list[int]:
    frame = session.read.format(message["format"]).options(**message["options"]).load()
    return list(frame.selectExpr(*SUMS).collect()[0])


def _stream(session: Any, directory: Path, message: Message) -> list[int]:
    found: list[list[int]] = []

    def add(frame: Any, _: int) -> None:
        found.append(list(frame.selectExpr(*SUMS).collect()[0]))

    checkpoint = directory / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    options = {**message["options"], "startingOffsets": "earliest"}
    frame = session.readStream.format(message["format"]).options(**options).load()
    writer = frame.writeStream.foreachBatch(add).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()
    if query.exception() is not None:
        raise RuntimeError(f"the query failed: {query.exception()}")
    return [sum(sums) for sums in zip(*found, strict=True)]


if __name__ == "__main__":
    answer_lines(open_side)
