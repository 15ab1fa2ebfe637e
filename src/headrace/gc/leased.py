"""One process collects at a time: a lease, taken by whoever comes first and given back after each round.

Nothing depends on it but work: two collectors at once would read everything twice and delete what is deleted already.
That is why nobody is fenced by it, and why a broker whose session ends in the middle of a tick may finish that tick.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.errors import Fenced, HeadraceError
from headrace.gc.removed import Removed, Waiting, Why
from headrace.metadata import keys
from headrace.metadata.leases import Lease, LeaseHeld, release, take
from headrace.metadata.port import Key, MetadataStore
from headrace.model.ids import SessionId
from headrace.runtime.metrics import Metrics, one_of

COLLECTOR_LEASE = keys.lease("collector")


class Collecting(Protocol):
    """Something that deletes, a page at a time."""

    @property
    def is_round_over(self) -> bool:
        """Whether the next tick begins at the start again."""
        ...

    async def tick(self) -> list[Removed]:
        """Do the next page and return what was deleted."""
        ...

    async def survey(self) -> list[Removed]:
        """Return what the next page would delete, and touch nothing."""
        ...


class CollectorMetrics:
    """What was collected, and what waits to be."""

    def __init__(self, metrics: Metrics) -> None:
        label = one_of("why", [why.value for why in Why])
        self.objects = metrics.counters("collected_objects", "Objects that this broker has deleted.", label)
        self.bytes = metrics.counters("collected_bytes", "Their bytes, as far as they are known.", label)
        self._backlog_objects = metrics.gauges(
            "collector_backlog_objects",
            "Objects that nothing names and that are still there, when this broker last looked at all of them.",
        ).of()
        self._backlog_bytes = metrics.gauges("collector_backlog_bytes", "Their bytes, as far as they are known.").of()

    def removed(self, removed: Sequence[Removed]) -> None:
        """Count what was deleted."""
        for one in removed:
            self.objects.of(one.why).inc()
            self.bytes.of(one.why).inc(one.size_bytes)

    def waiting(self, waiting: Waiting) -> None:
        """Show what is left."""
        self._backlog_objects.set(waiting.object_count)
        self._backlog_bytes.set(waiting.size_bytes)


class CollectorLease:
    """The lease as one process sees it, through all its sessions."""

    def __init__(
        self, metadata: MetadataStore, session: Callable[[], SessionId | None], *, key: Key = COLLECTOR_LEASE
    ) -> None:
        self._metadata = metadata
        self._session = session
        self._key = key
        self._lease: Lease | None = None

    async def take(self) -> bool:
        """Say whether the lease is ours, or was free and is ours now."""
        session = self._session()
        self._lease = None
        if session is None:
            return False
        try:
            self._lease = await take(self._metadata, self._key, session)
        except (LeaseHeld, Fenced):
            return False
        return True

    async def give_back(self) -> None:
        """Let another process have it."""
        if self._lease is not None:
            await release(self._metadata, self._lease)
            self._lease = None


class LeasedCollectors:
    """Collectors that take turns with those of other processes."""

    def __init__(
        self,
        collectors: Sequence[Collecting],
        *,
        lease: CollectorLease,
        metrics: CollectorMetrics,
        waiting: Callable[[], Waiting] | None = None,
    ) -> None:
        self._collectors = collectors
        self._lease = lease
        self._metrics = metrics
        self._waiting = waiting

    async def tick(self) -> list[Removed]:
        """Do the next page of each, if no other process collects; return what was deleted.

        One that fails holds up no other; the first failure is raised in the end.
        """
        if not await self._lease.take():
            return []
        removed: list[Removed] = []
        failures: list[HeadraceError] = []
        for collector in self._collectors:
            try:
                removed += await collector.tick()
            except HeadraceError as error:
                failures.append(error)
        self._metrics.removed(removed)
        if self._waiting is not None:
            self._metrics.waiting(self._waiting())
        if all(collector.is_round_over for collector in self._collectors):
            await self._lease.give_back()
        if failures:
            raise failures[0]
        return removed
