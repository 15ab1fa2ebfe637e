"""`headrace.table.partition.by`: how the files of a topic's table are kept apart.

A file is one contiguous range of offsets per partition, because Kafka readers read it, too. So only what changes
seldom along the log can keep files apart: the append time, which is the same for all records of a frame, and the
topic's partition. A producer's timestamps jump back and forth, and would cut the log into a file per record.
"""

from dataclasses import dataclass

from headrace.tables.format import Bucket, Partitioning
from headrace.topics.config_kinds import ConfigType, elements_of

_BUCKETS = {"day(append_time)": Bucket.DAY, "hour(append_time)": Bucket.HOUR}
_PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """A time, `partition`, or both."""

    @property
    def type(self) -> ConfigType:
        return ConfigType.LIST

    @property
    def expected(self) -> str:
        return (
            "day(append_time) or hour(append_time), or partition, or one of the times and partition with a comma "
            "between: a file holds a contiguous range of offsets, so nothing else can keep files apart"
        )

    def parse(self, text: str) -> Partitioning:
        elements = elements_of(text)
        buckets = [_BUCKETS[element] for element in elements if element in _BUCKETS]
        by_partition = _PARTITION in elements
        if not elements or len(buckets) > 1 or len(buckets) + by_partition != len(elements):
            raise ValueError(text)
        return Partitioning(bucket=buckets[0] if buckets else Bucket.NONE, by_partition=by_partition)

    def show(self, text: str) -> str:
        partitioning = self.parse(text)
        times = [name for name, bucket in _BUCKETS.items() if bucket is partitioning.bucket]
        return ",".join([*times, _PARTITION] if partitioning.by_partition else times)
