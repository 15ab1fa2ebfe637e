"""Listening: a server that refuses it is not asked without a pause, and watches are signalled by the clock, too."""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from headrace.metadata.postgres.listening import MAX_BACKOFF_S, MIN_BACKOFF_S, Listener
from headrace.metadata.watching import WatchHub
from headrace.runtime.clock import SystemClock

TRIES = 10


class Refusing:
    """A connection to a standby: it answers, and LISTEN is an error there."""

    def add_termination_listener(self, listener: Callable[[Any], None]) -> None:
        return None

    async def add_listener(self, channel: str, callback: object) -> None:
        raise asyncpg.ReadOnlySQLTransactionError("cannot execute LISTEN during recovery")

    def terminate(self) -> None:
        return None


class NotingClock(SystemClock):
    """Notes how long it would sleep."""

    def __init__(self) -> None:
        self.slept_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)


async def test_the_pause_grows_until_it_comes_to_listening() -> None:
    clock = NotingClock()
    tries = 0
    enough = asyncio.Event()

    async def connect() -> Any:
        nonlocal tries
        tries += 1
        if tries > TRIES:
            enough.set()
            await asyncio.Event().wait()
        return Refusing()

    listener = Listener("channel", connect=connect, hub=WatchHub(), clock=clock)
    listener.start()
    await enough.wait()
    await listener.close()
    assert len(clock.slept_s) == TRIES
    assert clock.slept_s[:3] == [MIN_BACKOFF_S, 2 * MIN_BACKOFF_S, 4 * MIN_BACKOFF_S]
    assert clock.slept_s[-1] == MAX_BACKOFF_S


class Silent(Refusing):
    """A connection on which nothing is ever heard."""

    async def add_listener(self, channel: str, callback: object) -> None:
        return None

    async def execute(self, query: str) -> None:
        return None

    async def fetchval(self, query: str) -> str:
        return "a server"


class Reticent(Silent):
    """A service that does not say which server it is."""

    async def fetchval(self, query: str) -> str:
        raise asyncpg.FeatureNotSupportedError("there is no write-ahead log here")


@pytest.mark.parametrize("kind", [Silent, Reticent])
async def test_every_watch_is_signalled_by_the_clock(kind: type[Silent]) -> None:
    """A process may have died between its commit and its notification."""

    async def connect() -> Any:
        return kind()

    hub = WatchHub()
    watch = hub.watch("/a/")
    listener = Listener("channel", connect=connect, hub=hub, clock=SystemClock(), reread_s=0.001)
    listener.start()
    for _ in range(5):
        assert (await watch.wait()).revision == 0
    await listener.close()
