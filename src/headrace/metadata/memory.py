"""The metadata store in memory: for tests, the simulation, and a broker that may forget everything.

Must stay true: it is deterministic (no thread, no clock, chance from the rng it was given), and nothing
awaits between reading and writing, so every transaction is atomic by construction. Several simulated
processes of one event loop share one store.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.errors import Unusable
from headrace.metadata import keys
from headrace.metadata.checking import changed_units, check_decision, check_range, check_reads
from headrace.metadata.port import (
    Committed,
    Decision,
    Key,
    Range,
    Reads,
    Renewals,
    Seen,
    SessionState,
    Unit,
    Versioned,
    Watch,
)
from headrace.metadata.session_records import encode_session, ended, new_session_id, session_state
from headrace.metadata.watching import WatchHub
from headrace.model.ids import SessionId
from headrace.runtime.rng import Rng

T = TypeVar("T")


class MemoryMetadata:
    """A dict and its keys in order; see `port.MetadataStore`."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._rows: dict[Key, Versioned] = {}
        self._order: list[Key] = []
        self._owners: dict[Key, SessionId] = {}
        self._revision = 0
        self._hub = WatchHub()
        self._is_closed = False

    async def get(self, key: Key) -> Versioned | None:
        self._check_open()
        return self._rows.get(keys.check(key))

    async def range(self, range_: Range) -> list[Versioned]:
        self._check_open()
        check_range(range_)
        return self._read_range(range_)

    async def transact(
        self,
        units: Sequence[Unit],
        reads: Reads,
        decide: Callable[[Seen], Decision[T]],
        *,
        session: SessionId | None = None,
    ) -> Committed[T]:
        self._check_open()
        check_reads(units, reads)
        if session is not None and keys.session(session) not in self._rows:
            raise ended(session)
        values = {key: self._rows[key] for key in reads.keys if key in self._rows}
        decision = decide(Seen(values, [self._read_range(range_) for range_ in reads.ranges]))
        check_decision(units, decision, has_session=session is not None)
        changed = changed_units(units, decision)
        if not changed:
            return Committed(decision.result, 0)
        return Committed(decision.result, self._write(decision, session, changed))

    def watch(self, prefix: str) -> Watch:
        return self._hub.watch(prefix)

    async def open_session(self, *, timeout_ms: int) -> SessionId:
        self._check_open()
        value = encode_session(timeout_ms)
        session = new_session_id(self._rng)
        self._write_session(session, value)
        return session

    async def renew_session(self, session: SessionId) -> None:
        self._check_open()
        row = self._rows.get(keys.session(session))
        if row is None:
            raise ended(session)
        self._write_session(session, row.value)

    def renewals(self, *, timeout_ms: int) -> Renewals | None:
        return None

    async def end_session(self, session: SessionId) -> None:
        self._check_open()
        self._end(session)

    async def sessions(self) -> list[SessionState]:
        self._check_open()
        return [
            session_state(row) for row in self._read_range(keys.prefix_range(keys.SESSIONS, limit=len(self._rows)))
        ]

    async def expire_session(self, seen: SessionState) -> bool:
        self._check_open()
        row = self._rows.get(keys.session(seen.id))
        if row is None or row.version != seen.version:
            return False
        self._end(seen.id)
        return True

    async def close(self) -> None:
        self._is_closed = True
        self._hub.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unusable("this metadata store is closed: open it again")

    def _read_range(self, range_: Range) -> list[Versioned]:
        start = bisect_left(self._order, range_.start)
        end = max(start, bisect_left(self._order, range_.end))
        if range_.reverse:
            found = self._order[max(start, end - range_.limit) : end]
            found.reverse()
        else:
            found = self._order[start : min(end, start + range_.limit)]
        return [self._rows[key] for key in found]

    def _write(self, decision: Decision[object], session: SessionId | None, changed: Sequence[Unit]) -> int:
        self._revision += 1
        for key in decision.deletes:
            self._delete(key)
        for key, value in decision.puts.items():
            self._put(key, value)
            self._owners.pop(key, None)
        for key, value in decision.ephemerals.items():
            assert session is not None, "check_decision lets no ephemeral key through without a session"
            self._put(key, value)
            self._owners[key] = session
        self._hub.signal(changed, self._revision)
        return self._revision

    def _write_session(self, session: SessionId, value: bytes) -> None:
        key = keys.session(session)
        self._write(Decision(result=None, puts={key: value}), None, [keys.unit_of(key)])

    def _end(self, session: SessionId) -> None:
        key = keys.session(session)
        if key not in self._rows:
            return
        deletes = [key, *(owned for owned, owner in self._owners.items() if owner == session)]
        changed = sorted({keys.unit_of(deleted) for deleted in deletes})
        self._write(Decision(result=None, deletes=deletes), None, changed)

    def _put(self, key: Key, value: bytes) -> None:
        if key not in self._rows:
            insort(self._order, key)
        self._rows[key] = Versioned(key, value, self._revision)

    def _delete(self, key: Key) -> None:
        if self._rows.pop(key, None) is not None:
            del self._order[bisect_left(self._order, key)]
            self._owners.pop(key, None)
