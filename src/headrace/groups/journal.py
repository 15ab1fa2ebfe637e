"""What a group writes down, in order: changes are gathered while a write is under way and go together with the next.

Each transaction demands that the lease is still ours and that our session lives. So a coordinator that was paused
cannot write, and what waits for its write is never answered.

Must stay true:
- Changes become durable in the order in which they were given, and `after` runs when all before it are.
- Once a write has failed for good or may have happened, nothing more is written under this lease: `on_broken` is
  called, once, and the group is to be loaded anew under a higher lease epoch, which fences whatever is still on
  its way.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from headrace.errors import HeadraceError, Retryable
from headrace.metadata.leases import Lease, require
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen, Unit
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints

MAX_CHANGES_PER_WRITE = 2_000
"""How many keys are gathered for one transaction; a single change may be larger."""

FIRST_RETRY_S = 0.05
LAST_RETRY_S = 1.0


class _Batch:
    """Changes that are written together, and what runs afterwards."""

    __slots__ = ("changes", "then")

    def __init__(self) -> None:
        self.changes: dict[Key, bytes | None] = {}
        self.then: list[Callable[[], None]] = []


class Journal:
    """Writes for one group under one lease."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        unit: Unit,
        lease: Lease,
        clock: Clock,
        crash_points: CrashPoints,
        is_alive: Callable[[], bool],
        on_broken: Callable[[HeadraceError], None],
    ) -> None:
        self._store = store
        self._unit = unit
        self._lease = lease
        self._clock = clock
        self._crash_points = crash_points
        self._is_alive = is_alive
        self._on_broken = on_broken
        self._batches: deque[_Batch] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._is_under_way = False
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether everything that was given is durable."""
        return not self._batches

    def save(self, changes: Mapping[Key, bytes | None]) -> None:
        """Write these values, and delete those that are `None`, behind everything that was given before."""
        if self._is_closed:
            return
        has_open_one = len(self._batches) > self._is_under_way
        if not has_open_one or len(self._batches[-1].changes) >= MAX_CHANGES_PER_WRITE:
            self._batches.append(_Batch())
        self._batches[-1].changes.update(changes)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    def after(self, then: Callable[[], None]) -> None:
        """Call `then` as soon as everything that was given before is durable: now, if it is. Never after `close`."""
        if self._is_closed:
            return
        if self._batches:
            self._batches[-1].then.append(then)
        else:
            then()

    async def settled(self) -> None:
        """Wait until everything that was given before is durable; raise `Retryable` if that will not be."""
        if self._batches:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def tell() -> None:
                if not done.done():
                    done.set_result(None)

            self._batches[-1].then.append(tell)
            writing = self._writing
            assert writing is not None, "batches are being written"
            await asyncio.wait([done, writing], return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise Retryable("what the group was to write down may not have been written: load it anew")

    def close(self) -> None:
        """Write nothing more. What is under way may still arrive."""
        self._end()
        if self._writing is not None:
            self._writing.cancel()

    async def _write_all(self) -> None:
        try:
            while self._batches:
                batch = self._batches[0]
                self._is_under_way = True
                await self._write(batch.changes)
                self._crash_points.reach(CrashPoint.GROUP_AFTER_SAVE)
                self._is_under_way = False
                self._batches.popleft()
                for then in batch.then:
                    then()
        except HeadraceError as error:
            self._end()
            self._on_broken(error)
        finally:
            self._writing = None

    def _end(self) -> None:
        self._is_closed = True
        self._batches.clear()

    async def _write(self, changes: Mapping[Key, bytes | None]) -> None:
        """Write one batch; while the store says that nothing was written, try again for as long as we surely live."""
        puts = {key: value for key, value in changes.items() if value is not None}
        deletes = [key for key, value in changes.items() if value is None]

        def decide(seen: Seen) -> Decision[None]:
            require(seen, self._lease)
            return Decision(result=None, puts=puts, deletes=deletes)

        pause_s = FIRST_RETRY_S
        while True:
            try:
                await self._store.transact(
                    [self._unit], Reads(keys=[self._lease.key]), decide, session=self._lease.session
                )
                return
            except Retryable:
                if not self._is_alive():
                    raise
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_RETRY_S)
