"""Give each idempotent producer an id that no other producer ever gets, whichever broker it asks.

Brokers take ids from the store in blocks; what is left of a block when a broker ends is never used.
"""

import asyncio

import msgspec

from headrace.metadata.keys import PRODUCER_IDS, REGISTRY
from headrace.metadata.port import Decision, MetadataStore, Reads, Seen
from headrace.metadata.values import ValueCodec
from headrace.model.ids import ProducerId

IDS_PER_BLOCK = 1000


class NextProducerId(msgspec.Struct, frozen=True, array_like=True):
    """What lies at the key `producer-ids`."""

    next_id: int


NEXT_PRODUCER_ID = ValueCodec(NextProducerId)


class ProducerIds:
    """Hands out ids, one block at a time."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = self._end = 0
        self._taking = asyncio.Lock()

    def forget(self) -> None:
        """Hand out nothing more of the block at hand: a store that was taken back may give it to another broker."""
        self._next = self._end = 0

    async def take(self) -> ProducerId:
        """Return a fresh id. After an unknown outcome a block may be lost, which does no harm."""
        async with self._taking:
            if self._next == self._end:
                self._next = (await self._store.transact([REGISTRY], Reads(keys=[PRODUCER_IDS]), _take_block)).result
                self._end = self._next + IDS_PER_BLOCK
            self._next += 1
            return ProducerId(self._next - 1)


def _take_block(seen: Seen) -> Decision[int]:
    found = NEXT_PRODUCER_ID.seen(seen, PRODUCER_IDS) or NextProducerId(0)
    after = NextProducerId(found.next_id + IDS_PER_BLOCK)
    return Decision(result=found.next_id, puts={PRODUCER_IDS: NEXT_PRODUCER_ID.encode(after)})
