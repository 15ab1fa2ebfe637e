"""Which pins live: judged by what running tasks leave in the object store, the only place that they reach.

    pins/<pin>/alive-<task>    touched again and again by a task that is at work: `PinBeat.beat`
    pins/<pin>/done-<task>     left by a task that has read all it will: `PinBeat.done`

A pin that is dead (`index/pins.py` says when) is ended first, then what its tasks have left is swept by name: without
some of their signs it might look alive again. A pin comes before its first task: a sign without one is nobody's.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.gc.removed import Removed, Why
from headrace.index.pins import Pin, PinLimits, is_dead, is_over_age, list_pins, release_pin
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import ObjectKey, PinId
from headrace.objects.port import ObjectInfo, ObjectStore, object_key
from headrace.runtime.clock import Clock
from headrace.runtime.metrics import Metrics

PINS_PREFIX = "pins/"
ALIVE = "alive-"
DONE = "done-"


def beats_prefix(pin_id: PinId) -> str:
    """Return where the tasks of a pin leave their signs."""
    return f"{PINS_PREFIX}{pin_id}/"


class PinBeat:
    """One task's side of a pin. It needs nothing but the object store.

    A task calls `beat` at least every third of the pin's time to live while it reads, and `done` at its end.
    """

    def __init__(self, objects: ObjectStore, pin_id: PinId, task: int | str) -> None:
        self._objects = objects
        self._alive = object_key(f"{beats_prefix(pin_id)}{ALIVE}{task}")
        self._done = object_key(f"{beats_prefix(pin_id)}{DONE}{task}")

    async def beat(self) -> None:
        """Say that the task is at work."""
        await self._objects.put(self._alive, [b""])

    async def done(self) -> None:
        """Say that the task has read all it will; more than once is harmless."""
        await self._objects.put(self._done, [b""])


class PinMetrics:
    """How many reads are pinned, and for how long the oldest has been."""

    def __init__(self, metrics: Metrics) -> None:
        self._live = metrics.gauges("pins_live", "Reads that pin what they read, when this broker last looked.").of()
        self._oldest = metrics.gauges("pins_oldest_age_seconds", "The age of the oldest of them; 0 for none.").of()

    def show(self, pins: Sequence[Pin], now_ms: int) -> None:
        """Show the pins that are left."""
        oldest_ms = min((pin.record.created_at_ms for pin in pins), default=now_ms)
        self._live.set(len(pins))
        self._oldest.set(max(0, now_ms - oldest_ms) / 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinKeeperLimits:
    """When pins are dead, how many one tick judges, and how many objects it looks at and deletes."""

    pins: PinLimits
    pins_per_tick: int = 20
    objects_per_tick: int = 1000


class PinKeeper:
    """Ends dead pins and sweeps what is left of them, a bounded number per tick, round and round."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        objects: ObjectStore,
        clock: Clock,
        limits: PinKeeperLimits,
        metrics: PinMetrics | None = None,
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._objects = objects
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._ahead: deque[PinId] = deque()
        self._after = ""

    @property
    def is_round_over(self) -> bool:
        """Whether the next tick begins with the first pin and the first object again."""
        return not self._ahead and not self._after

    async def tick(self) -> list[Removed]:
        """Judge the next pins, end those that are dead, sweep a page of what is left behind; return what went."""
        pins = {pin.id: pin for pin in await list_pins(self._metadata, self._keys)}
        for pin in self._next(pins):
            if await self._is_dead(pin):
                await release_pin(self._keys, pin.id).apply(self._metadata)
                del pins[pin.id]
        leftovers = await self._leftovers()
        if leftovers:
            await self._objects.delete([one.key for one in leftovers])
        if self._metrics is not None:
            self._metrics.show(list(pins.values()), self._clock.now_ms())
        return leftovers

    async def survey(self) -> list[Removed]:
        """Return the objects of pins that are dead or gone, a page of them, and touch nothing."""
        pins = {pin.id: pin for pin in await list_pins(self._metadata, self._keys)}
        found: list[Removed] = []
        for pin in self._next(pins):
            if await self._is_dead(pin):
                found += [_removed(info) for info in await self._list(beats_prefix(pin.id))]
        return found + await self._leftovers()

    def _next(self, pins: dict[PinId, Pin]) -> list[Pin]:
        if not self._ahead:
            self._ahead.extend(pins)
        count = min(len(self._ahead), self._limits.pins_per_tick)
        named = [self._ahead.popleft() for _ in range(count)]
        return [pins[pin_id] for pin_id in named if pin_id in pins]

    async def _is_dead(self, pin: Pin) -> bool:
        now_ms, limits = self._clock.now_ms(), self._limits.pins
        if is_over_age(pin.record, now_ms=now_ms, limits=limits):
            return True
        prefix = beats_prefix(pin.id)
        done_count, last_beat_ms = 0, None
        # All of them, however many: no task's sign may be missed. There are two per task at most.
        async for info in self._objects.list(prefix):
            if info.key.startswith(prefix + DONE):
                done_count += 1
            last_beat_ms = max(last_beat_ms or 0, info.modified_at_ms)
        return is_dead(pin.record, done_count=done_count, last_beat_ms=last_beat_ms, now_ms=now_ms, limits=limits)

    async def _list(self, prefix: str) -> list[ObjectInfo]:
        found: list[ObjectInfo] = []
        async for info in self._objects.list(prefix):
            found.append(info)
            if len(found) == self._limits.objects_per_tick:
                break
        return found

    async def _leftovers(self) -> list[Removed]:
        """Return those of the next page of signs whose pin is gone. Pins are read last: they come before signs."""
        page: list[ObjectInfo] = []
        after, self._after = self._after, ""
        async for info in self._objects.list(PINS_PREFIX, start_after=after):
            page.append(info)
            if len(page) == self._limits.objects_per_tick:
                self._after = info.key
                break
        if not page:
            return []
        living = {pin.id for pin in await list_pins(self._metadata, self._keys)}
        return [_removed(info) for info in page if (pin := _pin_of(info.key)) is not None and pin not in living]


def _pin_of(key: ObjectKey) -> str | None:
    """Return whose sign an object is, or `None` if it does not bear our names."""
    pin, _, sign = key.removeprefix(PINS_PREFIX).partition("/")
    return pin if sign.startswith((ALIVE, DONE)) else None


def _removed(info: ObjectInfo) -> Removed:
    return Removed(key=info.key, size_bytes=info.size_bytes, why=Why.PIN)
