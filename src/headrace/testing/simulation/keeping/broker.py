"""A simulated broker that also forgets producers and sweeps the files of tables, as weeks ask for."""

from collections.abc import Collection

from headrace.gc.expiring import ProducerExpirer
from headrace.metadata.sessions import SessionKeeper
from headrace.pipeline.orphans import OrphanLimits, TableOrphanSweeper
from headrace.produce.writer import LogWriter
from headrace.tables.port import TopicTable
from headrace.testing.memory_catalog import MemoryCatalog
from headrace.testing.simulation.node import PRODUCER_EXPIRATION_MS
from headrace.testing.simulation.tables.broker import TableBroker

ORPHAN_AGE_MS = 86_400_000
"""A day: longer than any attempt takes."""


class CatalogNames:
    """What the snapshots of the tables in a catalog name."""

    def __init__(self, catalog: MemoryCatalog) -> None:
        self._catalog = catalog

    async def unnamed(self, table: TopicTable, keys: Collection[str]) -> frozenset[str] | None:
        """Return those of the keys that nothing in the table names; `None` where the topic has no table."""
        found = self._catalog.own(table)
        return None if found is None else frozenset(keys) - found.named_paths()


class KeepingBroker(TableBroker):
    """One incarnation of one broker. `catalog` is for the sweeper alone, which in earnest runs in pipelines."""

    catalog: MemoryCatalog

    def _start_keepers(self, keeper: SessionKeeper, writer: LogWriter) -> None:
        super()._start_keepers(keeper, writer)
        expirer = ProducerExpirer(
            keys=self.keys,
            metadata=self.metadata,
            agreed_ms=self._own_time_ms,
            streams=lambda: [stream for topic in self.topics.known() for stream in topic.streams],
            expiration_ms=PRODUCER_EXPIRATION_MS,
            streams_per_tick=3,
            producers_per_step=5,
        )
        orphans = TableOrphanSweeper(
            keys=self.keys,
            metadata=self.metadata,
            objects=self.objects,
            names=CatalogNames(self.catalog),
            topics=self.topics.known,
            clock=self.clock,
            limits=OrphanLimits(age_floor_ms=ORPHAN_AGE_MS, files_per_tick=50),
        )
        self._repeat("producers", expirer.tick, 3.0)
        self._repeat("orphans", orphans.tick, 5.0)
