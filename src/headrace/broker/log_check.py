"""Put together what verifies the log: stores, topics and index of a cluster, opened to read.

It needs no broker, and runs beside any number of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.storage import DOMAIN, Runtime, opened_storage, topic_defaults
from headrace.broker.table_desk import require_cluster
from headrace.cluster.identity import require_identity
from headrace.errors import Missing
from headrace.fetch.index_walk import IndexWalk
from headrace.fetch.log_report import LogReport
from headrace.fetch.row_groups import RowGroupCache
from headrace.fetch.table_reads import GroupKey, TableReader
from headrace.fetch.verifying import LogVerifier, PartitionLog
from headrace.fetch.wal_reads import WalReader
from headrace.metadata.keys import DomainKeys
from headrace.runtime.executor import ThreadExecutor
from headrace.settings import Settings
from headrace.topics.directory import TopicDirectory

CHECK_THREADS = 4
"""Threads that check bytes: checksums let others run beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCheck:
    """What was verified, and what was found."""

    topics: int
    report: LogReport


async def verify_log(
    settings: Settings, runtime: Runtime, *, topic: str | None, progress: Callable[[int], None]
) -> LogCheck:
    """Verify the log of one topic, or of all. Raises `Missing` if there is no such topic, or no cluster."""
    require_cluster(settings)
    executor = ThreadExecutor("verify", threads=CHECK_THREADS)
    try:
        async with opened_storage(settings, runtime) as storage:
            await require_identity(storage.metadata, storage.objects, rng=runtime.rng)
            directory = TopicDirectory(storage.metadata, defaults=topic_defaults(settings), clock=runtime.clock)
            await directory.refresh()
            topics = [one for one in directory.known() if topic is None or one.name == topic]
            if topic is not None and not topics:
                raise Missing(f"there is no topic {topic}")
            tables = TableReader(
                objects=storage.objects,
                executor=executor,
                cache=RowGroupCache[GroupKey](max_bytes=0),
                rules_of=directory.rules_of_stream,
            )
            verifier = LogVerifier(
                domain=DOMAIN,
                index=IndexWalk(storage.metadata, DomainKeys(DOMAIN), clock=runtime.clock),
                wal=WalReader(domain=DOMAIN, objects=storage.objects, executor=executor),
                tables=tables,
                executor=executor,
                progress=progress,
            )
            partitions = (
                PartitionLog(topic=one.name, partition=partition, stream=stream)
                for one in topics
                for partition, stream in enumerate(one.streams)
            )
            try:
                return LogCheck(topics=len(topics), report=await verifier.verify(partitions))
            finally:
                tables.close()
    finally:
        executor.close()
