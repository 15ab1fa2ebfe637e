"""What only SQLite does: group commit, the busy handler, damage, disk full, a commit that may have failed."""

import asyncio
import resource
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import cast

import apsw
import pytest

from headrace.errors import Corrupt, Invalid, OutcomeUnknown, Retryable, Unsupported, Unusable
from headrace.metadata import keys
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Decision, Key, Range, Reads, Seen, Versioned
from headrace.metadata.sqlite import queue, rows
from headrace.metadata.sqlite.store import SqliteMetadata
from headrace.model.ids import DomainId
from headrace.runtime.crash_points import CrashPoint
from tests.contract.metadata.rules import COUNTER, increment, put, value
from tests.unit.metadata.sqlite.conftest import OpenStore, foreign_connection

DOMAIN = DomainKeys(DomainId(0))
LIMIT_S = 60


class CountCommits:
    """Counts the commits that have something to write, and can hold them up."""

    def __init__(self) -> None:
        self.commits = 0
        self.on_commit: Callable[[], None] = lambda: None

    def reach(self, point: CrashPoint) -> None:
        if point is CrashPoint.METADATA_BEFORE_COMMIT:
            self.commits += 1
            self.on_commit()


async def test_transactions_that_wait_share_one_commit(open_store: OpenStore) -> None:
    crash_points = CountCommits()
    store = await open_store(crash_points=crash_points)
    await increment(store)
    before = crash_points.commits
    seen = await asyncio.gather(*(increment(store) for _ in range(40)))
    assert sorted(seen) == list(range(1, 41)), "each saw what the one before it wrote"
    assert crash_points.commits - before < 20


async def test_a_group_has_a_limit_and_so_has_the_queue(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MAX_GROUP_JOBS", 4)
    monkeypatch.setattr(queue, "MAX_QUEUED_JOBS", 30)
    crash_points = CountCommits()
    store = await open_store(crash_points=crash_points)
    outcomes = await asyncio.gather(*(increment(store) for _ in range(100)), return_exceptions=True)
    done = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(done) >= 30
    assert all(isinstance(outcome, int | Retryable) for outcome in outcomes)
    assert crash_points.commits >= len(done) / 4
    assert await value(store, COUNTER) == str(len(done)).encode()


async def test_transactions_that_only_read_commit_nothing(open_store: OpenStore) -> None:
    crash_points = CountCommits()
    store = await open_store(crash_points=crash_points)
    await store.transact([DOMAIN.unit], Reads(keys=[COUNTER]), lambda _: Decision(result=None))
    assert crash_points.commits == 0


async def test_a_lock_held_elsewhere_for_too_long_is_a_definite_failure(open_store: OpenStore, path: str) -> None:
    store = await open_store(busy_limit_s=0.05)
    with foreign_connection(path) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(Retryable, match="lock"):
            await increment(store)
        foreign.execute("ROLLBACK")
    assert await increment(store) == 0, "nothing had been written, and it goes on"


async def test_a_lock_that_is_given_back_in_time_is_waited_for(store: SqliteMetadata, path: str) -> None:
    with foreign_connection(path) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(increment(store))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert await value(store, COUNTER) is None, "readers do not wait for writers"
        foreign.execute("ROLLBACK")
        async with asyncio.timeout(LIMIT_S):
            assert await waiting == 0


async def test_what_is_decided_first_holds_up_no_other_process(store: SqliteMetadata, path: str) -> None:
    await increment(store)
    decided: list[bytes | None] = []

    def decide(seen: Seen) -> Decision[None]:
        decided.append(seen.get(COUNTER))
        with foreign_connection(path) as foreign:  # Without a busy handler: it fails at once if it must wait.
            foreign.execute("BEGIN IMMEDIATE")
            foreign.execute("ROLLBACK")
        return Decision(result=None, puts={COUNTER: b"7"})

    await store.transact([DOMAIN.unit], Reads(keys=[COUNTER]), decide)
    assert decided == [b"1"] and await value(store, COUNTER) == b"7"


async def test_what_another_process_wrote_meanwhile_is_seen_by_a_second_decision(
    store: SqliteMetadata, open_store: OpenStore, path: str
) -> None:
    other = await open_store()
    await increment(store)
    loop = asyncio.get_running_loop()
    decided: list[bytes | None] = []
    meanwhile: list[bool] = []

    def decide(seen: Seen) -> Decision[None]:
        decided.append(seen.get(COUNTER))
        if len(decided) == 1:
            asyncio.run_coroutine_threadsafe(increment(other), loop).result(LIMIT_S)
        else:
            meanwhile.append(_is_free(path))
        return Decision(result=None, puts={COUNTER: (seen.get(COUNTER) or b"") + b"!"})

    await store.transact([DOMAIN.unit], Reads(keys=[COUNTER]), decide)
    assert decided == [b"1", b"2"], "the first decision was about a state that had passed"
    assert await value(store, COUNTER) == b"2!" and meanwhile == [False], "the second one holds the lock"


async def test_processes_that_write_in_turns_do_not_decide_in_vain(
    store: SqliteMetadata, open_store: OpenStore
) -> None:
    other = await open_store()
    decisions = 0

    def count(seen: Seen) -> Decision[None]:
        nonlocal decisions
        decisions += 1
        found = int(seen.get(COUNTER) or b"0")
        return Decision(result=None, puts={COUNTER: str(found + 1).encode()})

    rounds = 50

    async def write(one: SqliteMetadata) -> None:
        for _ in range(rounds):
            await one.transact([DOMAIN.unit], Reads(keys=[COUNTER]), count)

    await asyncio.gather(write(store), write(other))
    assert await value(store, COUNTER) == str(2 * rounds).encode()
    assert decisions <= 2 * rounds + 2, "each of them found out once that it is not alone"


def _is_free(path: str) -> bool:
    with foreign_connection(path) as foreign:
        try:
            foreign.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            return False
        foreign.execute("ROLLBACK")
        return True


async def test_closing_does_not_wait_for_a_lock(open_store: OpenStore, path: str) -> None:
    store = await open_store(busy_limit_s=10_000)
    with foreign_connection(path) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(increment(store))
        await asyncio.sleep(0.02)
        async with asyncio.timeout(LIMIT_S):
            await store.close()
            with pytest.raises(Retryable):
                await waiting
        foreign.execute("ROLLBACK")


async def test_a_full_disk_fails_the_transaction_and_heals(store: SqliteMetadata) -> None:
    await increment(store)
    connection = store._writer._connection
    pages = connection.pragma("page_count")
    connection.pragma("max_page_count", pages)
    with pytest.raises(Retryable, match="full"):
        await put(store, big=bytes(1_000_000))
    connection.pragma("max_page_count", 1_000_000)
    await put(store, big=bytes(1_000_000))
    assert await increment(store) == 1


class _BrokenCommit:
    """A connection whose COMMIT goes through and then reports an I/O error, as a failed fsync does."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def execute(self, statement: str, *arguments: object) -> object:
        result = self._connection.execute(statement, *arguments)  # type: ignore[arg-type]
        if statement == "COMMIT":
            raise apsw.IOError("disk I/O error")
        return result


async def test_an_io_error_in_commit_is_unknown_and_the_store_is_never_used_again(
    store: SqliteMetadata, open_store: OpenStore
) -> None:
    await increment(store)
    store._writer._connection = _BrokenCommit(store._writer._connection)  # type: ignore[assignment]
    with pytest.raises(OutcomeUnknown):
        await increment(store)
    with pytest.raises(Unusable, match="not to be trusted"):
        await increment(store)
    with pytest.raises(Unusable, match="not to be trusted"):
        await store.get(COUNTER)
    assert await value(await open_store(), COUNTER) in (b"1", b"2")


async def test_a_file_that_is_no_database_is_damage_and_stays_as_it_is(open_store: OpenStore, path: str) -> None:
    garbage = b"this is not a database, but it is all we have left of one" * 100
    Path(path).write_bytes(garbage)
    with pytest.raises(Corrupt, match=r"meta\.db"):
        await open_store()
    assert Path(path).read_bytes() == garbage


async def test_a_newer_schema_is_refused(open_store: OpenStore, path: str) -> None:
    with foreign_connection(path) as newer:
        newer.pragma("user_version", 99)
    with pytest.raises(Unsupported, match="99"):
        await open_store()


async def test_a_damaged_session_record_fails_loudly_and_is_not_deleted(store: SqliteMetadata, path: str) -> None:
    session = await store.open_session(timeout_ms=1000)
    with foreign_connection(path) as foreign:
        foreign.execute("UPDATE kv SET value = x'0102' WHERE key = ?", (keys.session(session),))
    with pytest.raises(Corrupt, match=session):
        await store.sessions()
    assert await store.get(keys.session(session)) is not None


async def test_many_opening_a_new_file_at_once_is_no_problem(open_store: OpenStore) -> None:
    stores = await asyncio.gather(*(open_store() for _ in range(4)))
    await asyncio.gather(*(increment(store) for store in stores))
    assert await value(stores[0], COUNTER) == b"4"


async def test_a_value_too_large_for_sqlite_is_refused(store: SqliteMetadata) -> None:
    store._writer._connection.limit(apsw.SQLITE_LIMIT_LENGTH, 10_000)
    with pytest.raises(Invalid):
        await put(store, big=bytes(20_000))
    assert await increment(store) == 0


async def test_a_process_that_watches_but_has_nothing_to_do_burns_no_cpu(store: SqliteMetadata) -> None:
    watch = store.watch(DOMAIN.unit)
    await increment(store)
    await watch.wait()
    await asyncio.sleep(0.3)  # the last look has been taken by now
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(1.0)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert used_s < 0.1, "polling every 10 ms would cost a multiple of what the whole process does in that second"


async def test_the_group_sees_a_failing_neighbour_only_as_a_failing_neighbour(store: SqliteMetadata) -> None:
    def fail_after_reading(seen: Seen) -> Decision[None]:
        return Decision(result=None, puts={Key("/elsewhere"): b""})

    outcomes = await asyncio.gather(
        increment(store),
        store.transact([DOMAIN.unit], Reads(keys=[COUNTER]), fail_after_reading),
        increment(store),
        return_exceptions=True,
    )
    assert outcomes[0] == 0
    assert isinstance(outcomes[1], Invalid)
    assert outcomes[2] == 1


async def in_one_group(store: SqliteMetadata, *calls: Coroutine[object, object, object]) -> list[object]:
    """Hold the writer up until all calls are waiting, so that it takes them together."""
    gate = threading.Event()

    def hold(seen: Seen) -> Decision[None]:
        gate.wait(LIMIT_S)
        return Decision(result=None)

    holding = asyncio.ensure_future(store.transact([DOMAIN.unit], Reads(), hold))
    async with asyncio.timeout(LIMIT_S):
        while not store._queue._is_running or store._queue._queued.qsize():
            await asyncio.sleep(0.001)
        waiting = [asyncio.ensure_future(call) for call in calls]
        while store._queue._queued.qsize() < len(calls):
            await asyncio.sleep(0.001)
        gate.set()
        await holding
        return await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_job_that_sqlite_refuses_fails_alone(store: SqliteMetadata) -> None:
    store._writer._connection.limit(apsw.SQLITE_LIMIT_LENGTH, 10_000)
    outcomes = await in_one_group(
        store, increment(store), put(store, big=bytes(20_000)), increment(store), put(store, huge=bytes(30_000))
    )
    assert isinstance(outcomes[1], Invalid)
    assert isinstance(outcomes[3], Invalid)
    assert (outcomes[0], outcomes[2]) == (0, 1)
    assert await increment(store) == 2


async def test_a_job_that_breaks_in_the_middle_of_its_writes_leaves_nothing(store: SqliteMetadata) -> None:
    """The first 64 rows go out in one statement, and the one after them cannot be bound at all."""
    broken = {f"k{number:03d}": b"x" for number in range(70)} | {"k069": cast(bytes, object())}
    outcomes = await in_one_group(store, increment(store), put(store, **broken), increment(store))
    assert isinstance(outcomes[1], TypeError)
    assert (outcomes[0], outcomes[2]) == (0, 1)
    assert await store.range(keys.prefix_range(DOMAIN.unit, limit=10)) == [await store.get(COUNTER)]


async def test_closing_closes_the_connections_of_reads_under_way(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store()
    await increment(store)
    connections = list(store._readers)
    began, gate = threading.Event(), threading.Event()
    read_range = rows.read_range

    def slow(connection: apsw.Connection, range_: Range) -> list[Versioned]:
        began.set()
        gate.wait(LIMIT_S)
        return read_range(connection, range_)

    monkeypatch.setattr(rows, "read_range", slow)
    reading = asyncio.ensure_future(store.range(keys.prefix_range(DOMAIN.unit, limit=10)))
    await asyncio.to_thread(began.wait, LIMIT_S)
    reading.cancel()
    closing = asyncio.ensure_future(store.close())
    await asyncio.wait([closing], timeout=0.05)
    gate.set()
    await closing
    for connection in connections:
        with pytest.raises(apsw.ConnectionClosedError):
            connection.execute("SELECT 1")
