"""Collect WAL objects: seal what dead writers left open, condemn what nothing names, delete what is condemned.

Each tick goes through the object records, a bounded page at a time:

    open, its writer's session is gone    → sealed (never deleted: acknowledged records lie in it)
    staged past its age, or sealed and
    empty past its grace                  → condemned, in a transaction that checks it again
    condemned                             → bytes deleted, all of a page together, then the records

An object whose last entry went while a read was pinned waits for the end of that pin (`index/pins.py`). What is
condemned was held by no pin, and whoever puts one later cannot find it: so pins are asked before, not after that.

Must stay true: bytes are deleted only after a committed transaction condemned them, and a condemned object never
takes an entry again (I8). Every step can be repeated, by any process, after any crash. So the lease under which
brokers collect (`leased.py`) saves work and is not what makes it safe.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import Corrupt, HeadraceError, Missing
from headrace.gc.removed import Removed, Waiting, Why
from headrace.index.objects import CollectingAges, condemn_objects, forget_objects, is_due, seal_object
from headrace.index.pins import read_pin_floor
from headrace.index.values import OBJECT_RECORD, WRITER_STATE, ObjectRecord, ObjectState
from headrace.index.writers import retire_writer
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.port import Key, MetadataStore
from headrace.model.ids import ObjectId, ObjectKey, WriterId
from headrace.objects.port import ObjectStore
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints

OBJECTS_PER_STEP = 100
"""How many object records one transaction condemns or forgets. Each has a few hundred bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorLimits:
    """How long objects are left alone, how many records one tick looks at, and how many one transaction changes."""

    ages: CollectingAges
    records_per_tick: int
    writers_per_tick: int
    objects_per_step: int = OBJECTS_PER_STEP


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
        self._seen = Waiting()
        self.waiting = Waiting()
        """What nothing names any more and is still there, as the last whole round has found it."""

    @property
    def is_round_over(self) -> bool:
        """Whether the next tick begins with the first object again."""
        return self._after is None

    async def tick(self) -> list[Removed]:
        """Look at the next page of objects, then let go of writers that are dead; return what was deleted.

        An object that fails now, or a record that is damaged, holds up no other; the first failure is raised in the
        end.
        """
        failures: list[HeadraceError] = []
        is_alive = await self._writers(failures)
        page, pinned = await self._next_page(failures)
        for object_id, record in page.items():
            if record.state is ObjectState.OPEN:
                try:
                    await self._seal_if_left(object_id, record, is_alive)
                except HeadraceError as error:
                    failures.append(error)
        condemned = await self._condemn([one for one in self._due(page) if one not in pinned], failures)
        removed = await self._delete({one: page[one] for one in page if one in condemned}, failures)
        self._count(page, removed)
        for writer, is_living in is_alive.items():
            if not is_living:
                await retire_writer(self._keys, writer).apply(self._metadata)
        if failures:
            raise failures[0]
        return removed

    async def survey(self) -> list[Removed]:
        """Return what of the next page would be deleted now, and touch nothing."""
        failures: list[HeadraceError] = []
        page, pinned = await self._next_page(failures)
        if failures:
            raise failures[0]
        return [_removed(page[object_id]) for object_id in self._due(page) if object_id not in pinned]

    def _due(self, page: Mapping[ObjectId, ObjectRecord]) -> list[ObjectId]:
        """Return the objects that are condemned, or may be by now."""
        now_ms, ages = self._clock.now_ms(), self._limits.ages
        return [
            object_id
            for object_id, record in page.items()
            if record.state is ObjectState.CONDEMNED or is_due(record, now_ms=now_ms, ages=ages)
        ]

    async def _next_page(
        self, failures: list[HeadraceError]
    ) -> tuple[dict[ObjectId, ObjectRecord], frozenset[ObjectId]]:
        """Return the next records, and which of them lost their last name while a read was pinned that still is.

        Pins are read after the records: one that is put in between comes too late to find what is unnamed here.
        """
        prefix, limit = self._keys.objects_prefix, self._limits.records_per_tick
        found = await self._metadata.range(prefix_range(prefix, limit=limit, after=self._after))
        self._after = found[-1].key if len(found) == limit else None
        page: dict[ObjectId, ObjectRecord] = {}
        unnamed: dict[ObjectId, int] = {}
        for item in found:
            try:
                record = OBJECT_RECORD.decode(item.value, item.key)
            except Corrupt as error:
                failures.append(error)  # what it says of its object is not known, so nothing of it goes
                continue
            object_id = ObjectId(item.key.removeprefix(prefix))
            page[object_id] = record
            if record.state is ObjectState.SEALED and record.entry_count == 0:
                unnamed[object_id] = item.version
        if not unnamed:
            return page, frozenset()
        floor = await read_pin_floor(self._metadata, self._keys)
        return page, frozenset(object_id for object_id, version in unnamed.items() if floor.holds(version))

    async def _seal_if_left(
        self, object_id: ObjectId, record: ObjectRecord, is_alive: Mapping[WriterId, bool]
    ) -> None:
        if not await self._has_living_writer(record, is_alive):
            await self._seal(object_id, record.writer)

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

    async def _condemn(self, due: Sequence[ObjectId], failures: list[HeadraceError]) -> set[ObjectId]:
        """Condemn objects, many in one transaction; return those that are condemned, so that their bytes may go."""
        condemned: set[ObjectId] = set()
        for start in range(0, len(due), self._limits.objects_per_step):
            step = due[start : start + self._limits.objects_per_step]
            rule = condemn_objects(self._keys, step, now_ms=self._clock.now_ms(), ages=self._limits.ages)
            try:
                condemned |= await rule.apply(self._metadata)
            except HeadraceError as error:
                failures.append(error)
                continue
            self._crash_points.reach(CrashPoint.COLLECT_AFTER_CONDEMN)
        return condemned

    async def _delete(
        self, condemned: Mapping[ObjectId, ObjectRecord], failures: list[HeadraceError]
    ) -> list[Removed]:
        """Delete condemned objects with their records, which come last; return those that are gone."""
        if not condemned:
            return []
        ids = list(condemned)
        try:
            await self._objects.delete([ObjectKey(record.path) for record in condemned.values()])
            self._crash_points.reach(CrashPoint.COLLECT_AFTER_DELETE)
            for start in range(0, len(ids), self._limits.objects_per_step):
                step = ids[start : start + self._limits.objects_per_step]
                await forget_objects(self._keys, step).apply(self._metadata)
        except HeadraceError as error:
            failures.append(error)
            return []
        return [_removed(record) for record in condemned.values()]

    def _count(self, page: Mapping[ObjectId, ObjectRecord], removed: Sequence[Removed]) -> None:
        """Count what nothing names and is left; a round that is over is what others see."""
        unnamed = [
            record
            for record in page.values()
            if record.state is ObjectState.CONDEMNED
            or (record.state is ObjectState.SEALED and record.entry_count == 0)
        ]
        gone = {one.key for one in removed}
        left = [record for record in unnamed if record.path not in gone]
        size_bytes = sum(record.size_bytes for record in left)
        self._seen = self._seen.and_(Waiting(object_count=len(left), size_bytes=size_bytes))
        if self.is_round_over:
            self.waiting, self._seen = self._seen, Waiting()

    async def _writers(self, failures: list[HeadraceError]) -> dict[WriterId, bool]:
        """Return which writers of the next page are alive. Sessions are read last: who registers has one already.

        One whose record is damaged is left out, and so counts as alive.
        """
        limit = self._limits.writers_per_tick
        page = prefix_range(self._keys.writers_prefix, limit=limit, after=self._after_writer)
        found = await self._metadata.range(page)
        self._after_writer = found[-1].key if len(found) == limit else None
        living = {session.id for session in await self._metadata.sessions()}
        is_alive: dict[WriterId, bool] = {}
        for item in found:
            try:
                state = WRITER_STATE.decode(item.value, item.key)
            except Corrupt as error:
                failures.append(error)
                continue
            is_alive[WriterId(item.key.removeprefix(self._keys.writers_prefix))] = state.session in living
        return is_alive

    async def _has_living_writer(self, record: ObjectRecord, is_alive: Mapping[WriterId, bool]) -> bool:
        """A writer that is not among those read was retired, or registered since, or lies beyond the page."""
        known = is_alive.get(record.writer)
        return await self._metadata.get(self._keys.writer(record.writer)) is not None if known is None else known


def _removed(record: ObjectRecord) -> Removed:
    return Removed(key=ObjectKey(record.path), size_bytes=record.size_bytes, why=Why.WAL_OBJECT)
