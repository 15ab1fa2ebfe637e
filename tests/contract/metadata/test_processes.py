"""Real processes on one store: at once, and killed in the middle of things."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.metadata import keys
from headrace.metadata.port import MetadataStore
from headrace.metadata.sessions import SessionReaper
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import CrashPoint
from tests.contract.metadata.engines import SHARED
from tests.contract.metadata.rules import COUNTER, DOMAIN, increment, put, value
from tests.contract.metadata.test_watches import LIMIT_S
from tests.contract.metadata.worker import EPHEMERAL, PAIR

SESSION_TIMEOUT_MS = 500


pytestmark = pytest.mark.parametrize("engine", SHARED, indirect=True)


@asynccontextmanager
async def worker(
    command: str, url: str, argument: object, crash_at: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start another process, wait until it has opened the store, and see it gone in the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.contract.metadata.worker",
        command,
        url,
        str(argument),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "HEADRACE_CRASH_AT": crash_at},
    )
    try:
        assert await read_line(process) == "ready"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        return (await process.stdout.readline()).decode().strip()


async def exit_code(process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(LIMIT_S):
        return await process.wait()


async def test_processes_count_together_without_losing_one(url: str, store: MetadataStore) -> None:
    rounds = 40
    async with worker("count", url, rounds) as one, worker("count", url, rounds) as two:
        for _ in range(rounds):
            await increment(store)
        assert await exit_code(one) == 0
        assert await exit_code(two) == 0
    assert await value(store, COUNTER) == str(3 * rounds).encode()


async def test_a_watch_hears_of_the_last_commit_of_another_process(url: str, store: MetadataStore) -> None:
    watch = store.watch(DOMAIN.unit)
    async with worker("count", url, 30), asyncio.timeout(LIMIT_S):
        while await value(store, COUNTER) != b"30":
            await watch.wait()
    watch.close()


async def test_a_watch_hears_of_a_commit_whose_process_died_before_it_could_tell(
    url: str, store: MetadataStore
) -> None:
    """No engine tells of a commit inside its transaction: yet each is heard of in bounded time."""
    watch = store.watch(DOMAIN.unit)
    async with worker("count", url, 5, f"{CrashPoint.METADATA_AFTER_COMMIT}:3") as process:
        assert await exit_code(process) == -9
        async with asyncio.timeout(LIMIT_S):
            while await value(store, COUNTER) != b"3":
                await watch.wait()
    watch.close()


@pytest.mark.parametrize("arrival", [1, 4])
async def test_a_process_killed_before_its_commit_leaves_whole_transactions_only(
    url: str, store: MetadataStore, arrival: int
) -> None:
    crash_at = f"{CrashPoint.METADATA_BEFORE_COMMIT}:{arrival}"
    async with worker("write-many", url, 10, crash_at) as process:
        assert await exit_code(process) == -9
    # The store is usable at once, and what the dead one did is there as a whole or not at all.
    await put(store, after=b"1")
    rows = await store.range(keys.prefix_range(DOMAIN.unit + "many/", limit=1000))
    assert len(rows) == (PAIR if arrival > 1 else 0)
    assert {row.value for row in rows} <= {str(arrival - 2).encode()}


async def test_a_process_killed_at_any_moment_leaves_whole_transactions_only(url: str, store: MetadataStore) -> None:
    watch = store.watch(DOMAIN.unit)
    async with worker("write-many", url, 100_000) as process:
        async with asyncio.timeout(LIMIT_S):
            while not await store.range(keys.prefix_range(DOMAIN.unit + "many/", limit=1)):
                await watch.wait()
        process.kill()
        assert await exit_code(process) == -9
    await put(store, after=b"1")
    rows = await store.range(keys.prefix_range(DOMAIN.unit + "many/", limit=1000))
    assert len(rows) == PAIR
    assert len({row.value for row in rows}) == 1
    assert len({row.version for row in rows}) == 1
    watch.close()


async def test_the_ephemeral_keys_of_a_killed_process_vanish(url: str, store: MetadataStore) -> None:
    reaper = asyncio.ensure_future(SessionReaper(store, SystemClock()).run())
    watch = store.watch(DOMAIN.unit)
    async with worker("hold-session", url, SESSION_TIMEOUT_MS) as process:
        assert await read_line(process) == "holding"
        assert await value(store, EPHEMERAL) == b"here"
        process.kill()
        assert await exit_code(process) == -9
    async with asyncio.timeout(LIMIT_S):
        while await value(store, EPHEMERAL) is not None:
            await watch.wait()
    assert await store.sessions() == []
    reaper.cancel()
    await asyncio.wait([reaper])
    watch.close()
