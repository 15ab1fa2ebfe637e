"""One process's way to the shared catalog: down, slow, in conflict, or with answers that are lost.

A commit is a request to a server: it goes on when whoever sent it is paused or dead, it waits between its look at the
branch head and its compare-and-swap, and it may take effect long after its sender gave up.
"""

from collections.abc import Sequence
from functools import partial

from headrace.errors import Retryable
from headrace.runtime.clock import Clock
from headrace.runtime.rng import Rng
from headrace.tables.port import (
    Appended,
    DeadLetterAppend,
    ExpiryRule,
    Rewritten,
    TableAppend,
    TableInfo,
    TableListing,
    TableRewrite,
    TopicTable,
)
from headrace.testing.memory_catalog import MemoryCatalog
from headrace.testing.simulation.plan import FaultKind, FaultPlan
from headrace.testing.simulation.process import SimProcess
from headrace.testing.simulation.wire import Wire

CATALOG_FAULTS = (
    FaultKind.DELAY,
    FaultKind.RETRYABLE,
    FaultKind.LOST_ANSWER,
    FaultKind.RESET,
    FaultKind.LATE_EFFECT,
)
FAULTS_PER_CALL = 3
"""A call to a catalog is several requests: as many chances for a fault."""

DOWN_RATE = 0.02
CONFLICT_RATE = 0.05
SLOW_COMMIT_RATE = 0.2
MAX_DOWN_SECONDS = 8.0
MAX_SLOW_SECONDS = 12.0
"""Longer than a session lives: another process resumes the run and commits it meanwhile."""


class CatalogServer:
    """The catalog itself, with what goes wrong inside of it."""

    def __init__(self, catalog: MemoryCatalog, *, clock: Clock, rng: Rng, plan: FaultPlan) -> None:
        self.catalog = catalog
        self._clock = clock
        self._rng = rng
        self._plan = plan
        self._down_until = 0.0

    async def trouble(self, moment: str) -> None:
        """Be down for a while, be slow before a commit, or find a conflict there."""
        if self._plan.rates.retryable == 0:
            return  # a calm day
        if self._clock.monotonic() < self._down_until:
            raise Retryable("the catalog is down")
        drawn = self._rng.random()
        if moment == "before commit":
            if drawn < CONFLICT_RATE:
                raise Retryable("injected: somebody else committed to the table first")
            if drawn < CONFLICT_RATE + SLOW_COMMIT_RATE:
                await self._clock.sleep(self._rng.random() * MAX_SLOW_SECONDS)
        elif moment.startswith("before") and drawn < DOWN_RATE:
            self._down_until = self._clock.monotonic() + self._rng.random() * MAX_DOWN_SECONDS
            raise Retryable("the catalog goes down")


class FaultyCatalog:
    """A `TableCatalog` as one process has it."""

    def __init__(self, server: CatalogServer, process: SimProcess, plan: FaultPlan) -> None:
        self._seat = server.catalog.seen_by(server.trouble)
        self._wire = Wire(process, plan, "catalog")

    async def ensure(self, table: TopicTable) -> TableInfo:
        return await self._wire.send_with(
            f"ensure {table.topic_name}", lambda: self._seat.ensure(table), self._draw()
        )

    async def find(self, table: TopicTable) -> TableInfo | None:
        return await self._wire.send_with(f"find {table.topic_name}", lambda: self._seat.find(table), self._draw())

    async def append(self, append: TableAppend, *, now_ms: int, expiry: ExpiryRule) -> Appended:
        work = partial(self._seat.append, append, now_ms=now_ms, expiry=expiry)
        return await self._wire.send_with(
            f"append {append.table.topic_name} {append.saga_id[:6]} by {append.epoch}", work, self._draw()
        )

    async def rewrite(self, rewrite: TableRewrite, *, now_ms: int, expiry: ExpiryRule) -> Rewritten:
        work = partial(self._seat.rewrite, rewrite, now_ms=now_ms, expiry=expiry)
        what = f"{rewrite.operation} {rewrite.table.topic_name} {rewrite.saga_id[:6]} by {rewrite.epoch}"
        return await self._wire.send_with(what, work, self._draw())

    async def expire(self, table: TopicTable, *, now_ms: int, expiry: ExpiryRule) -> Sequence[str]:
        work = partial(self._seat.expire, table, now_ms=now_ms, expiry=expiry)
        return await self._wire.send_with(f"expire {table.topic_name}", work, self._draw())

    async def listing(self, table: TopicTable, *, with_spans: bool = False) -> TableListing | None:
        work = partial(self._seat.listing, table, with_spans=with_spans)
        return await self._wire.send_with(f"list {table.topic_name}", work, self._draw())

    async def append_dead_letters(
        self, append: DeadLetterAppend, *, now_ms: int, expiry: ExpiryRule
    ) -> Sequence[str]:
        work = partial(self._seat.append_dead_letters, append, now_ms=now_ms, expiry=expiry)
        return await self._wire.send_with(f"dead letters {append.saga_id[:6]}", work, self._draw())

    async def drop(self, table: TopicTable) -> bool:
        return await self._wire.send_with(f"drop {table.topic_name}", lambda: self._seat.drop(table), self._draw())

    async def data_files(self, table: TopicTable, *, ref: str) -> Sequence[str]:
        return await self._seat.data_files(table, ref=ref)

    async def close(self) -> None:
        """Do nothing: the catalog outlives this process."""

    def _draw(self) -> FaultKind | None:
        for _ in range(FAULTS_PER_CALL):
            fault = self._wire.plan.draw(CATALOG_FAULTS)
            if fault is not None:
                return fault
        return None
