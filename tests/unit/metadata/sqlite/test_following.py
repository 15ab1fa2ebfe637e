"""Commits of other processes are noticed: by inotify, by the clock without it, and after a sudden death."""

import asyncio

import pytest

from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Key, Watch
from headrace.metadata.sqlite import following, rows
from headrace.metadata.sqlite.inotify import Inotify
from headrace.model.ids import DomainId
from tests.contract.metadata.rules import put, value
from tests.unit.metadata.sqlite.conftest import OpenStore, foreign_connection

DOMAIN = DomainKeys(DomainId(0))
KEY = Key(DOMAIN.unit + "a")
LIMIT_S = 60


class NoInotify(Inotify):
    def __init__(self) -> None:
        raise OSError("no inotify here")


async def signalled(watch: Watch, revision: int) -> None:
    """Wait until the watch tells of a revision."""
    async with asyncio.timeout(LIMIT_S):
        while (await watch.wait()).revision < revision:
            pass


async def test_without_inotify_it_looks_by_the_clock(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "Inotify", NoInotify)
    store, other = await open_store(), await open_store()
    assert store._follower.polls
    watch = store.watch(DOMAIN.unit)
    await watch.wait()
    for number in range(3):
        revision = await put(other, a=str(number).encode())
        await signalled(watch, revision)
    watch.close()


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
async def test_a_commit_whose_process_died_before_it_told_anybody_is_noticed(
    open_store: OpenStore, path: str, pause_s: float
) -> None:
    """A foreign connection commits and never touches the watch file: only the log gives it away."""
    store = await open_store()
    assert not store._follower.polls
    watch = store.watch(DOMAIN.unit)
    await watch.wait()
    await asyncio.sleep(pause_s)

    def commit(number: int) -> None:
        with foreign_connection(path) as foreign:
            foreign.pragma("synchronous", "FULL")
            foreign.execute("BEGIN IMMEDIATE")
            rows.put(foreign, {KEY: str(number).encode()}, number, None)
            rows.put_units(foreign, [(DOMAIN.unit, number)])
            foreign.execute("COMMIT")

    for number in range(1, 4):
        await asyncio.to_thread(commit, number)
        await signalled(watch, number)
        assert await value(store, KEY) == str(number).encode()
        await asyncio.sleep(pause_s)
    watch.close()


async def test_the_follower_rests_when_nobody_watches(open_store: OpenStore) -> None:
    store = await open_store()
    watch = store.watch(DOMAIN.unit)
    await watch.wait()
    watch.close()
    await put(store, a=b"1")  # the next event lets it see that it has nothing to do
    running = store._follower._running
    assert running is not None
    async with asyncio.timeout(LIMIT_S):
        await running
    again = store.watch(DOMAIN.unit)
    async with asyncio.timeout(LIMIT_S):
        await again.wait()
        await put(store, a=b"2")
        await again.wait()
    again.close()
