"""Verify a test's log, and change its metadata behind everybody's back."""

import asyncio
from collections.abc import Mapping, Sequence

from headrace.fetch.budget import ReadBudget
from headrace.fetch.index_walk import ENTRIES_PER_PAGE, IndexWalk
from headrace.fetch.log_report import LogReport
from headrace.fetch.row_groups import RowGroupCache
from headrace.fetch.table_reads import GroupKey
from headrace.fetch.verifying import LogVerifier, PartitionLog
from headrace.fetch.wal_reads import WalReader
from headrace.metadata.port import Decision, Key, Reads
from headrace.model.ids import StreamId
from headrace.runtime.executor import InlineExecutor
from headrace.testing.clock import ManualClock
from tests.unit.fetch.kit import FetchKit
from tests.unit.produce.scripted import WriterKit

TOPIC = "orders"


class SleeplessClock(ManualClock):
    """Sleeping takes no time but the clock's."""

    async def sleep(self, seconds: float) -> None:
        self._monotonic += seconds
        await asyncio.sleep(0)


def walking(kit: WriterKit, *, entries_per_page: int = ENTRIES_PER_PAGE) -> IndexWalk:
    return IndexWalk(kit.metadata, kit.keys, clock=SleeplessClock(), entries_per_page=entries_per_page)


async def verify(
    kit: FetchKit,
    streams: Sequence[StreamId],
    *,
    entries_per_page: int = ENTRIES_PER_PAGE,
    budget: ReadBudget | None = None,
) -> LogReport:
    """Verify streams as the partitions of one topic."""
    verifier = LogVerifier(
        domain=kit.keys.domain,
        index=walking(kit, entries_per_page=entries_per_page),
        wal=WalReader(domain=kit.keys.domain, objects=kit.objects, executor=InlineExecutor()),
        tables=kit.reading_tables(RowGroupCache[GroupKey](max_bytes=0)),
        executor=InlineExecutor(),
        budget=budget,
    )
    return await verifier.verify(
        PartitionLog(topic=TOPIC, partition=partition, stream=stream) for partition, stream in enumerate(streams)
    )


async def overwrite(kit: WriterKit, puts: Mapping[Key, bytes], deletes: Sequence[Key] = ()) -> None:
    """Write metadata as a fault would, without a rule."""
    await kit.metadata.transact(
        [kit.keys.unit], Reads(), lambda _: Decision(result=None, puts=puts, deletes=tuple(deletes))
    )
