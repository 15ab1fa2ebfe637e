"""Many groups that commit at once on one PostgreSQL whose flush takes 5 ms, as on a disk across a network.

Each group is a lock unit of its own, so nothing but the server makes one wait for another. One store handle commits,
as a broker does, with its pool and its session; another one watches, as the next broker does. The session is renewed
all the while, on its own connection: how long it went without a renewal tells how near it came to its end.

The flush is made slow by the server itself (`commit_delay`), so that the figures depend little on the disk.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence

import asyncpg

from headrace.metadata import keys
from headrace.metadata.keys import DomainKeys
from headrace.metadata.open import open_metadata
from headrace.metadata.port import Decision, Key, MetadataStore, Reads
from headrace.metadata.sessions import SessionKeeper
from headrace.model.ids import DomainId
from headrace.runtime.clock import SystemClock
from headrace.runtime.rng import system_rng
from tests.servers.postgres import PostgresServer, running_postgres

NAME = "many-groups"

DOMAIN = DomainKeys(DomainId(0))
FLUSH_MICROSECONDS = 5_000
GROUPS = (192, 1_000)
SECONDS = 8.0
SESSION_TIMEOUT_MS = 5_000
AT_LEAST = {192: 500.0, 1_000: 500.0}
SIGNAL_PAUSE_S = 0.1

Figures = list[tuple[str, float, str, float | None]]


async def slow_down(server: PostgresServer) -> None:
    """Let every flush take 5 ms longer, whoever else is committing."""
    admin = await asyncpg.connect(server.url)
    await admin.execute(f"ALTER SYSTEM SET commit_delay = {FLUSH_MICROSECONDS}")
    await admin.execute("ALTER SYSTEM SET commit_siblings = 0")
    await admin.execute("SELECT pg_reload_conf()")
    await admin.close()


class Load:
    """Groups that commit one offset after another, and what it came to."""

    def __init__(self, store: MetadataStore, group_count: int) -> None:
        self._store = store
        self._names = [DOMAIN.group(f"group-{number}").head for number in range(group_count)]
        self.commits = 0

    async def run(self, seconds: float) -> float:
        """Commit for a while and return the rate."""
        began = time.perf_counter()
        await asyncio.gather(*(self._commit(name, began + seconds) for name in self._names))
        return self.commits / (time.perf_counter() - began)

    async def _commit(self, key: Key, end: float) -> None:
        decision = Decision(result=None, puts={key: b"offset"})
        while time.perf_counter() < end:
            await self._store.transact([keys.unit_of(key)], Reads(keys=[key]), lambda _: decision)
            self.commits += 1


async def watch_session(keeper: SessionKeeper) -> float:
    """Return the longest time for which the session was not renewed; it ends with the keeper."""
    longest, before, since = 0.0, keeper.deadline, time.monotonic()
    while not keeper.lost.is_set():
        await asyncio.sleep(0.01)
        now = time.monotonic()
        if keeper.deadline != before:
            before, since = keeper.deadline, now
        longest = max(longest, now - since)
    return longest


async def measure_signals(store: MetadataStore, other: MetadataStore) -> list[float]:
    """Commit to one unit now and then; return how long after each commit the other handle heard of it."""
    key = DOMAIN.group("watched").head
    watch = other.watch(keys.unit_of(key))
    delays_ms: list[float] = []
    try:
        while True:
            value = str(len(delays_ms)).encode()
            decision = Decision(result=None, puts={key: value})
            await store.transact([keys.unit_of(key)], Reads(), lambda _, decision=decision: decision)  # type: ignore[misc]
            committed_at = time.monotonic()
            while (found := await other.get(key)) is None or found.value != value:
                await watch.wait()
            delays_ms.append((time.monotonic() - committed_at) * 1000)
            await asyncio.sleep(SIGNAL_PAUSE_S)
    except asyncio.CancelledError:
        return delays_ms
    finally:
        watch.close()


async def measure_groups(server: PostgresServer, group_count: int) -> Figures:
    url = server.url_of(f"groups_{group_count}")
    store, other = [await open_metadata(url, clock=SystemClock(), rng=system_rng()) for _ in range(2)]
    keeper = await SessionKeeper.open(store, SystemClock(), timeout_ms=SESSION_TIMEOUT_MS)
    watching = asyncio.ensure_future(watch_session(keeper))
    signals = asyncio.ensure_future(measure_signals(store, other))
    rate = await Load(store, group_count).run(SECONDS)
    signals.cancel()
    is_alive = keeper.is_surely_alive()
    await keeper.close()
    longest_s = await watching
    delays_ms = await signals
    await store.close()
    await other.close()
    what = f"{group_count} groups, 5 ms flush"
    return [
        (f"{what}: commits", rate, "/s", AT_LEAST[group_count]),
        (f"{what}: commit to signal elsewhere, median", statistics.median(delays_ms), "ms", None),
        (f"{what}: longest time without a renewal", longest_s, "s", SESSION_TIMEOUT_MS / 1000),
        (f"{what}: session alive at the end", float(is_alive), "", 1.0),
    ]


async def measure(group_counts: Sequence[int]) -> Figures:
    with running_postgres() as server:
        await slow_down(server)
        figures: Figures = []
        for group_count in group_counts:
            figures += await measure_groups(server, group_count)
        return figures


def run() -> Figures:
    """Measure with each number of groups; see the module's text."""
    return asyncio.run(measure(GROUPS))
