"""A compacted topic on memory stores: keyed records in, what is left of them out."""

from collections.abc import Sequence

from headrace.gc.trimming import Trimmer
from headrace.index.objects import wal_object_key
from headrace.index.streams import advance_log_start
from headrace.index.values import STREAM_HEAD, IndexEntry, StreamHead
from headrace.model.extents import TableExtent
from headrace.model.ids import ObjectKey, StreamId
from headrace.model.topics import Topic
from headrace.pipeline.compaction_state import CompactionState, StreamCompaction
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of, records_of
from headrace.tables.files import WrittenFile
from headrace.tables.parquet_reading import parse_footer, read_row_group
from headrace.testing.batches import read_batches
from headrace.topics.admin import NewTopic
from tests.table_kit import footer_range, group_range
from tests.unit.pipeline.pipeline_kit import PipelineKit

Row = tuple[bytes | None, bytes | None]
Kept = tuple[int, bytes | None, bytes | None]
"""Offset, key and value."""

CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "headrace.table.target.lag.ms": "5000"}


class CompactionKit(PipelineKit):
    """Topics that are compacted as soon as anything is dirty."""

    async def compacted_topic(self, name: str = "orders", partitions: int = 1, **configs: str) -> Topic:
        """Create a topic; `_` in the names of configs stands for a dot."""
        if not self.session:
            await self.start(0)
        given = CONFIGS | {key.replace("_", "."): value for key, value in configs.items()}
        return await self.admin.create(NewTopic(name=name, partition_count=partitions, configs=given))

    async def put(self, stream: StreamId, *rows: Row, at_ms: int | None = None) -> int:
        """Append rows as one batch and return the first offset."""
        time_ms = self.clock.now_ms() if at_ms is None else at_ms
        records = [
            Record(offset=number, timestamp_ms=time_ms + number, key=key, value=value, headers=((b"h", value),))
            for number, (key, value) in enumerate(rows)
        ]
        return await self.append_raw(stream, bytes(BatchEncoder().encode(columns_of(records))))

    async def kept(self, stream: StreamId) -> list[Kept]:
        """Return what is left in the log: of table entries first, and of the WAL behind them."""
        found = [one for entry in await self.index(stream) for one in await self.records(entry)]
        assert all(record.headers == ((b"h", record.value),) for record in found), "headers are kept"
        return [(record.offset, record.key, record.value) for record in found]

    async def records(self, entry: IndexEntry) -> list[Record]:
        extent = entry.extent
        if not isinstance(extent, TableExtent):
            data = await self.objects.get(wal_object_key(self.keys.domain, extent.object_id))
            records = read_batches(memoryview(bytes(data))[extent.start_byte : extent.start_byte + extent.size_bytes])
            return [record for record in records if entry.start_offset <= record.offset < entry.end_offset]
        found: list[Record] = []
        for file in extent.files:
            footer_data, *groups = await self.objects.get_ranges(
                ObjectKey(file.path), [footer_range(file), *(group_range(group) for group in file.row_groups)]
            )
            footer = parse_footer(file, footer_data)
            for group, data in zip(file.row_groups, groups, strict=True):
                columns = read_row_group(
                    file, group, footer, data, start_offset=entry.start_offset, end_offset=entry.end_offset
                )
                found += records_of(columns)
        return found

    async def head(self, stream: StreamId) -> StreamHead:
        raw = await self.metadata.get(self.keys.head(stream))
        assert raw is not None
        return STREAM_HEAD.decode(raw.value, raw.key)

    async def trim(self, stream: StreamId, offset: int) -> None:
        """Move the log start, and remove what lies below it."""
        await advance_log_start(self.keys, stream, offset, now_ms=self.clock.now_ms()).apply(self.metadata)
        await Trimmer(keys=self.keys, metadata=self.metadata, clock=self.clock, entries_per_step=100).trim(stream)

    def rows_on(self, files: Sequence[WrittenFile]) -> int:
        return sum(file.row_count for file in files)

    async def compaction(self, topic: Topic) -> CompactionState:
        found = await self.sagas.compaction(topic.id)
        assert found is not None, "the topic was compacted"
        return found

    async def cleaned(self, topic: Topic, partition: int = 0) -> StreamCompaction:
        return (await self.compaction(topic)).streams[partition]
