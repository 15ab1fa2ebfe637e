"""Commits of frames on SQLite and PostgreSQL, folding included, beside the raw rate of the very same rows.

Our side commits frames through the rules and the store, one after another, and folds as a broker does. Every key
that it reads, writes and deletes is recorded. The raw side then does just that, reads, upserts, deletes and COMMIT,
in the plainest way the driver offers: row by row with apsw, one statement each with asyncpg. The two take turns over
the same frames, so that a noisy neighbour hits both.

Raw apsw is measured twice: on a worker thread, as every program with an event loop has to use it (the target counts
against this one), and on the calling thread, which tells what the hand-over to a thread costs.
"""

import asyncio
import contextlib
import functools
import gc
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import apsw
import asyncpg

from headrace.index.commit import AppendPart, FrameCommit, commit_frame
from headrace.index.fold import fold_records, plan_fold
from headrace.index.objects import stage_objects, wal_object_id
from headrace.index.streams import create_streams
from headrace.index.values import StreamKind
from headrace.index.writers import register_writer
from headrace.metadata.keys import DomainKeys
from headrace.metadata.open import open_metadata
from headrace.metadata.port import Committed, Decision, Key, MetadataStore, Range, Reads, Seen, Unit, Versioned
from headrace.model.batches import BatchSummary
from headrace.model.ids import DomainId, SessionId, StreamId, WriterId
from headrace.runtime.clock import SystemClock
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.rng import system_rng
from tests.servers.postgres import running_postgres

NAME = "commits"

T = TypeVar("T")

WRITER = WriterId("a" * 32)
SEGMENT = wal_object_id(WRITER, 0)
KEYS = DomainKeys(DomainId(0))
ROUNDS = 5
FRAMES_PER_ROUND = {10: 200, 100: 60}
FOLD_RECORDS = 32
FOLD_LAG = 64
AT_LEAST = 0.6


@dataclass(frozen=True, slots=True)
class Rows:
    """What one transaction did."""

    read_keys: Sequence[Key]
    read_ranges: Sequence[Range]
    puts: Sequence[tuple[Key, bytes]]
    deletes: Sequence[Key]


class Recorder:
    """Passes transactions on to a store and remembers their rows. Folding's plain reads are passed on only."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.transactions: list[Rows] = []

    async def get(self, key: Key) -> Versioned | None:
        return await self._inner.get(key)

    async def range(self, range_: Range) -> list[Versioned]:
        return await self._inner.range(range_)

    async def transact(
        self,
        units: Sequence[Unit],
        reads: Reads,
        decide: Callable[[Seen], Decision[T]],
        *,
        session: SessionId | None = None,
    ) -> Committed[T]:
        last: list[Decision[T]] = []

        def remembering(seen: Seen) -> Decision[T]:
            last[:] = [decide(seen)]
            return last[0]

        committed = await self._inner.transact(units, reads, remembering, session=session)
        self.transactions.append(Rows(reads.keys, reads.ranges, list(last[0].puts.items()), last[0].deletes))
        return committed


class FrameLoad:
    """Commits frames with one batch for each of many streams, and folds behind itself."""

    def __init__(self, store: Any, stream_count: int) -> None:
        self._recorder = Recorder(store)
        self._store: Any = self._recorder
        self._stream_count = stream_count
        self._streams: list[StreamId] = []
        self._frame = 0
        self._batch = BatchSummary(
            size_bytes=1000, record_count=10, base_timestamp_ms=1_700_000_000_000, max_timestamp_ms=1_700_000_000_100
        )

    async def prepare(self) -> list[Rows]:
        owners = [f"topic-{n}" for n in range(self._stream_count)]
        rule = create_streams(KEYS, owners, kind=StreamKind.PARTITION, now_ms=0)
        self._streams = await rule.apply(self._store)
        await register_writer(KEYS, WRITER, session=SessionId("s"), now_ms=0).apply(self._store)
        await stage_objects(KEYS, [SEGMENT], writer=WRITER, is_segment=True, now_ms=0).apply(self._store)
        return self._taken()

    async def run(self, frames: int) -> tuple[float, list[Rows]]:
        """Commit frames; return the seconds it took and the rows."""
        began = time.perf_counter()
        for _ in range(frames):
            await commit_frame(KEYS, self._next_commit()).apply(self._store)
            if self._frame % FOLD_RECORDS == 0:
                await self._fold()
        return time.perf_counter() - began, self._taken()

    def _next_commit(self) -> FrameCommit:
        start_byte = self._frame * self._stream_count * 1000
        batches = [self._batch]
        parts = [AppendPart(stream, start_byte + n * 1000, batches) for n, stream in enumerate(self._streams)]
        commit = FrameCommit(
            writer=WRITER,
            frame_number=self._frame,
            object_id=SEGMENT,
            end_byte=start_byte + self._stream_count * 1000,
            created_at_ms=1_700_000_000_000,
            parts=parts,
            producer_expiration_ms=86_400_000,
        )
        self._frame += 1
        return commit

    async def _fold(self) -> None:
        records = await plan_fold(self._store, KEYS, max_records=FOLD_RECORDS, lag_records=FOLD_LAG)
        if records:
            await fold_records(KEYS, records, now_ms=0).apply(self._store)

    def _taken(self) -> list[Rows]:
        taken, self._recorder.transactions = self._recorder.transactions, []
        return taken


Replay = Callable[[Sequence[Rows]], Awaitable[None]]

_SCHEMA = "CREATE TABLE kv (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL)"
_PG_SCHEMA = 'CREATE TABLE raw_kv (key text COLLATE "C" PRIMARY KEY, value bytea NOT NULL, version bigint NOT NULL)'
_PG_UPSERT = (
    "INSERT INTO raw_kv SELECT unnest($1::text[]), unnest($2::bytea[]), $3 "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version"
)


class RawSqlite:
    """The same rows through apsw: row by row reads, executemany for writes, FULL synchronous, WAL mode."""

    def __init__(self, path: Path) -> None:
        self._connection = connection = apsw.Connection(str(path))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(_SCHEMA)
        self._thread = ThreadExecutor("raw", threads=1)

    async def replay_inline(self, transactions: Sequence[Rows]) -> None:
        for rows in transactions:
            self._transact(rows)

    async def replay_on_thread(self, transactions: Sequence[Rows]) -> None:
        for rows in transactions:
            await self._thread.run(functools.partial(self._transact, rows))

    def _transact(self, rows: Rows) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        for key in rows.read_keys:
            connection.execute("SELECT value, version FROM kv WHERE key = ?", (key,)).fetchall()
        connection.executemany(
            "INSERT INTO kv VALUES (?, ?, 1) ON CONFLICT (key) DO UPDATE SET value = excluded.value", rows.puts
        )
        connection.executemany("DELETE FROM kv WHERE key = ?", [(key,) for key in rows.deletes])
        connection.execute("COMMIT")


async def raw_postgres(url: str) -> Replay:
    """Return a replay through asyncpg: one statement each to read, upsert and delete, in one transaction."""
    connection = await asyncpg.connect(url)
    await connection.execute(_PG_SCHEMA)

    async def replay(transactions: Sequence[Rows]) -> None:
        for rows in transactions:
            async with connection.transaction():
                wanted = list(rows.read_keys)
                await connection.fetch("SELECT key, value, version FROM raw_kv WHERE key = ANY($1)", wanted)
                if rows.puts:
                    names, values = zip(*rows.puts, strict=True)
                    await connection.execute(_PG_UPSERT, list(names), list(values), 1)
                if rows.deletes:
                    await connection.execute("DELETE FROM raw_kv WHERE key = ANY($1)", list(rows.deletes))

    return replay


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[MetadataStore]:
    store = await open_metadata(url, clock=SystemClock(), rng=system_rng())
    try:
        yield store
    finally:
        await store.close()


async def compare(store: MetadataStore, replays: Sequence[Replay], stream_count: int) -> list[float]:
    """Return our commits per second and then each raw side's, over the same frames in turns."""
    frames = FRAMES_PER_ROUND[stream_count]
    load = FrameLoad(store, stream_count)
    rows = await load.prepare()
    for replay in replays:
        await replay(rows)
    seconds = [0.0] * (1 + len(replays))
    for number in range(ROUNDS + 1):
        took, rows = await load.run(frames)
        times = [took]
        for replay in replays:
            began = time.perf_counter()
            await replay(rows)
            times.append(time.perf_counter() - began)
        if number > 0:  # the first round warms all up
            seconds = [total + one for total, one in zip(seconds, times, strict=True)]
    return [frames * ROUNDS / total for total in seconds]


Figures = list[tuple[str, float, str, float | None]]


def figures_of(engine: str, stream_count: int, rates: Sequence[float]) -> Figures:
    ours, raw, *inline = rates
    what = f"{engine}, {stream_count}-stream frames"
    return [
        (f"{what}: commits", ours, "/s", None),
        (f"{what}: raw rows", raw, "/s", None),
        (f"{what}: ours beside raw", ours / raw, "x", AT_LEAST),
        *((f"{what}: ours beside raw without a thread", ours / rate, "x", None) for rate in inline),
    ]


async def measure_sqlite(stream_count: int) -> Figures:
    with tempfile.TemporaryDirectory() as directory:
        threaded, inline = (RawSqlite(Path(directory) / f"raw-{n}.db") for n in range(2))
        async with opened(f"sqlite:{directory}/ours.db") as store:
            replays = [threaded.replay_on_thread, inline.replay_inline]
            return figures_of("SQLite", stream_count, await compare(store, replays, stream_count))


async def measure_postgres(stream_count: int) -> Figures:
    with running_postgres() as server:
        async with opened(server.url_of("ours")) as store:
            replay = await raw_postgres(server.url)
            return figures_of("PostgreSQL", stream_count, await compare(store, [replay], stream_count))


async def measure() -> Figures:
    figures: Figures = []
    for stream_count in FRAMES_PER_ROUND:
        figures += await measure_sqlite(stream_count)
    for stream_count in FRAMES_PER_ROUND:
        figures += await measure_postgres(stream_count)
    return figures


def run() -> Figures:
    """Run the comparison; see the module's text."""
    # What is recorded for the raw side piles up, and the collector would walk it again and again on our side.
    gc.disable()
    try:
        return asyncio.run(measure())
    finally:
        gc.enable()
