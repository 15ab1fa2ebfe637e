"""What only PostgreSQL does: locks that time out, connections that break, a server that goes away."""

import asyncio
from types import SimpleNamespace

import asyncpg
import pytest

from headrace.errors import OutcomeUnknown, Retryable, Unsupported, Unusable
from headrace.metadata import keys
from headrace.metadata.keys import DomainKeys
from headrace.metadata.open import open_metadata
from headrace.metadata.port import Decision, Key, Reads
from headrace.metadata.postgres.connections import PostgresLimits
from headrace.metadata.postgres.statements import Statements
from headrace.metadata.postgres.store import PostgresMetadata
from headrace.metadata.watching import REWOUND
from headrace.model.ids import DomainId
from headrace.runtime.clock import SystemClock
from headrace.runtime.rng import system_rng
from tests.contract.metadata.rules import COUNTER, increment, put, value
from tests.contract.metadata.test_watches import quiet, wait_until
from tests.servers.postgres import PostgresServer
from tests.unit.metadata.postgres.conftest import Connection, OpenStore

DOMAIN = DomainKeys(DomainId(0))
KEY = Key(DOMAIN.unit + "a")
LIMIT_S = 60
IN_SCHEMA = "pid <> pg_backend_pid() AND application_name = 'headrace'"


async def eventually(store: PostgresMetadata) -> int:
    """Increment until the store serves again, as a caller with retries does."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                return await increment(store)
            except Retryable:
                await asyncio.sleep(0.05)


async def test_a_lock_that_is_held_too_long_is_a_definite_failure(
    open_store: OpenStore, admin: Connection, schema: str
) -> None:
    store = await open_store(limits=PostgresLimits(lock_timeout_ms=50))
    lock_id = Statements(schema).lock_id(DOMAIN.unit)
    async with admin.transaction():
        await admin.execute(f"SELECT pg_advisory_xact_lock({lock_id})")
        with pytest.raises(Retryable, match="nothing was written"):
            await increment(store)
    assert await increment(store) == 0


async def test_other_units_do_not_wait_for_a_lock(open_store: OpenStore, admin: Connection, schema: str) -> None:
    store = await open_store()
    async with admin.transaction():
        await admin.execute(f"SELECT pg_advisory_xact_lock({Statements(schema).lock_id(DOMAIN.unit)})")
        async with asyncio.timeout(LIMIT_S):
            assert await increment(store, Key("/headrace/v1/d/0001/counter")) == 0
            assert await value(store, COUNTER) is None, "readers wait for nobody"


async def test_a_process_paused_in_a_transaction_loses_its_locks(open_store: OpenStore) -> None:
    paused = await open_store(limits=PostgresLimits(idle_in_transaction_timeout_ms=7_000))
    other = await open_store()
    sql = paused._sql
    connection = await paused._acquire()
    assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") == "7s"
    # Shorter only now: opening a store is a transaction, too, and a busy machine takes its time between statements.
    await connection.execute("SET idle_in_transaction_session_timeout = 100")
    await connection.execute(sql.begin({sql.lock_id(DOMAIN.unit)}, set()))
    async with asyncio.timeout(LIMIT_S):
        assert await increment(other) == 0
    await paused._release(connection)


async def test_a_connection_lost_before_commit_had_no_effect(open_store: OpenStore, admin: Connection) -> None:
    store = await open_store()
    await increment(store)

    async def broken(*arguments: object) -> int:
        await admin.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {IN_SCHEMA}")
        return await write(*arguments)  # type: ignore[arg-type]

    write = store._write
    store._write = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(Retryable):
        await increment(store)
    store._write = write  # type: ignore[method-assign]
    assert await eventually(store) == 1


async def test_a_connection_lost_in_commit_has_an_unknown_outcome(open_store: OpenStore, admin: Connection) -> None:
    store = await open_store()
    await increment(store)
    commit = store._commit

    async def broken(connection: object) -> None:
        await admin.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {IN_SCHEMA}")
        await commit(connection)  # type: ignore[arg-type]

    store._commit = broken  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await increment(store)
    store._commit = commit  # type: ignore[method-assign]
    assert await eventually(store) in (1, 2)


async def test_a_commit_of_unknown_outcome_is_signalled_all_the_same(
    open_store: OpenStore, admin: Connection
) -> None:
    store, other = await open_store(), await open_store()
    watches = [handle.watch(DOMAIN.unit) for handle in (store, other)]
    for watch in watches:
        await quiet(watch)

    async def unknown(connection: Connection) -> None:
        await connection.execute("COMMIT")
        raise OutcomeUnknown("the answer was lost")

    store._commit = unknown  # type: ignore[method-assign,assignment]
    with pytest.raises(OutcomeUnknown):
        await put(store, a=b"1")
    for watch in watches:
        async with asyncio.timeout(LIMIT_S):
            assert (await watch.wait()).revision == 0, "nobody knows which revision it had"
        watch.close()


async def test_no_transaction_notifies(open_store: OpenStore, admin: Connection, schema: str) -> None:
    """PostgreSQL commits those that do one after another, in the whole database."""
    store = await open_store()
    store._notifier._connect = asyncio.Event().wait  # type: ignore[assignment]
    heard: asyncio.Queue[object] = asyncio.Queue()
    await admin.add_listener(schema, lambda _connection, _pid, _channel, payload: heard.put_nowait(payload))
    session = await store.open_session(timeout_ms=60_000)
    await store.renew_session(session)
    renewals = store.renewals(timeout_ms=60_000)
    assert renewals is not None
    await renewals.renew(session)
    await renewals.close()
    await increment(store)
    await store.end_session(session)
    await admin.execute(f"SELECT pg_notify('{schema}', 'last')")
    async with asyncio.timeout(LIMIT_S):
        assert await heard.get() == "last"


async def test_a_server_that_gives_revisions_again_was_taken_back(
    open_store: OpenStore, admin: Connection, schema: str
) -> None:
    store = await open_store()
    watch = store.watch(DOMAIN.unit)
    await quiet(watch)
    revision = await put(store, a=b"1")
    await put(store, a=b"2")
    await admin.execute(f"SELECT setval('{schema}.revision', {revision})")
    await quiet(watch)
    await put(store, a=b"3")
    async with asyncio.timeout(LIMIT_S):
        assert (await watch.wait()).revision == REWOUND
    watch.close()


async def test_a_server_says_which_one_it_is(open_store: OpenStore) -> None:
    store = await open_store()
    watch = store.watch(DOMAIN.unit)
    async with asyncio.timeout(LIMIT_S):
        while (server := store._history._server) is None:
            await watch.wait()
    identifier, _, timeline = server.partition("/")
    assert identifier.isdigit() and int(timeline, 16) >= 1
    store._history.note_server(f"{identifier}/{int(timeline, 16) + 1:08X}")
    async with asyncio.timeout(LIMIT_S):
        while (await watch.wait()).revision != REWOUND:
            pass
    watch.close()


async def test_closing_sends_what_was_committed_last(open_store: OpenStore, admin: Connection, schema: str) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()
    await admin.add_listener(schema, lambda _connection, _pid, _channel, payload: heard.put_nowait(payload))
    store = await open_store()
    revision = await put(store, a=b"1")
    await store.close()
    async with asyncio.timeout(LIMIT_S):
        assert await heard.get() == f"{DOMAIN.unit} {revision}"


async def test_a_watch_does_not_hear_its_own_handle_twice(open_store: OpenStore) -> None:
    store, other = await open_store(), await open_store()
    watch, elsewhere = store.watch(DOMAIN.unit), other.watch(DOMAIN.unit)
    await quiet(watch)
    await quiet(elsewhere)
    heard: list[int] = []
    store._listener._hub = SimpleNamespace(signal=lambda units, revision: heard.append(revision))  # type: ignore[assignment]
    revision = await put(store, a=b"1")
    async with asyncio.timeout(LIMIT_S):
        assert (await watch.wait()).revision == revision
        assert (await elsewhere.wait()).revision == revision
    marker = await put(other, a=b"2")
    async with asyncio.timeout(LIMIT_S):
        while marker not in heard:
            await asyncio.sleep(0.01)
    assert heard == [marker], "what this handle sent came back before, and was passed over"
    store._listener._hub = store._hub
    watch.close()
    elsewhere.close()


async def test_watches_survive_the_loss_of_the_listening_connection(open_store: OpenStore, admin: Connection) -> None:
    store, other = await open_store(), await open_store()
    watch = store.watch(DOMAIN.unit)
    await quiet(watch)
    await put(other, a=b"1")
    await wait_until(watch, store, KEY, b"1")
    await quiet(watch)
    await admin.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {IN_SCHEMA}")
    async with asyncio.timeout(LIMIT_S):
        assert (await watch.wait()).revision == 0, "after the reconnect it says that something may have been lost"
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await put(other, a=b"2")
                break
            except Retryable:
                await asyncio.sleep(0.05)
    await wait_until(watch, store, KEY, b"2")
    watch.close()


async def test_a_server_that_restarts_is_found_again(open_store: OpenStore, server: PostgresServer) -> None:
    store = await open_store()
    await increment(store)
    watch = store.watch(DOMAIN.unit)
    await quiet(watch)
    await asyncio.to_thread(server.restart)
    # All connections broke while nothing was under way, so a try may fail but none may count twice.
    assert await eventually(store) == 1
    await wait_until(watch, store, COUNTER, b"2")
    watch.close()


async def test_a_server_that_cannot_be_reached_is_retryable() -> None:
    with pytest.raises(Retryable):
        await open_metadata("postgres://nobody@127.0.0.1:1/none", clock=SystemClock(), rng=system_rng())


async def test_many_opening_a_new_schema_at_once_is_no_problem(open_store: OpenStore) -> None:
    stores = await asyncio.gather(*(open_store(limits=PostgresLimits(pool_size=1)) for _ in range(4)))
    await asyncio.gather(*(increment(store) for store in stores))
    assert await value(stores[0], COUNTER) == b"4"


async def test_a_newer_schema_is_refused(open_store: OpenStore, admin: Connection, schema: str) -> None:
    await open_store()
    await admin.execute(f"UPDATE {schema}.about SET version = 99")
    await admin.execute(f"DROP FUNCTION {schema}.write")
    with pytest.raises(Unsupported, match="99"):
        await open_store()
    functions = await admin.fetch("SELECT FROM pg_proc WHERE pronamespace = $1::regnamespace", schema)
    assert functions == [], "what a newer release has made stays as it is"


async def test_opening_waits_for_nobody_who_reads_and_nobody_waits_for_it(
    open_store: OpenStore, admin: Connection, schema: str
) -> None:
    await increment(await open_store())
    async with admin.transaction():
        await admin.execute(f"SELECT count(*) FROM {schema}.kv")  # A backup reads like this, for hours.
        store = await open_store(limits=PostgresLimits(lock_timeout_ms=200))
        assert await increment(store) == 1


async def test_more_transactions_than_connections_wait_their_turn(open_store: OpenStore) -> None:
    store = await open_store(limits=PostgresLimits(pool_size=2))
    assert sorted(await asyncio.gather(*(increment(store) for _ in range(20)))) == list(range(20))


async def test_those_who_wait_for_a_unit_leave_connections_to_others(
    open_store: OpenStore, admin: Connection, schema: str
) -> None:
    """Else a unit that another host holds would keep this process from renewing its session."""
    store = await open_store(limits=PostgresLimits(pool_size=3))
    session = await store.open_session(timeout_ms=10_000)
    async with admin.transaction():
        await admin.execute(f"SELECT pg_advisory_xact_lock({Statements(schema).lock_id(DOMAIN.unit)})")
        waiting = [asyncio.ensure_future(increment(store)) for _ in range(20)]
        await asyncio.sleep(0.1)
        await store.renew_session(session)
        assert await value(store, COUNTER) is None
    assert sorted(await asyncio.gather(*waiting)) == list(range(20))


async def test_a_domain_does_not_wait_for_a_connection_behind_many_groups(
    open_store: OpenStore, admin: Connection, schema: str
) -> None:
    store = await open_store(limits=PostgresLimits(pool_size=4, lock_timeout_ms=10**6, statement_timeout_ms=10**6))
    heads = [DOMAIN.group(f"g{number}").head for number in range(20)]
    async with admin.transaction():
        for head in heads:
            await admin.execute(f"SELECT pg_advisory_xact_lock({Statements(schema).lock_id(keys.unit_of(head))})")
        committing = [asyncio.ensure_future(increment(store, head)) for head in heads]
        async with asyncio.timeout(LIMIT_S / 6):
            # Two go to the server abreast, and either may come first there.
            assert sorted(await asyncio.gather(*(increment(store) for _ in range(10)))) == list(range(10))
        assert not [one for one in committing if one.done()]
    assert await asyncio.gather(*committing) == [0] * len(heads)


async def test_renewals_wait_neither_for_the_pool_nor_behind_the_domain(
    open_store: OpenStore, admin: Connection, schema: str
) -> None:
    """A transaction in the session waits for its domain and holds the only connection and the session's lock."""
    store = await open_store(limits=PostgresLimits(pool_size=1, lock_timeout_ms=10**6, statement_timeout_ms=10**6))
    session = await store.open_session(timeout_ms=60_000)
    renewals = store.renewals(timeout_ms=60_000)
    assert renewals is not None
    sql = Statements(schema)
    unit = keys.unit_of(keys.session(session))
    async with admin.transaction():
        await admin.execute(f"SELECT pg_advisory_xact_lock({sql.lock_id(DOMAIN.unit)})")
        # As the waiting transaction may: which lock comes first depends on the numbers.
        await admin.execute(f"SELECT pg_advisory_xact_lock_shared({sql.lock_id(unit)})")
        decision = Decision(result=None, puts={KEY: b"1"})
        waiting = asyncio.ensure_future(store.transact([DOMAIN.unit], Reads(), lambda _: decision, session=session))
        await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S / 6):
            await renewals.renew(session)
        assert not waiting.done()
    await waiting
    await renewals.close()


async def test_who_waits_for_a_connection_while_the_store_closes_is_told_that_it_is_closed(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store()

    async def acquire(timeout: float) -> None:
        store._is_closed = True
        raise asyncpg.InterfaceError("pool is closing")

    pool = store._pool
    monkeypatch.setattr(store, "_pool", SimpleNamespace(acquire=acquire))
    with pytest.raises(Unusable):
        await increment(store)
    monkeypatch.setattr(store, "_pool", pool)
    store._is_closed = False


async def test_callers_that_were_cancelled_do_not_go_on_waiting_in_the_server(
    open_store: OpenStore, admin: Connection, schema: str
) -> None:
    store = await open_store(
        limits=PostgresLimits(lock_timeout_ms=10**6, statement_timeout_ms=10**6, client_check_ms=20)
    )
    lock_id = Statements(schema).lock_id(DOMAIN.unit)
    waiting = f"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%({lock_id})'"
    await admin.execute(
        f"SELECT pg_advisory_lock({lock_id})"
    )  # Inside a transaction one would see old activity only.
    caller = asyncio.ensure_future(increment(store))
    async with asyncio.timeout(LIMIT_S):
        while await admin.fetchval(waiting) == 0:
            await asyncio.sleep(0.01)
        caller.cancel()
        await asyncio.wait([caller])
        while await admin.fetchval(waiting) > 0:
            await asyncio.sleep(0.01)
    await admin.execute(f"SELECT pg_advisory_unlock({lock_id})")
    assert await increment(store) == 0


async def test_a_failed_decision_leaves_the_connection_as_it_was(open_store: OpenStore) -> None:
    store = await open_store(limits=PostgresLimits(pool_size=1))

    def fail(seen: object) -> Decision[None]:
        raise TimeoutError("this one is ours, not the driver's")

    for _ in range(3):
        with pytest.raises(TimeoutError, match="ours"):
            await store.transact([DOMAIN.unit], Reads(keys=[KEY]), fail)
    assert await increment(store) == 0


async def test_commits_are_durable_even_if_the_server_would_rather_not(
    open_store: OpenStore, admin: Connection, schema: str
) -> None:
    await admin.execute(f"CREATE ROLE {schema} LOGIN SUPERUSER")
    await admin.execute(f"ALTER ROLE {schema} SET synchronous_commit = off")
    await admin.execute(f"ALTER ROLE {schema} SET default_transaction_isolation = serializable")
    store = await open_store(user=schema)
    connection = await store._acquire()
    try:
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
        assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
    finally:
        await store._release(connection)


async def test_begin_takes_all_locks_in_one_order() -> None:
    sql = Statements("s")
    one, two, three = sql.lock_id("/a/"), sql.lock_id("/b/"), sql.lock_id("/c/")
    script = sql.begin({two, one}, {three})
    assert script == sql.begin({one, two}, {three})
    positions = [script.index(str(lock_id)) for lock_id in sorted((one, two, three))]
    assert positions == sorted(positions)
    assert f"pg_advisory_xact_lock_shared({three})" in script
    assert Statements("other").lock_id("/a/") != one, "clusters on one server do not meet"
