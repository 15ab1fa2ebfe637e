"""The metadata port: an ordered key-value store with versions, and nothing more.

Must stay true, for every engine:
- `transact` is serialisable among all transactions that share a unit, absent keys and ranges included:
  *decide* sees the state that its writes are applied to.
- `decide` is a plain function. It has no effects and may run more than once. What it raises ends the
  transaction without effect and reaches the caller unchanged.
- When `transact` returns, its writes are durable and every later read, from any process, sees them.
- `Retryable` means that nothing was written; `OutcomeUnknown` means that it may have been.
- A version is a store-wide revision: the revision of the transaction that wrote the key. Within one unit
  revisions strictly increase in commit order.
- A watch is a level signal: it says *something under this prefix may have changed, re-read*. Signals are
  coalesced and may be spurious; after the last change there is always one more signal.
- Keys are compared byte by byte. Every key belongs to one lock unit (`keys.unit_of`); a transaction reads and
  writes only inside the units it names, and no range crosses a unit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NewType, Protocol, TypeVar

import msgspec

from headrace.model.ids import SessionId

Key = NewType("Key", str)
Unit = NewType("Unit", str)

MAX_KEY_BYTES = 1024
MAX_RANGE_LIMIT = 10_000

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Versioned(msgspec.Struct, frozen=True):
    """A key's value and the revision that wrote it. A struct, because a commit makes hundreds: it costs a fifth."""

    key: Key
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Range:
    """Keys from `start` (inclusive) to `end` (exclusive), at most `limit` of them, in order or in reverse."""

    start: Key
    end: Key
    limit: int = MAX_RANGE_LIMIT
    reverse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What a transaction wants to see before it decides."""

    keys: Sequence[Key] = ()
    ranges: Sequence[Range] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a transaction has read: a value per key that exists, a list per range, in the order of `Reads`."""

    values: Mapping[Key, Versioned]
    ranges: Sequence[Sequence[Versioned]]

    def get(self, key: Key) -> bytes | None:
        """Return the value of a key that was read, or `None` if it does not exist."""
        found = self.values.get(key)
        return None if found is None else found.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[T_co]):
    """What *decide* wants written, and what the caller gets back.

    `ephemerals` are puts that vanish with the transaction's session; a plain put over an ephemeral key
    makes it permanent, and the other way round.
    """

    result: T_co
    puts: Mapping[Key, bytes] = field(default_factory=dict)
    ephemerals: Mapping[Key, bytes] = field(default_factory=dict)
    deletes: Sequence[Key] = ()


@dataclass(frozen=True, slots=True)
class Committed(Generic[T_co]):
    """A transaction's result and its revision; a transaction that wrote nothing has revision 0."""

    result: T_co
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """A session as an observer sees it: `version` changes with every renewal."""

    id: SessionId
    timeout_ms: int
    version: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Something under `prefix` may have changed.

    `revision` is a hint: 0 when signals may have been lost, -1 when the store may have been taken back to an earlier
    state, by a fail-over or a restore: then nothing that was read before counts.
    """

    prefix: str
    revision: int


class Watch(Protocol):
    """A stream of signals for one prefix. The first `wait` after opening returns at once, with revision 0."""

    async def wait(self) -> Signal:
        """Wait until something under the prefix may have changed since the last `wait` returned."""
        ...

    def close(self) -> None:
        """Stop watching; a waiter is woken with `asyncio.CancelledError`."""
        ...


class Renewals(Protocol):
    """A way to renew sessions that waits behind nothing else this process does with the store.

    All calls come from one thread, which has an event loop of its own and no other work: `renew` may block it.
    """

    async def renew(self, session: SessionId) -> None:
        """Renew a session; as `MetadataStore.renew_session`."""
        ...

    async def close(self) -> None:
        """Free the connection."""
        ...


class MetadataStore(Protocol):
    """get, range, transact, watch, sessions."""

    async def get(self, key: Key) -> Versioned | None:
        """Return the newest committed value, or `None`."""
        ...

    async def range(self, range_: Range) -> list[Versioned]:
        """Return the keys of a range, from one consistent state of the store."""
        ...

    async def transact(
        self,
        units: Sequence[Unit],
        reads: Reads,
        decide: Callable[[Seen], Decision[T]],
        *,
        session: SessionId | None = None,
    ) -> Committed[T]:
        """Lock the units, read, decide, write, commit: all or nothing.

        With `session`, the transaction also demands that this session is alive, else it raises `Fenced`;
        ephemerals need one. Raises `Invalid` for keys outside the units, too long, or read without a limit.
        """
        ...

    def watch(self, prefix: str) -> Watch:
        """Watch a prefix, across processes."""
        ...

    async def open_session(self, *, timeout_ms: int) -> SessionId:
        """Open a session that ends unless it is renewed within every `timeout_ms`."""
        ...

    async def renew_session(self, session: SessionId) -> None:
        """Renew a session. Raises `Fenced` if it has ended."""
        ...

    def renewals(self, *, timeout_ms: int) -> Renewals | None:
        """Return a connection of its own for renewing sessions with this timeout, to be used from another thread.

        `None` where there is nothing to wait behind, and in the simulation: then `renew_session` is to be called.
        """
        ...

    async def end_session(self, session: SessionId) -> None:
        """End a session now and delete its ephemeral keys; a session that has ended already is no error."""
        ...

    async def sessions(self) -> list[SessionState]:
        """Return all living sessions."""
        ...

    async def expire_session(self, seen: SessionState) -> bool:
        """End a session, with its ephemeral keys, if it was not renewed since it was `seen`; say whether it ended.

        The observer counts the timeout on its own monotonic clock from the moment it first saw that
        version, so no two clocks are ever compared. An engine with sessions of its own answers `False`.
        """
        ...

    async def close(self) -> None:
        """Free what the store holds open. Sessions are not ended: a crash must look the same."""
        ...
