"""Clients of compacted topics: they write few keys again and again, delete some, and read over holes."""

from functools import lru_cache

import msgspec

from headrace.fetch.runs import Run
from headrace.model.ids import StreamId
from headrace.records.batch import Codec
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.tables.clients import TopicConsumer, TopicProducer
from headrace.testing.simulation.tables.records import MAX_RECORDS, Sent, imprint_of, read_imprints

KEYS = 6
TOMBSTONE_RATE = 0.25


@lru_cache(maxsize=100_000)
def key_and_value(imprint: bytes) -> tuple[int, bytes, bytes | None]:
    """Return time, key and value of a record by its imprint."""
    timestamp_ms, key, value, _ = msgspec.msgpack.decode(imprint)
    return timestamp_ms, key, value


class KeyedProducer(TopicProducer):
    """An idempotent producer: all that is in a log has an offset that somebody was told."""

    def _next(self, stream: StreamId) -> Sent:
        count = self._rng.randrange(1, MAX_RECORDS)
        at_ms = self._clock.now_ms() - self._rng.randrange(0, 3_000)
        records = [self._record(number, stream, at_ms) for number in range(count)]
        self._name_count += count
        sequence = self._sequences.get(stream, 0)
        self._sequences[stream] = sequence + count
        columns = columns_of(records, producer_id=self._producer_id, producer_epoch=0, base_sequence=sequence)
        codec = (Codec.NONE, Codec.ZSTD)[self._rng.randrange(0, 2)]
        return Sent(
            data=bytes(BatchEncoder(codec=codec).encode(columns)), imprints=[imprint_of(record) for record in records]
        )

    def _record(self, number: int, stream: StreamId, at_ms: int) -> Record:
        name = b"%d/%d/%d" % (self._producer_id, stream, self._name_count + number)
        is_tombstone = self._rng.random() < TOMBSTONE_RATE
        return Record(
            offset=number,
            timestamp_ms=at_ms,
            key=b"key-%d" % self._rng.randrange(0, KEYS),
            value=None if is_tombstone else name,
            headers=((b"name", name),),
        )


class HoleConsumer(TopicConsumer):
    """Insists on order, and that what it gets is what was sent; offsets may be left out."""

    def _check_run(self, stream: StreamId, next_offset: int, run: Run, who: str) -> None:
        imprints = read_imprints(run.data)
        offsets = [offset for offset, _ in imprints]
        if offsets != sorted(set(offsets)) or any(not next_offset <= one < run.end_offset for one in offsets):
            raise Violation(f"stream {stream}: {who} read {offsets} in {next_offset}–{run.end_offset}")
        for offset, imprint in imprints:
            self._history.see(stream, offset, imprint)
