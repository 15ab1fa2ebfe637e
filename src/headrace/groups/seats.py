"""All groups that this broker coordinates: taken on first use, given back when idle, draining or fenced.

Must stay true: a group has at most one seat here, and taking or giving one back is over before the next one is taken.
Each take raises the lease's epoch, so what an earlier seat of this very process still has on its way comes too late.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from headrace.errors import Fenced, HeadraceError, OutcomeUnknown, Retryable
from headrace.groups.alarms import Alarms, monotonic_ms
from headrace.groups.consumer_records import regexes_of
from headrace.groups.journal import Journal
from headrace.groups.meters import GroupMetrics
from headrace.groups.pace import BrokerPace
from headrace.groups.patterns import Patterns
from headrace.groups.problems import GroupRefused, loading, not_coordinator, unavailable
from headrace.groups.protocol import Machine, Moment, Noted
from headrace.groups.records import Loaded
from headrace.groups.seat import Seat, Tenure
from headrace.groups.store import delete_group, take_over
from headrace.metadata.keys import DomainKeys
from headrace.metadata.leases import Lease, LeaseHeld, release
from headrace.metadata.port import MetadataStore
from headrace.model.ids import SessionId
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoints
from headrace.runtime.logs import Log
from headrace.runtime.text import one_line

MAX_SHOWN_CHARS = 80
GIVEN_BACK_AT_ONCE = 50


class Seats:
    """The seats of one broker, through all its incarnations."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        keys: DomainKeys,
        make_machine: Callable[[Loaded, Moment], Machine],
        before_load: Callable[[], Awaitable[None]],
        clock: Clock,
        crash_points: CrashPoints,
        log: Log,
        metrics: GroupMetrics,
        pace: BrokerPace,
        max_groups: int,
        idle_s: float,
        patterns: Patterns | None = None,
    ) -> None:
        """Take what seats are made of. Without `patterns`, machines match regular expressions by themselves."""
        self._store = store
        self._keys = keys
        self._make_machine = make_machine
        self._before_load = before_load
        self._clock = clock
        self._crash_points = crash_points
        self._log = log
        self._metrics = metrics
        self._pace = pace
        self._max_groups = max_groups
        self._idle_s = idle_s
        self._patterns = patterns
        self._tenure: Tenure | None = None
        self._is_draining = False
        self._seats: dict[str, Seat] = {}
        self._counted: dict[str, int] = {}
        self._moving: dict[str, asyncio.Task[Seat | None]] = {}
        self.alarms = Alarms(clock)

    def __len__(self) -> int:
        return len(self._seats)

    def __iter__(self) -> Iterator[Seat]:
        return iter(list(self._seats.values()))

    @property
    def session(self) -> SessionId | None:
        """The session that leases are taken in now."""
        return None if self._tenure is None else self._tenure.session

    @property
    def member_count(self) -> int:
        """How many members all these groups have."""
        return self._pace.member_count

    def use_limits(self, *, max_groups: int, idle_s: float) -> None:
        """Take so many groups from now on, and let idle ones go after so long; groups that are here stay."""
        self._max_groups = max_groups
        self._idle_s = idle_s

    def begin(self, tenure: Tenure) -> None:
        """Take groups from now on, in this membership."""
        self.end()
        self._tenure = tenure

    def end(self) -> None:
        """Coordinate nothing more: the membership is gone, or will be. Who waits hears to look elsewhere."""
        self._tenure = None
        for task in self._moving.values():
            task.cancel()
        for seat in self:
            seat.end(not_coordinator(seat.group_id))

    def held(self, group_id: str) -> Seat | None:
        """Return the seat of a group that we coordinate already, if we surely still do."""
        seat = self._seats.get(group_id)
        if seat is None or self._tenure is None or not self._tenure.is_surely_alive():
            return None
        return seat

    async def take(self, group_id: str) -> Seat:
        """Return the seat of a group; take its lease and load it, if nobody holds it. Raises `GroupRefused`."""
        while True:
            seat = self._seats.get(group_id)
            if seat is not None and not self._is_draining:
                return seat
            tenure = self._tenure
            if tenure is None or self._is_draining:
                raise not_coordinator(group_id)
            moving = self._moving.get(group_id)
            if moving is None:
                if len(self._seats) + len(self._moving) >= self._max_groups:
                    raise unavailable(f"this broker coordinates {self._max_groups} groups, and takes no more")
                moving = self._move(group_id, self._load(group_id, tenure))
            await asyncio.wait([moving])
            if moving.cancelled():
                raise not_coordinator(group_id)
            taken = moving.result()
            if taken is not None:
                return taken

    async def delete(self, seat: Seat) -> None:
        """Delete a group that has no members, with all its offsets, and give its lease back."""
        await self._moved(seat, self._delete)

    async def tick(self) -> None:
        """Give back groups that nobody has used for a while, so that memory follows use."""
        now = self._clock.monotonic()
        idle = [seat for seat in self if seat.is_idle and now - seat.last_used_at > self._idle_s]
        await self._give_back_all(idle)

    async def drain(self) -> None:
        """Take no more groups and give all back: their members are sent to other brokers at once."""
        self._is_draining = True
        await self._give_back_all(list(self))

    async def _give_back_all(self, seats: list[Seat]) -> None:
        for first in range(0, len(seats), GIVEN_BACK_AT_ONCE):
            some = seats[first : first + GIVEN_BACK_AT_ONCE]
            await asyncio.gather(*(self._give_back_one(seat) for seat in some))

    async def _give_back_one(self, seat: Seat) -> None:
        # Somebody else may be ending it already, or everything ends: then it needs no giving back.
        with contextlib.suppress(GroupRefused):
            await self._moved(seat, self._give_back)

    async def _moved(self, seat: Seat, work: Callable[[Seat], Awaitable[None]]) -> None:
        """End a seat by doing something that others who want the group wait for. Raises `GroupRefused`."""

        async def move() -> None:
            await work(seat)

        if seat.group_id in self._moving or seat.has_ended:
            raise loading(seat.group_id)
        moving = self._move(seat.group_id, move())
        await asyncio.wait([moving])
        if moving.cancelled():
            raise not_coordinator(seat.group_id)
        moving.result()

    def _move(self, group_id: str, work: Coroutine[Any, Any, "Seat | None"]) -> "asyncio.Task[Seat | None]":
        task = asyncio.get_running_loop().create_task(work)
        self._moving[group_id] = task

        def moved(done: "asyncio.Task[Seat | None]") -> None:
            if self._moving.get(group_id) is done:
                del self._moving[group_id]
            if not done.cancelled():
                done.exception()  # whoever waits raises it; where nobody waits any more, it is of no use

        task.add_done_callback(moved)
        return task

    async def _load(self, group_id: str, tenure: Tenure) -> Seat:
        keys = self._keys.group(group_id)
        try:
            lease, loaded = await take_over(
                self._store, keys, group_id, tenure.session, crash_points=self._crash_points
            )
            # What an earlier coordinator knew of topics we must know, too.
            await self._before_load()
        except (LeaseHeld, Fenced) as error:
            raise not_coordinator(group_id) from error
        except (Retryable, OutcomeUnknown) as error:
            raise loading(group_id) from error
        if self._patterns is None:
            return self._seated(group_id, tenure, lease, loaded)
        async with self._patterns.held(regexes_of(loaded), is_new=False):
            return self._seated(group_id, tenure, lease, loaded)

    def _seated(self, group_id: str, tenure: Tenure, lease: Lease, loaded: Loaded) -> Seat:
        """Make the seat of a group that was read. Raises `GroupRefused` if it is too late for that."""
        if self._tenure is not tenure or self._is_draining or not tenure.is_surely_alive():
            raise not_coordinator(group_id)
        keys = self._keys.group(group_id)
        now = Moment(monotonic_ms(self._clock), self._clock.now_ms())
        machine = self._make_machine(loaded, now)
        seat = Seat(
            group_id=group_id,
            keys=keys,
            lease=lease,
            machine=machine,
            tenure=tenure,
            clock=self._clock,
            exists=loaded.head is not None,
            on_change=self._changed,
            on_failure=self._failed,
        )
        journal = Journal(
            store=self._store,
            unit=keys.unit,
            lease=lease,
            clock=self._clock,
            crash_points=self._crash_points,
            is_alive=tenure.is_surely_alive,
            on_broken=lambda error: self._broken(seat, error),
        )
        seat.write_to(journal)
        self._seats[group_id] = seat
        self._changed(seat, None)
        return seat

    async def _give_back(self, seat: Seat) -> None:
        with contextlib.suppress(GroupRefused):
            await seat.settled()
        seat.end(not_coordinator(seat.group_id))
        # Who cannot be told now is told by the end of our session.
        with contextlib.suppress(Retryable, OutcomeUnknown):
            await release(self._store, seat.lease)

    async def _delete(self, seat: Seat) -> None:
        await seat.settled()
        seat.end(loading(seat.group_id))
        try:
            await delete_group(self._store, seat.keys, seat.lease, crash_points=self._crash_points)
        except Fenced as error:
            raise not_coordinator(seat.group_id) from error
        except (Retryable, OutcomeUnknown) as error:
            raise loading(seat.group_id) from error
        with contextlib.suppress(Retryable, OutcomeUnknown):
            await release(self._store, seat.lease)

    def _changed(self, seat: Seat, noted: Noted | None) -> None:
        """Keep count of a seat's members and set its alarm; write down what operators want to know."""
        if noted is not None:
            self._metrics.noted(noted)
            shown = one_line(seat.group_id, max_chars=MAX_SHOWN_CHARS)
            self._log.info("a group has changed", group=shown, kind=noted.what, why=noted.text)
            return
        if seat.has_ended:
            self.alarms.forget(seat)
            if self._seats.get(seat.group_id) is seat:
                del self._seats[seat.group_id]
            self._pace.member_count -= self._counted.pop(seat.group_id, 0)
            return
        known, count = self._counted.get(seat.group_id, 0), seat.machine.member_count
        if known != count:
            self._counted[seat.group_id] = count
            self._pace.member_count += count - known
        deadline_ms = seat.next_deadline_ms
        if deadline_ms is not None:
            self.alarms.set(seat, deadline_ms)

    def _broken(self, seat: Seat, error: HeadraceError) -> None:
        self._log.warning(
            "a group's state could not be written down: it will be loaded anew",
            group=one_line(seat.group_id, max_chars=MAX_SHOWN_CHARS),
            error=error,
        )
        seat.end(not_coordinator(seat.group_id) if isinstance(error, Fenced) else loading(seat.group_id))

    def _failed(self, seat: Seat, error: Exception) -> None:
        self._log.error(
            "a group's state machine failed: the group will be loaded anew",
            group=one_line(seat.group_id, max_chars=MAX_SHOWN_CHARS),
            exc_info=error,
        )
