"""One group at the broker that coordinates it: a machine that decides, a journal that makes it last, who waits.

Must stay true:
- Nobody is answered before everything that the machine saved up to then is durable, and nobody at all once our
  session may be gone.
- When the journal breaks, or the machine fails, the seat ends: everybody who waits hears that, the memory is thrown
  away, and the group is loaded anew from what is durable.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

import msgspec

from headrace.errors import HeadraceError
from headrace.groups.alarms import monotonic_ms
from headrace.groups.problems import GroupRefused, loading, not_coordinator
from headrace.groups.protocol import (
    NO_EPOCH,
    AnyReply,
    CommitClaim,
    Effect,
    Event,
    GroupDescription,
    Machine,
    Moment,
    Noted,
    Reply,
    Save,
    Tick,
)
from headrace.groups.records import GROUP_HEAD, OFFSET_RECORD, OffsetRecord
from headrace.groups.store import Partition, changes_of
from headrace.metadata.keys import GroupKeys
from headrace.metadata.leases import Lease
from headrace.metadata.port import Key
from headrace.model.error_codes import ErrorCode
from headrace.model.ids import SessionId
from headrace.runtime.clock import Clock

_TICK = Tick()
_NO_TOKEN = -1


class Tenure(Protocol):
    """This process's membership in the cluster, which everything a coordinator does hangs on."""

    @property
    def session(self) -> SessionId: ...

    def is_surely_alive(self) -> bool: ...


class Writes(Protocol):
    """The part of `Journal` that a seat uses."""

    @property
    def is_idle(self) -> bool: ...

    def save(self, changes: Mapping[Key, bytes | None]) -> None: ...
    def after(self, then: Callable[[], None]) -> None: ...
    async def settled(self) -> None: ...
    def close(self) -> None: ...


class Seat:
    """A group that this broker coordinates, from taking its lease to losing or giving it back."""

    def __init__(
        self,
        *,
        group_id: str,
        keys: GroupKeys,
        lease: Lease,
        machine: Machine,
        tenure: Tenure,
        clock: Clock,
        exists: bool,
        on_change: Callable[["Seat", Noted | None], None],
        on_failure: Callable[["Seat", Exception], None],
    ) -> None:
        self.group_id = group_id
        self.keys = keys
        self.lease = lease
        self.member_count = machine.member_count
        self.last_used_at = clock.monotonic()
        self._machine = machine
        self._tenure = tenure
        self._clock = clock
        self._is_saved = exists
        self._on_change = on_change
        self._on_failure = on_failure
        self._journal: Writes | None = None
        self._tokens = count()
        self._waiting: dict[int, asyncio.Future[AnyReply]] = {}
        self._committing: set[asyncio.Future[ErrorCode]] = set()
        self._ended: GroupRefused | None = None

    def write_to(self, journal: Writes) -> None:
        """Use this journal; the two need each other, so it comes second."""
        self._journal = journal

    @property
    def exists(self) -> bool:
        """Whether the group is there for others: written down, or about to be."""
        return self._is_saved or self._machine.member_count > 0

    @property
    def is_idle(self) -> bool:
        """Whether the group has no members and nothing is under way."""
        return (
            self._machine.member_count == 0
            and self._machine.next_deadline_ms is None
            and not self._waiting
            and self._writes.is_idle
        )

    @property
    def has_members(self) -> bool:
        """Whether anybody is in the group, or on the way in."""
        return self._machine.member_count > 0 or self._machine.state != "Empty"

    @property
    def next_deadline_ms(self) -> int | None:
        """When to be woken."""
        return self._machine.next_deadline_ms

    @property
    def machine(self) -> Machine:
        """The machine, for those who only look."""
        return self._machine

    def require_alive(self) -> None:
        """Raise `GroupRefused` unless we surely still coordinate this group: what every answer asks first."""
        if self._ended is not None:
            raise self._ended
        if not self._tenure.is_surely_alive():
            self.end(not_coordinator(self.group_id))
            raise not_coordinator(self.group_id)

    async def call(self, event: Event) -> AnyReply:
        """Let the machine take an event and wait for its reply. Raises `GroupRefused`."""
        self.require_alive()
        token = next(self._tokens)
        waiter: asyncio.Future[AnyReply] = asyncio.get_running_loop().create_future()
        self._waiting[token] = waiter
        self._feed(event, token)
        return await waiter

    def tell(self, event: Event) -> None:
        """Let the machine take an event that nobody waits for."""
        if self._ended is None and self._tenure.is_surely_alive():
            self._feed(event, _NO_TOKEN)

    def wake(self, now_ms: int) -> int | None:
        """Act on deadlines that have come; return the next one."""
        # A process that was paused finds every member's deadline passed. It must not act on that before it knows
        # that it still coordinates, and by then it does not.
        if self._ended is not None or not self._tenure.is_surely_alive():
            self.end(not_coordinator(self.group_id))
            return None
        deadline_ms = self._machine.next_deadline_ms
        if deadline_ms is not None and deadline_ms <= now_ms:
            self._feed(_TICK, _NO_TOKEN)
        return self._machine.next_deadline_ms

    async def commit(self, claim: CommitClaim, offsets: Mapping[Partition, OffsetRecord]) -> ErrorCode:
        """Commit offsets for a member, or for somebody who is none; they are durable when this returns `NONE`."""
        self.require_alive()
        now = self._now()
        if not self.exists and claim.epoch > NO_EPOCH:
            return ErrorCode.GROUP_ID_NOT_FOUND if claim.knows_epochs else ErrorCode.ILLEGAL_GENERATION
        code = self._machine.check_commit(claim, now)
        if code is not ErrorCode.NONE or not offsets:
            return code
        changes: dict[Key, bytes | None] = {
            self.keys.offset(*partition): OFFSET_RECORD.encode(record) for partition, record in offsets.items()
        }
        if not self._is_saved:
            head = msgspec.structs.replace(self._machine.head, empty_since_ms=now.wall_ms)
            changes[self.keys.head] = GROUP_HEAD.encode(head)
            self._is_saved = True
        return await self._written(changes)

    async def delete_offsets(
        self, partitions: Sequence[Partition], name_of: Callable[[Partition], str | None]
    ) -> dict[Partition, ErrorCode]:
        """Delete committed offsets of partitions that no member reads; say what became of each."""
        self.require_alive()
        subscribed: frozenset[str] | None = frozenset()
        if self.has_members:
            subscribed = self._machine.subscribed()
        if subscribed is None:
            raise GroupRefused(ErrorCode.NON_EMPTY_GROUP, f"group '{self.group_id}' has members: stop them first")
        outcomes = {
            partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if name_of(partition) in subscribed else ErrorCode.NONE
            for partition in partitions
        }
        gone: dict[Key, bytes | None] = {
            self.keys.offset(*partition): None for partition, code in outcomes.items() if code is ErrorCode.NONE
        }
        if gone:
            await self._written(gone)
        return outcomes

    def check_fetch(self, claim: CommitClaim) -> None:
        """Raise `GroupRefused` unless whoever claims to be a member may read offsets."""
        code = self._machine.check_fetch(claim)
        if code is not ErrorCode.NONE:
            raise GroupRefused(code, f"{code.name} in group '{self.group_id}'")

    async def settled(self) -> None:
        """Wait until all that was taken so far is durable. Raises `GroupRefused` if it will not be."""
        try:
            await self._writes.settled()
        except HeadraceError as error:
            raise self._ended or loading(self.group_id) from error

    def describe(self) -> GroupDescription:
        """Return what admin clients see."""
        return self._machine.describe()

    def end(self, why: GroupRefused) -> None:
        """Coordinate no more: everybody who waits hears why."""
        if self._ended is not None:
            return
        self._ended = why
        self._writes.close()
        waiters: list[asyncio.Future[Any]] = [*self._waiting.values(), *self._committing]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(GroupRefused(why.code, str(why)))
        self._waiting.clear()
        self._committing.clear()
        self.member_count = 0
        self._on_change(self, None)

    @property
    def has_ended(self) -> bool:
        """Whether this seat is no more."""
        return self._ended is not None

    @property
    def _writes(self) -> Writes:
        assert self._journal is not None, "a seat is given its journal before anything else"
        return self._journal

    def _now(self) -> Moment:
        self.last_used_at = self._clock.monotonic()
        return Moment(monotonic_ms(self._clock), self._clock.now_ms())

    def _feed(self, event: Event, token: int) -> None:
        try:
            effects = self._machine.handle(event, token, self._now())
        except Exception as error:
            # A mistake of ours. What the machine remembers may be half changed: only what is durable can be trusted.
            self._on_failure(self, error)
            self.end(loading(self.group_id))
            return
        self._perform(effects)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    self._writes.after(lambda effect=effect: self._answer(effect))  # type: ignore[misc]
                case Save():
                    self._is_saved = True
                    self._writes.save(changes_of(effect, self.keys))
                case Noted():
                    self._on_change(self, effect)
        self._on_change(self, None)

    def _answer(self, reply: Reply) -> None:
        waiter = self._waiting.pop(reply.token, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(reply.reply)

    async def _written(self, changes: Mapping[Key, bytes | None]) -> ErrorCode:
        """Write changes behind everything else, and return when they are durable."""
        self._writes.save(changes)
        waiter: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._committing.add(waiter)

        def tell() -> None:
            if not waiter.done():
                waiter.set_result(ErrorCode.NONE)

        self._writes.after(tell)
        try:
            return await waiter
        finally:
            self._committing.discard(waiter)
