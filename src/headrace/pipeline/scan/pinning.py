"""Pin what a read is planned from, and keep the pin alive from the tasks that read it.

The pin is put before anything is looked up. How many tasks there will be is not known then, and a frame of Spark may
be read again and again by the same tasks, so no task is ever the last one: a pin ends when it is released, or when
nothing was heard of its tasks for its time to live.
"""

from collections import OrderedDict

import msgspec

from headrace.gc.pins import PinBeat
from headrace.index.pins import put_pin, release_pin
from headrace.index.values import PinRecord
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import PinId
from headrace.objects.port import ObjectStore
from headrace.runtime.clock import Clock
from headrace.runtime.rng import Rng

TIME_TO_LIVE_MS = 30 * 60_000
"""How long a pin lives after the last sign of a task: a job may do much else before it comes to read."""

BEATS_PER_LIFE = 6
MAX_BOOKED_PINS = 100
ID_BITS = 96


class PinNote(msgspec.Struct, frozen=True, array_like=True):
    """What a task must know of the pin of its read."""

    id: PinId
    time_to_live_ms: int


class ReadPins:
    """Puts and releases the pins of one reader."""

    def __init__(
        self,
        store: MetadataStore,
        keys: DomainKeys,
        *,
        clock: Clock,
        rng: Rng,
        owner: str,
        time_to_live_ms: int = TIME_TO_LIVE_MS,
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._rng = rng
        self._owner = owner
        self._time_to_live_ms = time_to_live_ms

    async def put(self) -> PinNote:
        """Put a pin: whatever the index names from now on can be read until it ends."""
        pin_id = PinId(f"{self._rng.getrandbits(ID_BITS):024x}")
        now_ms = self._clock.now_ms()
        record = PinRecord(
            created_at_ms=now_ms, expires_at_ms=now_ms + self._time_to_live_ms, task_count=0, owner=self._owner
        )
        await put_pin(self._keys, pin_id, record).apply(self._store)
        return PinNote(pin_id, self._time_to_live_ms)

    async def release(self, pin: PinNote) -> None:
        """End a pin; one that is gone already is passed over."""
        await release_pin(self._keys, pin.id).apply(self._store)


class BeatBook:
    """Remembers when this process last gave a sign for a pin, whatever task it was for."""

    def __init__(self, *, clock: Clock, rng: Rng) -> None:
        self._clock = clock
        self._process = f"{rng.getrandbits(ID_BITS):024x}"
        self._beaten_at: OrderedDict[PinId, float] = OrderedDict()

    async def beat(self, pin: PinNote, objects: ObjectStore) -> None:
        """Give a sign, if the last one was some time ago."""
        now = self._clock.monotonic()
        last = self._beaten_at.get(pin.id)
        if last is not None and (now - last) * 1000 * BEATS_PER_LIFE < pin.time_to_live_ms:
            return
        await PinBeat(objects, pin.id, self._process).beat()
        self._beaten_at[pin.id] = now
        self._beaten_at.move_to_end(pin.id)
        while len(self._beaten_at) > MAX_BOOKED_PINS:
            self._beaten_at.popitem(last=False)
