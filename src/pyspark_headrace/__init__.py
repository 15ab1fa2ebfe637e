"""`spark.read.format("headrace")`: where Spark finds the source and the sink, without registering anything.

Spark looks for a Python data source `NAME` as the class `DefaultSource` of a module `pyspark_NAME`. This one
puts the parts together, as the command line does for its commands: `headrace.pipeline.spark` holds the readers and
writers, `headrace.broker` opens the stores as settings say.

Must stay true: loading this module loads nothing of Headrace. Every Python worker that Spark asks for a data source
loads it, and each method brings what it needs.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Topics of Headrace for Spark: read straight from storage, written in one commit per batch."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> "StructType":
        """Return the columns that a read brings; Spark does not ask before it writes."""
        from headrace.pipeline.spark.source import schema_of
        from headrace.pipeline.spark.workers import spare_next_task

        schema = schema_of(self.options)
        spare_next_task()
        return schema

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """Return what plans and does a batch read."""
        from headrace.broker.scans import planned_scan
        from headrace.pipeline.spark.source import batch_reader

        return batch_reader(self.options, schema, plan=planned_scan)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
        """Return what plans and does the batches of a stream."""
        from headrace.broker.scans import open_stream_scan
        from headrace.pipeline.spark.source import stream_reader

        return stream_reader(self.options, schema, opens=open_stream_scan)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """Return what appends a frame to a topic."""
        from headrace.broker.sinks import StoreDesk
        from headrace.pipeline.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite, desk=StoreDesk)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802
        """Return what appends the batches of a stream to a topic."""
        from headrace.broker.sinks import StoreDesk
        from headrace.pipeline.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite, desk=StoreDesk)
