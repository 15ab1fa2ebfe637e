"""What a user would do without Headrace: Spark Structured Streaming from Apache Kafka into an Iceberg table.

Official connectors with their defaults: `format("kafka")` with headers, `trigger(availableNow)`, Iceberg's writer.
Only what the comparison fixes for both sides is set: columns, zstd level 1, the size of files. The table is not
partitioned, because Iceberg would shuffle all rows for that, which is not what is compared here. What Kafka's source
does not tell (producer, sequence, attributes) is constant, so that both tables have the same columns.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.tables_beside_spark.processes import Message, answer_lines
from tests.servers.spark_jars import iceberg_jars, kafka_source_jars
from tests.servers.spark_sessions import running_spark

CATALOG = "peer"
NAMESPACE = "bench"

COLUMNS = (
    "partition",
    "offset",
    "timestamp",
    "timestamp as append_time",
    "timestampType as timestamp_type",
    "key",
    "value",
    "headers",
    "-1L as producer_id",
    "-1 as producer_epoch",
    "-1 as sequence",
    "0 as attributes",
    "cast(null as binary) as raw",
)
CREATE = """
create table {table} (
  partition int, offset bigint, timestamp timestamp, append_time timestamp, timestamp_type int, key binary,
  value binary, headers array<struct<key: string, value: binary>>, producer_id bigint, producer_epoch int,
  sequence int, attributes int, raw binary)
using iceberg tblproperties (
  'write.parquet.compression-codec' = 'zstd', 'write.parquet.compression-level' = '1',
  'write.target-file-size-bytes' = '{file_bytes}', 'format-version' = '2')
"""


@contextlib.contextmanager
def open_side(settings: Message) -> Iterator[Callable[[Message], Message]]:
    """Start the session and yield what does one run."""
    directory = Path(settings["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    prefix = f"spark.sql.catalog.{CATALOG}"
    conf = {
        "spark.driver.memory": "3g",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.uri": f"jdbc:sqlite:{directory}/catalog.db",
        f"{prefix}.jdbc.schema-version": "V1",
        f"{prefix}.warehouse": f"file://{directory}/tables",
        f"{prefix}.cache-enabled": "false",
    }
    with running_spark(directory, jars=[*kafka_source_jars(), *iceberg_jars()], settings=conf) as session:
        session.sql(f"create namespace if not exists {CATALOG}.{NAMESPACE}")
        yield lambda message: _perform(session, directory, message)


def _perform(session: Any, directory: Path, message: Message) -> Message:
    table = f"{CATALOG}.{NAMESPACE}.{message['table']}"
    if message["do"] == "drop":
        session.sql(f"drop table {table} purge")
        return {}
    session.sql(CREATE.format(table=table, file_bytes=message["file_bytes"]))
    checkpoint = directory / "checkpoints" / message["table"]
    source = {
        "kafka.bootstrap.servers": message["bootstrap"],
        "subscribe": message["topic"],
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }
    began = time.monotonic()
    frame = session.readStream.format("kafka").options(**source).load().selectExpr(*COLUMNS)
    writer = frame.writeStream.format("iceberg").outputMode("append").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).toTable(table)
    query.awaitTermination()
    seconds = time.monotonic() - began
    if query.exception() is not None:
        raise RuntimeError(f"the query failed: {query.exception()}")
    shutil.rmtree(checkpoint)
    return {"seconds": seconds}


if __name__ == "__main__":
    answer_lines(open_side)
