"""Another process on the same store: `python -m tests.contract.metadata.worker COMMAND URL [ARGUMENT]`.

`HEADRACE_CRASH_AT` makes it kill itself at a crash point. It prints `ready` once the store is open.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial

from headrace.metadata.keys import DomainKeys
from headrace.metadata.open import open_metadata
from headrace.metadata.port import Decision, Key, MetadataStore, Reads
from headrace.metadata.sessions import SessionKeeper
from headrace.model.ids import DomainId
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import crash_points_from
from headrace.runtime.rng import system_rng
from tests.contract.metadata.rules import decided, increment, put_ephemeral

PAIR = 50
EPHEMERAL = Key(DomainKeys(DomainId(0)).unit + "worker")


async def count(store: MetadataStore, argument: str) -> None:
    """Increment the counter so many times."""
    for _ in range(int(argument)):
        await increment(store)


async def write_many(store: MetadataStore, argument: str) -> None:
    """Write `PAIR` keys in one transaction, over and over, each time with the next number."""
    domain = DomainKeys(DomainId(0))
    for number in range(int(argument)):
        puts = {Key(f"{domain.unit}many/{one:03d}"): str(number).encode() for one in range(PAIR)}
        decision = Decision(result=None, puts=puts)
        await store.transact([domain.unit], Reads(), partial(decided, decision))


async def hold_session(store: MetadataStore, argument: str) -> None:
    """Keep a session with an ephemeral key until killed."""
    keeper = await SessionKeeper.open(store, SystemClock(), timeout_ms=int(argument))
    await put_ephemeral(store, keeper.session, EPHEMERAL)
    print("holding", flush=True)
    await keeper.lost.wait()


COMMANDS: dict[str, Callable[[MetadataStore, str], Awaitable[None]]] = {
    "count": count,
    "write-many": write_many,
    "hold-session": hold_session,
}


async def main(command: str, url: str, argument: str) -> None:
    crash_points = crash_points_from(os.environ)
    store = await open_metadata(url, clock=SystemClock(), rng=system_rng(), crash_points=crash_points)
    print("ready", flush=True)
    await COMMANDS[command](store, argument)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
