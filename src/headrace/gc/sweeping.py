"""Find WAL objects that have no record, and delete them.

A record comes before its object's first byte and goes only after its last, so an object without one was collected
already: a writer that slept through its staged object's age wrote it afterwards, and died before it could tidy up.
Ids are never used twice, so nothing will ever name such an object. That makes deleting safe at any age; an age floor
leaves the bytes to whoever wants to look at them first, and to a metadata store that is restored from a backup.

The tasks of a sink reach no metadata store: there the record of the whole write comes before the first byte
(`index/sinks.py`), and objects get records of their own when the write is committed, which ends it. So an object that
bears a write's name is left alone while the write is under way, and is garbage if it has no record afterwards: the
attempt that made it failed, or lost.
"""

from headrace.gc.removed import Removed, Why
from headrace.index.objects import wal_object_id_at, wal_prefix
from headrace.index.sinks import write_of
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import ObjectId, ObjectKey
from headrace.objects.port import ObjectInfo, ObjectStore
from headrace.runtime.clock import Clock


class Sweeper:
    """Walks the WAL objects of a domain in the store, a page at a time, round and round."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        objects: ObjectStore,
        clock: Clock,
        age_floor_ms: int,
        objects_per_tick: int,
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._objects = objects
        self._clock = clock
        self._age_floor_ms = age_floor_ms
        self._objects_per_tick = objects_per_tick
        self._prefix = wal_prefix(keys.domain)
        self._after = ""

    @property
    def is_round_over(self) -> bool:
        """Whether the next tick begins with the first object again."""
        return not self._after

    async def tick(self) -> list[Removed]:
        """Look at the next page of objects, delete those without a record, and return them."""
        orphans = await self.survey()
        if orphans:
            await self._objects.delete([orphan.key for orphan in orphans])
        return orphans

    async def survey(self) -> list[Removed]:
        """Return those of the next page that are old enough and have no record, and touch nothing."""
        return [
            Removed(key=info.key, size_bytes=info.size_bytes, why=Why.ORPHAN)
            for info in await self._next_page()
            if self._is_old(info) and await self._is_orphan(info.key)
        ]

    async def _next_page(self) -> list[ObjectInfo]:
        page: list[ObjectInfo] = []
        async for info in self._objects.list(self._prefix, start_after=self._after):
            page.append(info)
            if len(page) == self._objects_per_tick:
                self._after = info.key
                return page
        self._after = ""
        return page

    def _is_old(self, info: ObjectInfo) -> bool:
        return self._clock.now_ms() - info.modified_at_ms >= self._age_floor_ms

    async def _is_orphan(self, key: ObjectKey) -> bool:
        """Say whether an object is ours and has no record. What does not bear our names is left alone."""
        object_id = wal_object_id_at(self._keys.domain, key)
        if object_id is None or await self._has_record(object_id):
            return False
        if await self._metadata.get(self._keys.sink_write(write_of(object_id))) is not None:
            return False
        # The write may have been committed between the two looks. Now that it is over, nothing can change any more.
        return not await self._has_record(object_id)

    async def _has_record(self, object_id: ObjectId) -> bool:
        return await self._metadata.get(self._keys.object(object_id)) is not None
