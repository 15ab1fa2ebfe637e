"""A log with a tail cache and everything that fetches from it, on memory stores that follow a script."""

import io
from collections.abc import Sequence

from headrace.fetch.catchup import CatchUp, CatchUpLimits
from headrace.fetch.damage import DamageBook
from headrace.fetch.fetcher import Fetched, Fetcher, Wanted
from headrace.fetch.reader import LogReader
from headrace.fetch.row_groups import RowGroupCache
from headrace.fetch.runs import Run
from headrace.fetch.table_reads import GroupKey, TableReader
from headrace.fetch.tail import TailCache
from headrace.fetch.timestamps import TimestampFinder
from headrace.index.cache import IndexCache
from headrace.model.ids import StreamId
from headrace.model.topics import TopicRules
from headrace.objects.port import Buffer
from headrace.records.batch import iter_batches
from headrace.records.record import Record
from headrace.runtime.answers import ENDLESS_ROOM, Room
from headrace.runtime.executor import Executor, InlineExecutor
from headrace.runtime.logs import open_log
from headrace.testing.batches import make_batch, read_batches
from tests.unit.produce.scripted import WriterKit

ALL = 1_000_000_000
MAX_OPEN_BYTES = 1_000_000


class FetchKit(WriterKit):
    """One broker: a writer that fills the tail cache, and a fetcher."""

    def __init__(
        self,
        *,
        tail_bytes: int = 1_000_000,
        limits: CatchUpLimits | None = None,
        segment_max_bytes: int = 100_000,
        is_remote: bool = False,
        table_cache_bytes: int = 1_000_000,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(segment_max_bytes=segment_max_bytes, is_remote=is_remote)
        self.tail = TailCache(max_bytes=tail_bytes)
        self.writer._tail = self.tail
        self.logged = io.StringIO()
        self.log_out = open_log(self.logged, clock=self.clock, format="json")
        self.rules: TopicRules | None = None
        self.damages = DamageBook(log=self.log_out, partition_of=lambda stream: ("topic", stream))
        self.executor = executor or InlineExecutor()
        self.row_groups = RowGroupCache[GroupKey](max_bytes=table_cache_bytes)
        self.tables = self.reading_tables(self.row_groups)
        self.reader = self.reading(self.cache)
        self.catch_up = self.catching_up(self.cache, self.tail, limits)
        self.fetcher = self.fetching(self.cache, self.tail, self.catch_up)
        self.timestamps = TimestampFinder(
            index=self.cache, reader=self.reader, executor=self.executor, max_open_bytes=MAX_OPEN_BYTES
        )

    def reading_tables(self, row_groups: RowGroupCache[GroupKey]) -> TableReader:
        return TableReader(
            objects=self.objects, executor=self.executor, cache=row_groups, rules_of=lambda _: self.rules
        )

    def reading(self, cache: IndexCache) -> LogReader:
        return LogReader(
            domain=self.keys.domain,
            cache=cache,
            objects=self.objects,
            tables=self.tables,
            damages=self.damages,
        )

    def catching_up(self, cache: IndexCache, tail: TailCache, limits: CatchUpLimits | None = None) -> CatchUp:
        return CatchUp(
            reader=self.reading(cache), view=cache.view, tail=tail, clock=self.clock, limits=limits or CatchUpLimits()
        )

    def fetching(self, cache: IndexCache, tail: TailCache, catch_up: CatchUp) -> Fetcher:
        return Fetcher(
            index=cache,
            tail=tail,
            catch_up=catch_up,
            clock=self.clock,
            log=self.log_out,
            rules_of=lambda _: self.rules,
        )

    def another(self) -> Fetcher:
        """Return the fetcher of another broker of this log, which knows nothing yet."""
        cache = IndexCache(self.metadata, self.keys, max_folded_entries=100)
        tail = TailCache(max_bytes=1000)
        return self.fetching(cache, tail, self.catching_up(cache, tail))

    async def put(self, stream: StreamId, *values: bytes, at_ms: int = 0) -> int:
        """Append one batch, in memory that the tail cache may keep; return its first offset."""
        return await self.put_batch(stream, make_batch(values, at_ms=at_ms))

    async def put_batch(self, stream: StreamId, batch: Buffer) -> int:
        data = bytearray(batch)
        batches = [view.summary() for view in iter_batches(memoryview(data))]
        return (await self.writer.append(stream, data, batches)).base_offset

    async def fetch(
        self,
        *wanted: tuple[StreamId, int],
        fetcher: Fetcher | None = None,
        max_bytes: int = ALL,
        partition_bytes: int = ALL,
        min_bytes: int = 1,
        max_wait_ms: int = 0,
        room: Room = ENDLESS_ROOM,
    ) -> list[Fetched]:
        return await (fetcher or self.fetcher).fetch(
            [Wanted(stream, offset, partition_bytes) for stream, offset in wanted],
            max_bytes=max_bytes,
            min_bytes=min_bytes,
            max_wait_ms=max_wait_ms,
            arrived_at=self.clock.monotonic(),
            room=room,
        )


def records_of(fetched: Fetched) -> list[Record]:
    """Return the records of an answer."""
    return [record for piece in fetched.records for record in read_batches(memoryview(piece))]


def offsets_of(fetched: Fetched) -> list[int]:
    return [record.offset for record in records_of(fetched)]


def values_of(fetched: Fetched) -> list[bytes | None]:
    return [record.value for record in records_of(fetched)]


def stamped_run(start_offset: int, *batches: Sequence[bytes]) -> Run:
    """Return batches back to back, with offsets from `start_offset` on."""
    data = bytearray()
    offset = start_offset
    for values in batches:
        batch = bytearray(make_batch(values))
        batch[:8] = offset.to_bytes(8, "big")
        data += batch
        offset += len(values)
    return Run(start_offset=start_offset, end_offset=offset, data=memoryview(data))
