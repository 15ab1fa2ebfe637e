"""Rebuilt row groups in memory, shared by all readers, and the footers that opening them takes.

A row group takes milliseconds to open and rebuild, and a consumer comes back for it many times, a mebibyte each. So
what was rebuilt stays until its room is needed, and readers that want a group at the same time wait for one load.

Must stay true:
- What a key names never changes: a file is written once, and offsets and shape are part of the key.
- A reader that goes away takes nothing from others that wait for the same group: a load belongs to all of them, and
  ends when the last one has gone.
- Both caches are bounded in bytes; what was used least recently goes.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from headrace.errors import Retryable
from headrace.fetch.runs import Run

MIB = 1024 * 1024

MAX_CACHE_BYTES = 64 * MIB
"""How many bytes of rebuilt row groups are kept, unless the caller says otherwise."""

MAX_FOOTERS_BYTES = 8 * MIB
"""How many bytes of footers are kept, as they lie in their files."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LoadGroups: TypeAlias = Callable[[Sequence[K]], Awaitable[Mapping[K, list[Run]]]]
"""Brings the runs of groups, all of them, or raises."""


class BoundedCache(Generic[K, V]):
    """Values with a size, up to a number of bytes in all."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.held_bytes = 0
        """What is held now."""

    def get(self, key: K) -> V | None:
        """Return what is kept under a key."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Keep a value, unless it alone is larger than all the room there is."""
        self.drop(key)
        if size_bytes > self._max_bytes:
            return
        self._kept[key] = (value, size_bytes)
        self.held_bytes += size_bytes
        while self.held_bytes > self._max_bytes:
            _, (_, dropped_bytes) = self._kept.popitem(last=False)
            self.held_bytes -= dropped_bytes

    def drop(self, key: K) -> None:
        """Let go of one value."""
        found = self._kept.pop(key, None)
        if found is not None:
            self.held_bytes -= found[1]


class _Load(Generic[K]):
    """Groups on their way into memory, and how many readers wait for any of them."""

    __slots__ = ("coming", "readers", "task")

    def __init__(self) -> None:
        self.coming: dict[K, asyncio.Future[list[Run]]] = {}
        self.readers = 0
        self.task: asyncio.Task[None] | None = None


class RowGroupCache(Generic[K]):
    """Runs by row group. Whatever is not there is loaded once, however many ask."""

    def __init__(self, *, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._cache: BoundedCache[K, list[Run]] = BoundedCache(max_bytes=max_bytes)
        self._loads: dict[K, _Load[K]] = {}
        self.hits = 0
        """How many groups were in memory, or on their way there, when they were asked for."""
        self.loads = 0
        """How many were not."""

    @property
    def held_bytes(self) -> int:
        """What is held now."""
        return self._cache.held_bytes

    def is_known(self, key: K) -> bool:
        """Tell whether a group is in memory or on its way there."""
        return key in self._loads or self._cache.get(key) is not None

    async def get(self, keys: Sequence[K], load: LoadGroups[K]) -> list[list[Run]]:
        """Return the runs of each group, in order; `load` is called once for all that nobody has or brings.

        Raises what the load of any of them raises, whoever began it.
        """
        found = {key: self._cache.get(key) for key in keys}
        missing = [key for key, runs in found.items() if runs is None and key not in self._loads]
        self.loads += len(missing)
        self.hits += len(found) - len(missing)
        if missing:
            self._begin(missing, load)
        # Taken now: a load that is over is forgotten, and its groups may be evicted by the time this reader wakes up.
        waits = {key: self._loads[key].coming[key] for key, runs in found.items() if runs is None}
        joined = {id(self._loads[key]): self._loads[key] for key in waits}
        for one in joined.values():
            one.readers += 1
        try:
            for key, coming in waits.items():
                # Shielded: when this reader is cancelled, others may still wait for the same future.
                found[key] = await asyncio.shield(coming)
        finally:
            for one in joined.values():
                self._leave(one)
        return [found[key] or [] for key in keys]

    def close(self) -> None:
        """End what is being loaded; whoever waits for it hears so."""
        for load in set(self._loads.values()):
            self._end(load, Retryable("the broker is stopping"))

    def _begin(self, keys: Sequence[K], load_groups: LoadGroups[K]) -> None:
        loop = asyncio.get_running_loop()
        load = _Load[K]()
        for key in keys:
            load.coming[key] = loop.create_future()
            self._loads[key] = load
        load.task = asyncio.create_task(self._perform(load, keys, load_groups))

    async def _perform(self, load: _Load[K], keys: Sequence[K], load_groups: LoadGroups[K]) -> None:
        try:
            loaded = await load_groups(keys)
            found = {key: loaded[key] for key in keys}
        except asyncio.CancelledError:
            self._end(load, Retryable("the load of a row group was ended"))
            raise
        except Exception as error:  # it belongs to those who wait; the next reader tries again
            self._end(load, error)
            return
        for key, runs in found.items():
            self._cache.put(key, runs, sum(len(run.data) for run in runs))
            if not load.coming[key].done():
                load.coming[key].set_result(runs)
        self._forget(load)

    def _leave(self, load: _Load[K]) -> None:
        """Count a reader out; a load that nobody waits for any more is ended, so that it takes nobody's turn."""
        load.readers -= 1
        if load.readers == 0 and load.task is not None and not load.task.done():
            self._end(load, Retryable("everybody who wanted this row group has gone"))

    def _end(self, load: _Load[K], error: Exception) -> None:
        self._forget(load)
        for coming in load.coming.values():
            if not coming.done():
                coming.set_exception(error)
                coming.exception()  # nobody may be waiting any more: that is no news then
        if load.task is not None and load.task is not asyncio.current_task():
            load.task.cancel()

    def _forget(self, load: _Load[K]) -> None:
        for key in [key for key in load.coming if self._loads.get(key) is load]:
            del self._loads[key]
