"""What a task of a sink does: rows become record batches, batches frames, frames objects.

1. Arrow batches are gathered into chunks, so that a stream's record batches do not become small.
2. A chunk's rows are placed, encoded, and taken in by the rules that hold for produced batches.
3. A frame that is full is written under a name of this attempt alone, while the next one is made.

Must stay true: memory is bounded by a chunk and two frames, whatever the task is given; rows of a stream keep their
order; a frame is told only once its bytes are durable, and an attempt that fails tells of none and takes its frames
back as well as it can. Nobody else knows their names, so nobody can have committed them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from headrace.errors import Invalid
from headrace.index.sinks import sink_object_id
from headrace.model.batches import BatchSummary
from headrace.model.ids import ObjectId, StreamId
from headrace.pipeline.sink.columns import Completion, Rows
from headrace.pipeline.sink.placing import PlacedRows, Placer
from headrace.pipeline.sink.plans import SinkPlan, WrittenBatch, WrittenFrame, WrittenRun
from headrace.produce.intake import CODECS, take_in
from headrace.records.arrow import from_arrow
from headrace.records.batch import Codec, iter_batches
from headrace.records.encoder import MAX_BATCH_BYTES, BatchEncoder
from headrace.records.problems import InvalidBatch
from headrace.runtime.clock import Clock
from headrace.wal.frame import FrameBuilder, SealedFrame

MIB: Final = 1024 * 1024
CHUNK_BYTES: Final = 16 * MIB
CHUNK_ROWS: Final = 200_000
FRAME_BYTES: Final = 32 * MIB


class FrameStore(Protocol):
    """Where frames go."""

    def put(self, object_id: ObjectId, frame: SealedFrame) -> None:
        """Begin to write a frame, once the one before it is durable."""
        ...

    def flush(self) -> None:
        """Return when all frames are durable."""
        ...

    def discard(self) -> None:
        """Delete all frames that were given to it, as far as that is possible; what is left is swept."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """How much is gathered before rows are encoded, and how large a frame becomes."""

    chunk_bytes: int = CHUNK_BYTES
    chunk_rows: int = CHUNK_ROWS
    frame_bytes: int = FRAME_BYTES


class FrameWriter:
    """One attempt of one task."""

    def __init__(
        self,
        plan: SinkPlan,
        names: Mapping[str, str],
        *,
        task: int,
        attempt: int,
        store: FrameStore,
        clock: Clock,
        limits: FrameLimits | None = None,
    ) -> None:
        self._plan = plan
        self._names = names
        self._task = task
        self._attempt = attempt
        self._store = store
        self._clock = clock
        self._limits = limits or FrameLimits()
        # Writes begin anywhere: with many small ones of one task each, the first partition would get all rows.
        self._placer = Placer(plan, first_partition=int(plan.write, 16) + task)
        self._completion = Completion(self._limits.chunk_rows)
        self._encoders: dict[tuple[Codec, int | None, int], BatchEncoder] = {}
        self._builder = FrameBuilder()
        self._batches: dict[StreamId, list[WrittenBatch]] = {}
        self._frames: list[WrittenFrame] = []

    def write(self, batches: Iterable[Any]) -> tuple[WrittenFrame, ...]:
        """Write all rows and return the frames, when they are durable. Raises `Invalid` for rows that may not be."""
        try:
            self._write(batches)
        except BaseException:
            self._store.discard()
            raise
        return tuple(self._frames)

    def _write(self, batches: Iterable[Any]) -> None:
        for table in self._chunks(batches):
            try:
                for placed in self._placer.place(Rows(table, self._names, now_ms=self._clock.now_ms())):
                    self._add(placed)
            except (InvalidBatch, pa.ArrowException) as error:
                raise Invalid(f"rows of task {self._task} cannot be written: {error}") from error
        self._seal()
        self._store.flush()

    def _chunks(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Gather Arrow batches into chunks that are worth encoding, and cut those that are too large."""
        gathered: list[Any] = []
        size_bytes = row_count = 0
        for batch in batches:
            for piece in _pieces(batch, self._limits):
                if row_count + len(piece) > self._limits.chunk_rows:
                    yield pa.Table.from_batches(gathered)
                    gathered, size_bytes, row_count = [], 0, 0
                gathered.append(piece)
                size_bytes += piece.nbytes
                row_count += len(piece)
                if size_bytes >= self._limits.chunk_bytes:
                    yield pa.Table.from_batches(gathered)
                    gathered, size_bytes, row_count = [], 0, 0
        if gathered:
            yield pa.Table.from_batches(gathered)

    def _add(self, placed: PlacedRows) -> None:
        """Encode one stream's rows of a chunk, and put them into the frame as a producer's would be."""
        encoded = self._encoder(placed).encode(from_arrow(self._completion.complete(placed.content)))
        now_ms = self._clock.now_ms()
        for view in iter_batches(memoryview(bytearray(encoded))):
            accepted = take_in(view.data, placed.rules, now_ms=now_ms, max_open_bytes=self._plan.max_open_bytes)
            self._builder.add(placed.stream, accepted.data, [accepted.summary])
            self._batches.setdefault(placed.stream, []).append(_written(accepted.summary))
            if self._builder.size_bytes >= self._limits.frame_bytes:
                self._seal()

    def _encoder(self, placed: PlacedRows) -> BatchEncoder:
        """Return an encoder that writes what the topic wants; batches are cut so that it takes them."""
        rules = placed.rules
        codec = Codec.NONE if self._plan.codec is None else Codec(self._plan.codec)
        if rules.compression is not None:
            codec = CODECS[rules.compression]
        max_bytes = min(MAX_BATCH_BYTES, rules.max_message_bytes)
        known = (codec, rules.compression_level, max_bytes)
        if known not in self._encoders:
            levels = {} if rules.compression_level is None else {codec: rules.compression_level}
            self._encoders[known] = BatchEncoder(codec=codec, levels=levels, max_batch_bytes=max_bytes)
        return self._encoders[known]

    def _seal(self) -> None:
        if self._builder.is_empty:
            return
        frame_number = len(self._frames)
        frame = self._builder.seal(
            writer=self._plan.write,
            frame_number=frame_number,
            domain=self._plan.domain,
            created_at_ms=self._clock.now_ms(),
        )
        object_id = sink_object_id(self._plan.write, task=self._task, attempt=self._attempt, frame=frame_number)
        self._store.put(object_id, frame)
        runs = tuple(
            WrittenRun(chunk.stream, chunk.start_byte, tuple(self._batches[chunk.stream])) for chunk in frame.chunks
        )
        self._frames.append(WrittenFrame(object_id, frame.size_bytes, runs))
        self._builder, self._batches = FrameBuilder(), {}


def _pieces(batch: Any, limits: FrameLimits) -> Iterator[Any]:
    """Cut a batch where it has more rows or bytes than a chunk takes; Spark's have ten thousand rows by default."""
    if not len(batch):
        return
    parts = max(-(-len(batch) // limits.chunk_rows), -(-batch.nbytes // (2 * limits.chunk_bytes)))
    rows = -(-len(batch) // parts)
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows)


def _written(batch: BatchSummary) -> WrittenBatch:
    return WrittenBatch(batch.size_bytes, batch.record_count, batch.base_timestamp_ms, batch.max_timestamp_ms)
