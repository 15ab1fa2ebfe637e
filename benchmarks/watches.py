"""How long after a commit in one process a watch fires in another, and what an idle watch costs.

The other process commits when it is told to, and says when its commit had returned, on the clock that all processes
of a host share; a watcher that sees the new value before the committer has its answer counts as less than nothing.
Between two commits it is quiet for a while, so that the watcher is asleep each time.
"""

import asyncio
import statistics
import sys
import tempfile
import time

from headrace.metadata.keys import DomainKeys
from headrace.metadata.open import open_metadata
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Watch
from headrace.model.ids import DomainId
from headrace.runtime.clock import SystemClock
from headrace.runtime.rng import system_rng
from tests.servers.postgres import running_postgres

NAME = "watches"

UNIT = DomainKeys(DomainId(0)).unit
KEY = Key(UNIT + "watched")
COMMITS = 60
QUIET_SECONDS = 0.12
IDLE_SECONDS = 2.0
AT_MOST_MS = 20.0

Figures = list[tuple[str, float, str, float | None]]


async def write(store: MetadataStore, value: bytes) -> None:
    await store.transact([UNIT], Reads(), lambda seen: Decision(result=None, puts={KEY: value}))


async def wait_for(store: MetadataStore, watch: Watch, value: bytes) -> None:
    """Wait for signals until the value is there: a signal may be left from the commit before."""
    while (found := await store.get(KEY)) is None or found.value != value:
        await watch.wait()


async def commit_when_told(url: str) -> None:
    """Run as the other process: commit at every line of standard input, and print when that was done."""
    store = await open_metadata(url, clock=SystemClock(), rng=system_rng())
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    number = 0
    while await loop.run_in_executor(None, sys.stdin.readline):
        number += 1
        await write(store, str(number).encode())
        print(time.monotonic(), flush=True)
    await store.close()


async def measure_engine(engine: str, url: str) -> Figures:
    store = await open_metadata(url, clock=SystemClock(), rng=system_rng())
    watch = store.watch(UNIT)
    await watch.wait()
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.watches", url, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert other.stdin is not None and other.stdout is not None
    await other.stdout.readline()
    delays_ms = []
    for number in range(1, COMMITS + 1):
        await asyncio.sleep(QUIET_SECONDS)
        other.stdin.write(b"\n")
        await wait_for(store, watch, str(number).encode())
        fired_at = time.monotonic()
        delays_ms.append((fired_at - float(await other.stdout.readline())) * 1000)
    other.stdin.close()
    await other.wait()
    cpu_began = time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    idle_ms = (time.process_time() - cpu_began) * 1000 / IDLE_SECONDS
    watch.close()
    await store.close()
    return [
        (f"{engine}: commit to signal, median", statistics.median(delays_ms), "ms", AT_MOST_MS),
        (f"{engine}: commit to signal, 95th percentile", sorted(delays_ms)[COMMITS * 95 // 100], "ms", AT_MOST_MS),
        (f"{engine}: CPU per idle second", idle_ms, "ms", None),
    ]


async def measure() -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        figures = await measure_engine("SQLite", f"sqlite:{directory}/meta.db")
    with running_postgres() as server:
        return figures + await measure_engine("PostgreSQL", server.url_of("watches"))


def run() -> Figures:
    """Measure both engines; see the module's text."""
    return asyncio.run(measure())


if __name__ == "__main__":
    asyncio.run(commit_when_told(sys.argv[1]))
