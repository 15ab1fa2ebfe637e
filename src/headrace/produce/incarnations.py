"""One process, one incarnation after another: join the cluster, write, and begin anew when that comes to an end.

A process that was paused for longer than its session, or cut off from the metadata store, is fenced: its session is
gone, its place is free, its writer can commit nothing any more. It need not end for that. It lets go of everything
that hung on the session and joins again, with a new session, a new writer and the same address. It does so, too, when
the metadata store turns out to have been taken back to an earlier state (`metadata/rewinds.py`).

Must stay true: there is at most one writer at a time, and what a fenced one had taken was answered before the next
one takes anything.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from headrace.cluster.membership import Membership
from headrace.errors import Fenced, HeadraceError, OutcomeUnknown, Retryable
from headrace.produce.log import ProduceLog
from headrace.produce.writer import LogWriter
from headrace.runtime.clock import Clock
from headrace.runtime.logs import Log

T = TypeVar("T")

REJOIN_PAUSE_S = 0.5


class Incarnations:
    """Keeps this process a member with a writer, until it is told to stop."""

    def __init__(
        self,
        *,
        join: Callable[[], Awaitable[Membership]],
        make_writer: Callable[[Membership], LogWriter],
        present: Callable[[Membership], None],
        absent: Callable[[], None],
        log_in: ProduceLog,
        clock: Clock,
        log: Log,
        rewound: asyncio.Event | None = None,
    ) -> None:
        """`rewound` has a new incarnation begin, and is cleared before it does."""
        self._rewound = rewound or asyncio.Event()
        self._join = join
        self._make_writer = make_writer
        self._present = present
        self._absent = absent
        self._log_in = log_in
        self._clock = clock
        self._log = log
        self._membership: Membership | None = None
        self._writer: LogWriter | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def is_present(self) -> bool:
        """Whether this process is a member that clients may be sent to."""
        return self._membership is not None and self._membership.is_present()

    async def start(self) -> None:
        """Join for the first time, and stay joined from now on. Raises what keeps it from joining at all."""
        await self._begin()
        self._following = asyncio.create_task(self._follow(), name="headrace-incarnations")

    async def tick(self) -> None:
        """Let the writer seal what has grown old."""
        if self._writer is not None:
            await self._writer.tick()

    async def withdraw(self, *, limit_s: float) -> None:
        """Give up the place in the cluster, so that clients move on, and begin no further incarnation."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self._membership is not None:
            await self._within(limit_s, self._membership.unregister())

    async def stop(self, *, limit_s: float) -> None:
        """Answer what was taken, seal, and leave; after `limit_s` the rest is left to collectors and timeouts.

        Without a limit, a store that is away would keep the process from ending.
        """
        await self._within(limit_s, self._end())

    async def wait(self) -> None:
        """Wait for the end; raise why, if it was a failure. Who stops waiting changes nothing."""
        assert self._following is not None, "started"
        await asyncio.wait([self._following])
        if not self._following.cancelled():
            self._following.result()

    async def _begin(self) -> None:
        membership = await self._join()
        writer = self._make_writer(membership)
        try:
            await self._insist(lambda: writer.start(membership.session))
        except BaseException:
            await membership.leave()
            raise
        self._membership, self._writer = membership, writer
        self._present(membership)
        self._log_in.use(writer)

    async def _follow(self) -> None:
        while True:
            await self._lost()
            self._log.warning("this broker's session or writer is gone: joining the cluster anew")
            await self._end()
            self._rewound.clear()
            await self._begin_again()
            self._log.info("this broker has joined its cluster anew")

    async def _lost(self) -> None:
        """Wait until the session may be gone, the writer is fenced, or the store was taken back."""
        assert self._membership is not None and self._writer is not None
        events = (self._membership.lost, self._writer.fenced, self._rewound)
        losses = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(losses, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for loss in losses:
                loss.cancel()

    async def _end(self) -> None:
        """Let go of an incarnation; what its writer had taken is answered, one way or the other.

        If this is broken off, `stop` begins it anew: each step may be repeated.
        """
        self._log_in.use(None)
        self._absent()
        if self._membership is not None:
            await self._membership.unregister()
        if self._writer is not None:
            # Before the session ends: the writers of ended sessions are retired, and could commit no more.
            await self._close(self._writer)
        if self._membership is not None:
            await self._membership.leave()
        self._membership = self._writer = None

    async def _close(self, writer: LogWriter) -> None:
        try:
            await writer.close()
        except HeadraceError as error:
            self._log.warning("a writer could not leave in good order; collectors will tidy up", error=error)

    async def _begin_again(self) -> None:
        while True:
            try:
                await self._begin()
                return
            except (Retryable, OutcomeUnknown, Fenced) as error:
                self._log.warning("this broker could not join its cluster yet and tries again", error=error)
                await self._clock.sleep(REJOIN_PAUSE_S)

    async def _within(self, limit_s: float, work: Coroutine[None, None, None]) -> None:
        """Do something, or break it off when the time is up."""
        working = asyncio.create_task(work)
        timer = asyncio.create_task(self._clock.sleep(limit_s))
        try:
            await asyncio.wait([working, timer], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                self._log.warning("this broker could not leave its cluster in time; its session will time out")
        finally:
            working.cancel()
            timer.cancel()
            await asyncio.wait([working, timer])
        if not working.cancelled():
            working.result()

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await work()
            except (Retryable, OutcomeUnknown):
                await self._clock.sleep(REJOIN_PAUSE_S)
