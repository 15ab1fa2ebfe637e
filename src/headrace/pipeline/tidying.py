"""Delete table files that nothing names: those of attempts that lost, and those that were condemned.

    tidy/<saga>        a run that is over  → after an age floor, what lies under its prefix and was not kept goes
    condemned/<id>     files that neither the index nor a snapshot names → after a grace they go, and with a prefix
                       everything under it: the table was dropped with its topic

Files that were condemned while a read was pinned wait for the end of that pin (`index/pins.py`); those of lost
attempts had no name that a reader could have found.

Must stay true: nothing is deleted but what such a record names, and a record goes after its files (I8). A record was
put in the transaction that ended its run, so who finds one finds a run that can take no more files. Every step can be
repeated, by any process, after any crash.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import Corrupt, HeadraceError, Invalid
from headrace.gc.removed import Removed, Waiting, Why
from headrace.index.pins import read_pin_floor
from headrace.index.rule import Rule
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen, Versioned
from headrace.model.ids import ObjectKey
from headrace.objects.port import ObjectStore, object_key
from headrace.pipeline.records import CONDEMNED_FILES, TIDY_RECORD
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints

TABLES_PREFIX = "tables/"
"""What the keys of all tables' files begin with: a record that names anything else is damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFileLimits:
    """How long files are left alone, how many records one tick looks at, and about how many files it deletes."""

    attempt_age_floor_ms: int
    grace_ms: int
    records_per_tick: int = 100
    files_per_tick: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What a record gives up: files by name, and under `prefix`, if there is one, all that are not in `kept`."""

    since_ms: int
    paths: Sequence[ObjectKey]
    prefix: str | None
    kept: frozenset[str]
    why: Why


class TableFileCollector:
    """Walks the records of a domain in pages, round and round."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        objects: ObjectStore,
        clock: Clock,
        crash_points: CrashPoints,
        limits: TableFileLimits,
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._objects = objects
        self._clock = clock
        self._crash_points = crash_points
        self._limits = limits
        self._after: dict[str, Key | None] = {}
        self._seen = Waiting()
        self.waiting = Waiting()
        """Condemned files that are still there, as the last whole round has found them."""

    @property
    def is_round_over(self) -> bool:
        """Whether the next tick begins with the first records again."""
        return all(after is None for after in self._after.values())

    async def tick(self) -> list[Removed]:
        """Look at the next page of records, delete what is due, and return that.

        A record that fails now holds up no other; the first failure is raised in the end.
        """
        removed: list[Removed] = []
        failures: list[HeadraceError] = []
        for item in await self._next_page():
            room = self._limits.files_per_tick - len(removed)
            if room <= 0:
                break  # those that are left are found again in the next round
            try:
                removed += await self._handle(item, room)
            except HeadraceError as error:
                failures.append(error)
        if self.is_round_over:
            self.waiting, self._seen = self._seen, Waiting()
        if failures:
            raise failures[0]
        return removed

    async def survey(self) -> list[Removed]:
        """Return what of the next page would be deleted now, and touch nothing."""
        found: list[Removed] = []
        for item in await self._next_page():
            order = self._order(item)
            if self._is_due(order):
                found += [*_named(order), *(await self._listed(order, None))]
        return found

    async def _next_page(self) -> list[Versioned]:
        page: list[Versioned] = []
        limit = self._limits.records_per_tick
        for prefix in (self._keys.tidy_prefix, self._keys.condemned_prefix):
            found = await self._metadata.range(prefix_range(prefix, limit=limit, after=self._after.get(prefix)))
            self._after[prefix] = found[-1].key if len(found) == limit else None
            page += found
        return await self._unpinned(page)

    async def _unpinned(self, page: list[Versioned]) -> list[Versioned]:
        """Leave out what was condemned while a read was pinned that still is. Pins are read after the records."""
        if not any(item.key.startswith(self._keys.condemned_prefix) for item in page):
            return page
        floor = await read_pin_floor(self._metadata, self._keys)
        free = [item for item in page if item.key.startswith(self._keys.tidy_prefix) or not floor.holds(item.version)]
        held = len(page) - len(free)
        self._seen = self._seen.and_(Waiting(object_count=held))
        return free

    async def _handle(self, item: Versioned, room: int) -> list[Removed]:
        """Delete what a record gives up; it goes itself when nothing is left, which may take several ticks.

        What it names one by one goes at once: one run's worth. What lies under a prefix may be a whole table.
        """
        order = self._order(item)
        if not self._is_due(order):
            self._seen = self._seen.and_(Waiting(object_count=len(order.paths)))
            return []
        listed = await self._listed(order, room + 1)
        going = [*_named(order), *listed[:room]]
        if going:
            await self._objects.delete([one.key for one in going])
        self._crash_points.reach(CrashPoint.TIDY_AFTER_DELETE)
        if len(listed) <= room:
            await _forget(self._keys, item).apply(self._metadata)
        return going

    def _order(self, item: Versioned) -> _Order:
        """Read a record, whichever it is."""
        if item.key.startswith(self._keys.tidy_prefix):
            tidy = TIDY_RECORD.decode(item.value, item.key)
            prefix = _checked_prefix(item.key, tidy.prefix)
            return _Order(
                since_ms=tidy.since_ms, paths=(), prefix=prefix, kept=frozenset(tidy.kept), why=Why.LOST_ATTEMPT
            )
        condemned = CONDEMNED_FILES.decode(item.value, item.key)
        return _Order(
            since_ms=condemned.since_ms,
            paths=[_checked_path(item.key, path) for path in condemned.paths],
            prefix=_checked_prefix(item.key, condemned.prefix) if condemned.prefix else None,
            kept=frozenset(condemned.paths),
            why=Why.TABLE_FILE,
        )

    def _is_due(self, order: _Order) -> bool:
        limits = self._limits
        wait_ms = limits.attempt_age_floor_ms if order.why is Why.LOST_ATTEMPT else limits.grace_ms
        return self._clock.now_ms() - order.since_ms >= wait_ms

    async def _listed(self, order: _Order, limit: int | None) -> list[Removed]:
        """Return what lies under the prefix and was not kept, at most `limit`."""
        found: list[Removed] = []
        if order.prefix is None:
            return found
        async for info in self._objects.list(order.prefix):
            if info.key not in order.kept:
                found.append(Removed(key=info.key, size_bytes=info.size_bytes, why=order.why))
                if len(found) == limit:
                    break
        return found


def _named(order: _Order) -> list[Removed]:
    return [Removed(key=path, size_bytes=0, why=order.why) for path in order.paths]


def _forget(keys: DomainKeys, item: Versioned) -> Rule[None]:
    """Return the rule that drops a record whose files are gone, unless it was put anew."""

    def decide(seen: Seen) -> Decision[None]:
        is_same = seen.get(item.key) == item.value
        return Decision(result=None, deletes=[item.key] if is_same else [])

    return Rule(keys.unit, Reads(keys=[item.key]), decide)


def _checked_prefix(key: Key, prefix: str) -> str:
    """Return a prefix that lies inside of the tables, or raise `Corrupt`: a shorter one would take all else along."""
    if not prefix.endswith("/"):
        raise Corrupt(f"{key} names the prefix {prefix!r}, which does not end in '/': nothing was deleted")
    return _checked_path(key, prefix[:-1]) + "/"


def _checked_path(key: Key, path: str) -> ObjectKey:
    try:
        checked = object_key(path)
    except Invalid as error:
        raise Corrupt(f"{key} names {path!r}: {error}; nothing was deleted") from error
    if not checked.startswith(TABLES_PREFIX):
        raise Corrupt(f"{key} names {path!r}, which is no file of a table: nothing was deleted")
    return checked
