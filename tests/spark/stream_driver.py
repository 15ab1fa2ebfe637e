"""A user's driver: a plain session that follows a topic into Parquet files, until somebody kills it.

    python -m tests.spark.stream_driver DATA_DIR TOPIC DIRECTORY

Every batch is told on a line of its own; `all` is told when the query has nothing more to read.
"""

import os
import sys
import time

from pyspark.sql import SparkSession

PAUSE_SECONDS = 0.1


def main() -> None:
    """Start the query and tell how it goes."""
    data_dir, topic, directory = sys.argv[1:]
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR"}
    builder = SparkSession.Builder().master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    options = {
        "dataDir": data_dir,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "25",
        "trigger": "processingTime",
    }
    source = session.readStream.format("headrace").options(**options).load().select("partition", "offset", "value")
    places = {"path": f"{directory}/kept", "checkpointLocation": f"{directory}/checkpoint"}
    query = source.writeStream.format("parquet").options(**places).trigger(processingTime="0 seconds").start()
    told = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress.batchId > told:
            told = progress.batchId
            print(f"batch {told}", flush=True)
        if progress is not None and progress.numInputRows == 0:
            print("all", flush=True)
        time.sleep(PAUSE_SECONDS)
    raise SystemExit(str(query.exception()))


if __name__ == "__main__":
    main()
