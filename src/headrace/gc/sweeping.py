"""Find WAL objects that have no record, and delete them.

A record comes before its object's first byte and goes only after its last, so an object without one was collected
already: a writer that slept through its staged object's age wrote it afterwards, and died before it could tidy up.
Ids are never used twice, so nothing will ever name such an object. That makes deleting safe at any age.
"""

from headrace.index.objects import wal_object_id_at, wal_prefix
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import ObjectKey
from headrace.objects.port import ObjectStore


class Sweeper:
    """Walks the WAL objects of a domain in the store, a page at a time, round and round."""

    def __init__(
        self, *, keys: DomainKeys, metadata: MetadataStore, objects: ObjectStore, objects_per_tick: int
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._objects = objects
        self._objects_per_tick = objects_per_tick
        self._prefix = wal_prefix(keys.domain)
        self._after = ""

    async def tick(self) -> list[ObjectKey]:
        """Look at the next page of objects, delete those without a record, and return their keys."""
        page = await self._next_page()
        orphans = [key for key in page if await self._is_orphan(key)]
        if orphans:
            await self._objects.delete(orphans)
        return orphans

    async def _next_page(self) -> list[ObjectKey]:
        page: list[ObjectKey] = []
        async for info in self._objects.list(self._prefix, start_after=self._after):
            page.append(info.key)
            if len(page) == self._objects_per_tick:
                self._after = info.key
                return page
        self._after = ""
        return page

    async def _is_orphan(self, key: ObjectKey) -> bool:
        """Say whether an object is ours and has no record. What does not bear our names is left alone."""
        object_id = wal_object_id_at(self._keys.domain, key)
        return object_id is not None and await self._metadata.get(self._keys.object(object_id)) is None
