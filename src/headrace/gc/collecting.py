"""Collect WAL objects: seal what dead writers left open, condemn what nothing names, delete what is condemned.

Each tick goes through the object records, a bounded page at a time:

    open, its writer's session is gone    → sealed (never deleted: acknowledged records lie in it)
    staged past its age, or sealed and
    empty past its grace                  → condemned, in a transaction that checks it again
    condemned                             → bytes deleted, then the record

Must stay true: bytes are deleted only after a committed transaction condemned them, and a condemned object never
takes an entry again (I8). Every step can be repeated, by any process, after any crash.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import HeadraceError, Missing
from headrace.index.objects import CollectingAges, condemn_object, forget_object, is_due, seal_object
from headrace.index.values import OBJECT_RECORD, WRITER_STATE, ObjectRecord, ObjectState
from headrace.index.writers import retire_writer
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.port import Key, MetadataStore
from headrace.model.ids import ObjectId, ObjectKey, WriterId
from headrace.objects.port import ObjectStore
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorLimits:
    """How long objects are left alone, and how many records one tick looks at."""

    ages: CollectingAges
    records_per_tick: int
    writers_per_tick: int


class Collector:
    """Walks the object records and the writers of a domain in pages, round and round."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        objects: ObjectStore,
        clock: Clock,
        crash_points: CrashPoints,
        limits: CollectorLimits,
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._objects = objects
        self._clock = clock
        self._crash_points = crash_points
        self._limits = limits
        self._after: Key | None = None
        self._after_writer: Key | None = None

    async def tick(self) -> None:
        """Look at the next page of objects, then let go of writers that are dead.

        An object that fails now holds up no other; the first failure is raised in the end.
        """
        is_alive = await self._writers()
        page = prefix_range(self._keys.objects_prefix, limit=self._limits.records_per_tick, after=self._after)
        found = await self._metadata.range(page)
        self._after = found[-1].key if len(found) == self._limits.records_per_tick else None
        failures: list[HeadraceError] = []
        for item in found:
            object_id = ObjectId(item.key.removeprefix(self._keys.objects_prefix))
            try:
                await self._handle(object_id, OBJECT_RECORD.decode(item.value, item.key), is_alive)
            except HeadraceError as error:
                failures.append(error)
        for writer, is_living in is_alive.items():
            if not is_living:
                await retire_writer(self._keys, writer).apply(self._metadata)
        if failures:
            raise failures[0]

    async def _handle(self, object_id: ObjectId, record: ObjectRecord, is_alive: Mapping[WriterId, bool]) -> None:
        if record.state is ObjectState.OPEN:
            if not await self._has_living_writer(record, is_alive):
                await self._seal(object_id, record.writer)
        elif is_due(record, now_ms=self._clock.now_ms(), ages=self._limits.ages):
            await self._condemn(object_id, record)
        elif record.state is ObjectState.CONDEMNED:
            await self._delete(object_id, record)

    async def _seal(self, object_id: ObjectId, writer: WriterId) -> None:
        """Fence the dead writer, so that its segment takes no commit; give back what it had prepared; seal it.

        The record comes last: until then every collector does all of this again.
        """
        await retire_writer(self._keys, writer).apply(self._metadata)
        raw = await self._metadata.get(self._keys.object(object_id))
        if raw is None:
            return
        record = OBJECT_RECORD.decode(raw.value, raw.key)
        if record.state is ObjectState.OPEN and record.is_segment and self._objects.segments is not None:
            # A file that is missing is damage, or went with its record since: either way there is nothing to cut.
            with contextlib.suppress(Missing):
                await self._objects.segments.seal_segment(ObjectKey(record.path), size_bytes=record.size_bytes)
        await seal_object(self._keys, object_id, now_ms=self._clock.now_ms()).apply(self._metadata)

    async def _condemn(self, object_id: ObjectId, record: ObjectRecord) -> None:
        rule = condemn_object(self._keys, object_id, now_ms=self._clock.now_ms(), ages=self._limits.ages)
        if await rule.apply(self._metadata):
            self._crash_points.reach(CrashPoint.COLLECT_AFTER_CONDEMN)
            await self._delete(object_id, record)

    async def _delete(self, object_id: ObjectId, record: ObjectRecord) -> None:
        await self._objects.delete([ObjectKey(record.path)])
        self._crash_points.reach(CrashPoint.COLLECT_AFTER_DELETE)
        await forget_object(self._keys, object_id).apply(self._metadata)

    async def _writers(self) -> dict[WriterId, bool]:
        """Return which writers of the next page are alive. Sessions are read last: who registers has one already."""
        limit = self._limits.writers_per_tick
        page = prefix_range(self._keys.writers_prefix, limit=limit, after=self._after_writer)
        found = await self._metadata.range(page)
        self._after_writer = found[-1].key if len(found) == limit else None
        living = {session.id for session in await self._metadata.sessions()}
        return {
            WriterId(item.key.removeprefix(self._keys.writers_prefix)): (
                WRITER_STATE.decode(item.value, item.key).session in living
            )
            for item in found
        }

    async def _has_living_writer(self, record: ObjectRecord, is_alive: Mapping[WriterId, bool]) -> bool:
        """A writer that is not among those read was retired, or registered since, or lies beyond the page."""
        known = is_alive.get(record.writer)
        return await self._metadata.get(self._keys.writer(record.writer)) is not None if known is None else known
