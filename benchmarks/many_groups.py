"""Many groups that commit at once on one PostgreSQL whose flush takes 5 ms, as on a disk across a network.

Each group is a lock unit of its own, so nothing but the server makes one wait for another. One store handle commits,
as a broker does, with its pool and its session; another one watches, as the next broker does. Now and then the domain
is committed to, as for a produce request: how long that takes, and when the other handle hears of it. The session is
renewed all the while, on its own connection: how long it went without a renewal tells how near it came to its end.

The flush is made slow by the server itself (`commit_delay`), so that the figures depend little on the disk.
"""

import asyncio
import contextlib
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import asyncpg

from headrace.errors import Retryable
from headrace.metadata import keys
from headrace.metadata.keys import DomainKeys
from headrace.metadata.open import open_metadata
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen
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
        self.commits = self.refused = 0

    async def run(self, seconds: float) -> float:
        """Commit for a while and return the rate."""
        began = time.perf_counter()
        await asyncio.gather(*(self._commit(name, began + seconds) for name in self._names))
        return self.commits / (time.perf_counter() - began)

    async def _commit(self, key: Key, end: float) -> None:
        decision = Decision(result=None, puts={key: b"offset"})
        while time.perf_counter() < end:
            try:
                await self._store.transact([keys.unit_of(key)], Reads(keys=[key]), lambda _: decision)
                self.commits += 1
            except Retryable:  # It waited for a connection in vain.
                self.refused += 1


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


@dataclass(slots=True)
class DomainTimes:
    """How long commits of the domain took, and their signals after them, in milliseconds."""

    commits_ms: list[float] = field(default_factory=list)
    signals_ms: list[float] = field(default_factory=list)

    async def measure(self, store: MetadataStore, other: MetadataStore) -> None:
        """Commit now and then, and wait until the other handle has heard of it, until cancelled."""
        key = Key(DOMAIN.unit + "watched")
        watch = other.watch(key)
        while True:
            value = str(len(self.commits_ms)).encode()
            began_at = time.monotonic()
            try:
                await store.transact([DOMAIN.unit], Reads(), partial(_put, key, value))
            except Retryable:
                continue
            committed_at = time.monotonic()
            self.commits_ms.append((committed_at - began_at) * 1000)
            while (found := await other.get(key)) is None or found.value != value:
                await watch.wait()
            self.signals_ms.append((time.monotonic() - committed_at) * 1000)
            await asyncio.sleep(SIGNAL_PAUSE_S)


def _put(key: Key, value: bytes, _: Seen) -> Decision[None]:
    return Decision(result=None, puts={key: value})


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.inf  # not one came through


async def measure_groups(server: PostgresServer, group_count: int) -> Figures:
    url = server.url_of(f"groups_{group_count}")
    store, other = [await open_metadata(url, clock=SystemClock(), rng=system_rng()) for _ in range(2)]
    keeper = await SessionKeeper.open(store, SystemClock(), timeout_ms=SESSION_TIMEOUT_MS)
    watching = asyncio.ensure_future(watch_session(keeper))
    times = DomainTimes()
    domain = asyncio.ensure_future(times.measure(store, other))
    load = Load(store, group_count)
    rate = await load.run(SECONDS)
    domain.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await domain
    is_alive = keeper.is_surely_alive()
    await keeper.close()
    longest_s = await watching
    await store.close()
    await other.close()
    what = f"{group_count} groups, 5 ms flush"
    return [
        (f"{what}: commits", rate, "/s", AT_LEAST[group_count]),
        (f"{what}: refused for want of a connection", float(load.refused), "", None),
        (f"{what}: a commit of the domain beside them, median", _median(times.commits_ms), "ms", None),
        (f"{what}: its signal elsewhere, median", _median(times.signals_ms), "ms", None),
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
