"""What it costs to find an offset or a time in a stream of 1,000 and of 1,000,000 index entries, on SQLite.

Nothing comes from memory: the cache may hold one entry. A look-up by offset is one read of the store; one by time is
a binary search over them, so it grows with the logarithm: twenty steps for a million entries, ten for a thousand.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from headrace.index.cache import IndexCache
from headrace.index.streams import create_streams
from headrace.index.values import (
    DOMAIN_STATE,
    INDEX_ENTRY,
    STREAM_HEAD,
    DomainState,
    IndexEntry,
    StreamHead,
    StreamKind,
)
from headrace.metadata.keys import DomainKeys
from headrace.metadata.open import open_metadata
from headrace.metadata.port import Decision, Key, MetadataStore, Reads
from headrace.model.extents import WalExtent
from headrace.model.ids import DomainId, ObjectId, StreamId
from headrace.runtime.clock import SystemClock
from headrace.runtime.rng import system_rng

NAME = "lookups"

KEYS = DomainKeys(DomainId(0))
SIZES = (1_000, 1_000_000)
RECORDS_PER_ENTRY = 100
ENTRIES_PER_TRANSACTION = 10_000
LOOKUPS = 300
AT_MOST_SLOWER = 2.0
EXTENT = WalExtent(ObjectId("a" * 32 + "-00000001"), 1_000_000, 100_000)

Figures = list[tuple[str, float, str, float | None]]


async def fill(store: MetadataStore, entry_count: int) -> StreamId:
    """Write a stream whose entries are all folded; entry n holds the timestamp n."""
    rule = create_streams(KEYS, ["benchmark"], kind=StreamKind.PARTITION, now_ms=0)
    (stream,) = await rule.apply(store)
    for first in range(0, entry_count, ENTRIES_PER_TRANSACTION):
        puts = dict(entry_row(stream, n) for n in range(first, min(first + ENTRIES_PER_TRANSACTION, entry_count)))
        await write(store, puts)
    end = entry_count * RECORDS_PER_ENTRY
    head = StreamHead(end, 0, entry_count * 100_000, entry_count, end - RECORDS_PER_ENTRY, 0, 1)
    state = DomainState(next_seq=2, folded_to=2, next_stream_id=1)
    await write(store, {KEYS.head(stream): STREAM_HEAD.encode(head), KEYS.state: DOMAIN_STATE.encode(state)})
    return stream


def entry_row(stream: StreamId, n: int) -> tuple[Key, bytes]:
    start, end = n * RECORDS_PER_ENTRY, (n + 1) * RECORDS_PER_ENTRY
    entry = IndexEntry(start, end, RECORDS_PER_ENTRY, (n + 1) * 100_000, n, n, n, start, n, 0, EXTENT)
    return KEYS.entry(stream, end), INDEX_ENTRY.encode(entry)


async def write(store: MetadataStore, puts: dict[Key, bytes]) -> None:
    await store.transact([KEYS.unit], Reads(), lambda seen: Decision(result=None, puts=puts))


async def median_us(lookup: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(LOOKUPS):
        began = time.perf_counter()
        found = await lookup()
        times.append(time.perf_counter() - began)
        assert found, "nothing was found"
    return statistics.median(times) * 1e6


async def measure_size(directory: Path, entry_count: int) -> tuple[float, float]:
    """Return the medians of a look-up by offset and of one by time, in microseconds."""
    store = await open_metadata(f"sqlite:{directory}/{entry_count}.db", clock=SystemClock(), rng=system_rng())
    try:
        stream = await fill(store, entry_count)
        chance = random.Random(entry_count)
        cache = IndexCache(store, KEYS, max_folded_entries=1)

        async def by_offset() -> object:
            return await cache.locate(stream, chance.randrange(entry_count * RECORDS_PER_ENTRY), limit=1)

        async def by_time() -> object:
            return await cache.find_timestamp(stream, chance.randrange(entry_count))

        return await median_us(by_offset), await median_us(by_time)
    finally:
        await store.close()


async def measure() -> Figures:
    figures: Figures = []
    medians = []
    with tempfile.TemporaryDirectory() as directory:
        for entry_count in SIZES:
            by_offset, by_time = await measure_size(Path(directory), entry_count)
            medians.append((by_offset, by_time))
            figures.append((f"by offset, {entry_count:,} entries", by_offset, "µs", None))
            figures.append((f"by time, {entry_count:,} entries", by_time, "µs", None))
    (small_offset, small_time), (large_offset, large_time) = medians
    figures.append(("by offset, a thousand beside a million", small_offset / large_offset, "x", 1 / AT_MOST_SLOWER))
    figures.append(("by time, a thousand beside a million", small_time / large_time, "x", None))
    return figures


def run() -> Figures:
    """Run the comparison; see the module's text."""
    return asyncio.run(measure())
