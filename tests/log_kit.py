"""A log over the memory store, for tests of the rules: short names for what every test does."""

from collections.abc import Sequence

from headrace.index.commit import AppendPart, FrameCommit, Outcome, commit_frame, commit_frames
from headrace.index.fold import fold_records, plan_fold
from headrace.index.objects import seal_object, stage_objects, wal_object_id
from headrace.index.streams import create_streams
from headrace.index.values import (
    DOMAIN_STATE,
    INDEX_ENTRY,
    LOG_RECORD,
    OBJECT_RECORD,
    STREAM_HEAD,
    DomainState,
    IndexEntry,
    LogRecord,
    ObjectRecord,
    PartResult,
    StreamHead,
    StreamKind,
)
from headrace.index.writers import register_writer
from headrace.metadata.keys import DomainKeys
from headrace.metadata.memory import MemoryMetadata
from headrace.model.batches import NO_PRODUCER, NO_SEQUENCE, BatchSummary
from headrace.model.ids import DomainId, ObjectId, ProducerId, SessionId, StreamId, WriterId
from headrace.runtime.rng import seeded_rng

WRITER = WriterId("a" * 32)
EXPIRATION_MS = 86_400_000
DAY_MS = 86_400_000


def batch(
    count: int = 1,
    *,
    size_bytes: int = 100,
    at_ms: int = 1000,
    max_ms: int | None = None,
    producer: int = NO_PRODUCER,
    epoch: int = 0,
    sequence: int = NO_SEQUENCE,
) -> BatchSummary:
    """Return the summary of a batch of `count` records."""
    return BatchSummary(
        size_bytes=size_bytes,
        record_count=count,
        base_timestamp_ms=at_ms,
        max_timestamp_ms=at_ms if max_ms is None else max_ms,
        producer_id=ProducerId(producer),
        producer_epoch=epoch if producer >= 0 else -1,
        base_sequence=sequence,
    )


class LogKit:
    """One domain on a memory store, with one writer whose frames all go to one segment."""

    def __init__(self) -> None:
        self.store = MemoryMetadata(seeded_rng(7))
        self.keys = DomainKeys(DomainId(0))
        self.now_ms = 1_000_000
        self.next_frame: dict[WriterId, int] = {}
        self.next_byte: dict[ObjectId, int] = {}

    async def streams(self, count: int) -> list[StreamId]:
        owners = [f"topic-{n}" for n in range(count)]
        return await create_streams(self.keys, owners, kind=StreamKind.PARTITION, now_ms=self.now_ms).apply(
            self.store
        )

    async def writer(self, writer: WriterId = WRITER) -> ObjectId:
        """Register a writer and stage its first segment."""
        await register_writer(self.keys, writer, session=SessionId("s"), now_ms=self.now_ms).apply(self.store)
        self.next_frame[writer] = 0
        return await self.stage(writer)

    async def stage(self, writer: WriterId = WRITER, *, number: int = 0, is_segment: bool = True) -> ObjectId:
        object_id = wal_object_id(writer, number)
        rule = stage_objects(self.keys, [object_id], writer=writer, is_segment=is_segment, now_ms=self.now_ms)
        await rule.apply(self.store)
        self.next_byte[object_id] = 0
        return object_id

    def frame(
        self,
        offers: Sequence[tuple[StreamId, Sequence[BatchSummary]]],
        *,
        object_id: ObjectId | None = None,
        writer: WriterId = WRITER,
        number: int | None = None,
    ) -> FrameCommit:
        """Return the commit of a frame with these offers, laid out as the builder lays them out."""
        target = object_id or wal_object_id(writer, 0)
        byte = self.next_byte[target] + 64
        parts: list[AppendPart | None] = [None] * len(offers)
        for ticket in sorted(range(len(offers)), key=lambda n: offers[n][0]):
            stream, batches = offers[ticket]
            parts[ticket] = AppendPart(stream, byte, batches)
            byte += sum(b.size_bytes for b in batches)
        return FrameCommit(
            writer=writer,
            frame_number=self.next_frame[writer] if number is None else number,
            object_id=target,
            end_byte=byte + 64,
            created_at_ms=self.now_ms,
            parts=[part for part in parts if part is not None],
            producer_expiration_ms=EXPIRATION_MS,
        )

    async def apply(self, commit: FrameCommit) -> Outcome:
        outcome = await commit_frame(self.keys, commit).apply(self.store)
        self._note(commit)
        return outcome

    def group(
        self, frames: Sequence[Sequence[tuple[StreamId, Sequence[BatchSummary]]]], *, writer: WriterId = WRITER
    ) -> list[FrameCommit]:
        """Return the commits of the writer's next frames, one after another in its segment."""
        target = wal_object_id(writer, 0)
        first, start_byte = self.next_frame[writer], self.next_byte[target]
        commits = []
        for number, offers in enumerate(frames, first):
            commits.append(self.frame(offers, writer=writer, number=number))
            self.next_byte[target] = commits[-1].end_byte
        self.next_byte[target] = start_byte
        return commits

    async def apply_group(self, commits: Sequence[FrameCommit]) -> list[Outcome]:
        """Commit frames in one transaction; return the outcomes of those that it took."""
        outcomes = await commit_frames(self.keys, commits).apply(self.store)
        for commit, _ in zip(commits, outcomes, strict=False):
            self._note(commit)
        return outcomes

    def _note(self, commit: FrameCommit) -> None:
        self.next_frame[commit.writer] = max(self.next_frame[commit.writer], commit.frame_number + 1)
        self.next_byte[commit.object_id] = max(self.next_byte[commit.object_id], commit.end_byte)

    async def commit(
        self, *offers: tuple[StreamId, Sequence[BatchSummary]], writer: WriterId = WRITER
    ) -> tuple[PartResult, ...]:
        """Commit one frame and return the parts' results."""
        outcome = await self.apply(self.frame(offers, writer=writer))
        assert outcome.record is not None
        return outcome.record.results

    async def append(self, stream: StreamId, count: int = 1, *, at_ms: int = 1000) -> int:
        """Commit one plain batch and return its first offset."""
        (result,) = await self.commit((stream, [batch(count, at_ms=at_ms)]))
        return result.base_offset

    async def fold(self, *, max_records: int = 1000, lag_records: int = 0, max_entries: int = 1000) -> int:
        plan = await plan_fold(
            self.store, self.keys, max_records=max_records, lag_records=lag_records, max_entries=max_entries
        )
        return await fold_records(self.keys, plan, now_ms=self.now_ms).apply(self.store) if plan else 0

    async def seal(self, object_id: ObjectId) -> ObjectRecord | None:
        return await seal_object(self.keys, object_id, now_ms=self.now_ms).apply(self.store)

    async def head(self, stream: StreamId) -> StreamHead:
        raw = await self.store.get(self.keys.head(stream))
        assert raw is not None
        return STREAM_HEAD.decode(raw.value, raw.key)

    async def state(self) -> DomainState:
        raw = await self.store.get(self.keys.state)
        return DomainState() if raw is None else DOMAIN_STATE.decode(raw.value, raw.key)

    async def object(self, object_id: ObjectId) -> ObjectRecord | None:
        raw = await self.store.get(self.keys.object(object_id))
        return None if raw is None else OBJECT_RECORD.decode(raw.value, raw.key)

    async def index(self, stream: StreamId) -> list[IndexEntry]:
        """Return the folded entries of a stream."""
        found = await self.store.range(self.keys.entries(stream, after_offset=0, limit=10_000))
        return [INDEX_ENTRY.decode(item.value, item.key) for item in found]

    async def log(self) -> list[LogRecord]:
        found = await self.store.range(self.keys.log_range(0, limit=10_000))
        return [LOG_RECORD.decode(item.value, item.key) for item in found]
