"""Take in what a producer sends for one partition: check it, and make it what the topic's rules demand.

1. Exactly one batch of format 2, whole, with a right CRC, and nothing that only brokers write.
2. Not larger than the topic allows.
3. Every record is walked by the compiled walker. Compressed ones are opened for it, with a cap, and the opened bytes
   are thrown away. A topic whose `headrace.compressed.check` is `header` has them opened only when another rule asks
   for it: a compacted topic, a limit on how old records may be, another compression.
4. Timestamps within the topic's limits; the append time instead, where the topic says so.

Must stay true: nothing is changed before everything was checked; what was accepted is what a reader will get; and no
claim of a client makes us allocate more than `max_open_bytes`.
"""

from dataclasses import dataclass
from itertools import islice

from headrace.model.batches import NO_TIMESTAMP_MS, BatchSummary
from headrace.model.topics import NO_LIMIT_MS, TopicRules
from headrace.records.batch import CODEC_AT, CODEC_MASK, HEADER, HEADER_BYTES, LENGTH_END, BatchView, Codec
from headrace.records.codecs import compress, decompress
from headrace.records.columns import ColumnBuilder, Columns, walk
from headrace.records.kernel import Part
from headrace.records.problems import InvalidBatch, Problem
from headrace.records.stamping import stamp_append_time, stamp_crc, stamp_max_timestamp

HEAVY_BYTES = 1024 * 1024
"""Walking an uncompressed batch of this size takes a fraction of a millisecond."""

LIGHT_PACKED_BYTES = 64 * 1024
"""A compressed batch above this size is opened on a thread. Opening a smaller one costs about a hop to a thread."""

LIGHT_OPEN_BYTES = 256 * 1024
"""The most that one batch is opened to on the event loop; one that becomes more is opened again on a thread."""

MAX_RECORDS_NAMED = 1_000
"""How many records of a refused batch are named one by one."""

CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch that may be appended: its bytes, writable, and what the log needs to know of it."""

    data: memoryview
    summary: BatchSummary


def is_heavy(data: memoryview, rules: TopicRules) -> bool:
    """Say whether taking this in may keep a thread busy for longer than an event loop should wait."""
    if len(data) > HEAVY_BYTES or _must_open(rules):
        return True
    return rules.opens_compressed and len(data) > LIGHT_PACKED_BYTES and data[CODEC_AT] & CODEC_MASK != Codec.NONE


def take_in(data: memoryview, rules: TopicRules, *, now_ms: int, max_open_bytes: int) -> Accepted:
    """Return the batch as it will be stored; raise `InvalidBatch`. `data` is writable and may be stamped."""
    view = BatchView(data)
    if view.size_bytes != len(data):
        raise InvalidBatch(Problem.COUNT, "exactly one record batch per partition is taken at once")
    if view.size_bytes > rules.max_message_bytes:
        raise InvalidBatch(
            Problem.TOO_LARGE,
            f"the batch has {view.size_bytes} bytes, max.message.bytes is {rules.max_message_bytes}",
        )
    view.check_produced()
    low_ms, high_ms = _look_inside(view, rules, max_open_bytes)
    if not rules.is_log_append_time:
        _check_timestamps(rules, low_ms, high_ms, now_ms)
    wanted = None if rules.compression is None else CODECS[rules.compression]
    if wanted is not None and wanted is not view.codec:
        view = _recompressed(view, wanted, rules, max_open_bytes)
    if rules.is_log_append_time:
        stamp_append_time(view.data, append_time_ms=now_ms)
        view = BatchView(view.data)
    elif high_ms != view.max_timestamp_ms:
        # Some clients state the last record's time as the maximum; look-ups by time rely on the true one.
        stamp_max_timestamp(view.data, max_timestamp_ms=high_ms)
        view = BatchView(view.data)
    return Accepted(view.data, view.summary())


def _look_inside(view: BatchView, rules: TopicRules, max_open_bytes: int) -> tuple[int, int]:
    """Check the records as far as the rules ask for it; return the least and the greatest timestamp, if known.

    Of a compressed batch that need not be opened, the header's word is taken.
    """
    if rules.is_compacted:
        _check_keys(view, max_open_bytes)
    if view.codec is Codec.NONE or rules.opens_compressed or _must_open(rules):
        walked = walk(view, dense=True, max_open_bytes=max_open_bytes)
        return walked.min_timestamp_ms, walked.max_timestamp_ms
    return NO_TIMESTAMP_MS, view.max_timestamp_ms


def _must_open(rules: TopicRules) -> bool:
    return rules.is_compacted or rules.compression is not None or rules.timestamp_before_max_ms != NO_LIMIT_MS


def _check_keys(view: BatchView, max_open_bytes: int) -> None:
    builder = ColumnBuilder(max_open_bytes=max_open_bytes)
    builder.append(view)
    columns = builder.columns()
    if columns.null_key_count:
        raise InvalidBatch(
            Problem.RECORD,
            f"{columns.null_key_count} records have no key, and the topic is compacted by key",
            records=_without_key(columns),
        )


def _without_key(columns: Columns) -> list[int]:
    """Return which records have no key, the first of them: a client told of these mends the others as well."""
    validity = columns.buffers[Part.KEY_VALIDITY]
    rows = (row for row in range(columns.row_count) if not validity[row >> 3] >> (row & 7) & 1)
    return list(islice(rows, MAX_RECORDS_NAMED))


def _check_timestamps(rules: TopicRules, low_ms: int, high_ms: int, now_ms: int) -> None:
    if high_ms != NO_TIMESTAMP_MS and high_ms - now_ms > rules.timestamp_after_max_ms:
        raise InvalidBatch(
            Problem.TIMESTAMP,
            f"timestamp {high_ms} lies {high_ms - now_ms} ms ahead of this broker's clock; "
            f"message.timestamp.after.max.ms is {rules.timestamp_after_max_ms}",
        )
    if low_ms != NO_TIMESTAMP_MS and now_ms - low_ms > rules.timestamp_before_max_ms:
        raise InvalidBatch(
            Problem.TIMESTAMP,
            f"timestamp {low_ms} lies {now_ms - low_ms} ms behind this broker's clock; "
            f"message.timestamp.before.max.ms is {rules.timestamp_before_max_ms}",
        )


def _recompressed(view: BatchView, codec: Codec, rules: TopicRules, max_open_bytes: int) -> BatchView:
    """Return the same records in a batch with another compression."""
    body = decompress(view.codec, view.body, max_output_bytes=max_open_bytes)
    packed = compress(codec, body, level=rules.compression_level)
    fresh = bytearray(HEADER_BYTES + len(packed))
    fresh[:HEADER_BYTES] = view.data[:HEADER_BYTES]
    fresh[HEADER_BYTES:] = packed
    fields = list(HEADER.unpack_from(fresh))
    fields[1] = len(fresh) - LENGTH_END
    fields[5] = (view.attributes & ~CODEC_MASK) | codec
    HEADER.pack_into(fresh, 0, *fields)
    data = memoryview(fresh)
    stamp_crc(data)
    if len(data) > rules.max_message_bytes:
        raise InvalidBatch(
            Problem.TOO_LARGE,
            f"the batch has {len(data)} bytes once it is stored as {codec.name.lower()}, "
            f"max.message.bytes is {rules.max_message_bytes}",
        )
    return BatchView(data)
