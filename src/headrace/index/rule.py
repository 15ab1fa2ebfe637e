"""The shape of every rule: what is locked, what is read, and a plain function that decides.

A rule has no effects of its own, so a test calls `decide` directly and the simulation runs it over a faulty store.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.errors import Retryable
from headrace.metadata.keys import unit_of
from headrace.metadata.leases import Lease, require
from headrace.metadata.port import Committed, Decision, MetadataStore, Reads, Seen, Unit
from headrace.model.ids import SessionId

T = TypeVar("T")


class StalePlan(Retryable):
    """What the plan was made from has changed: nothing was done, plan again."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """One metadata transaction, ready to be applied."""

    unit: Unit
    reads: Reads
    decide: Callable[[Seen], Decision[T]]

    async def apply(self, store: MetadataStore, *, session: SessionId | None = None) -> T:
        """Run the rule in one transaction and return its result."""
        return (await self.commit(store, session=session)).result

    async def commit(self, store: MetadataStore, *, session: SessionId | None = None) -> Committed[T]:
        """Run the rule in one transaction and return its result and the revision of what it wrote."""
        return await store.transact([self.unit], self.reads, self.decide, session=session)

    async def apply_under(self, store: MetadataStore, lease: Lease) -> T:
        """Run the rule in one transaction that demands a lease; raises `Fenced` if that is not ours any more."""

        def decide(seen: Seen) -> Decision[T]:
            require(seen, lease)
            return self.decide(seen)

        units = sorted({self.unit, unit_of(lease.key)})
        reads = Reads(keys=[*self.reads.keys, lease.key], ranges=self.reads.ranges)
        return (await store.transact(units, reads, decide, session=lease.session)).result
