"""Old clients' message sets become batches and come back, and no byte of theirs does harm."""

import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from itertools import product
from struct import pack
from types import SimpleNamespace
from typing import Any

import aiokafka.record.legacy_records as aiokafka_records
import aiokafka.record.memory_records as aiokafka_memory
import cramjam
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.handlers.message_sets import batches_from_message_set, message_set_from_batches
from headrace.records.batch import CONTROL_BIT, BatchView, Codec
from headrace.records.codecs import compress
from headrace.records.columns import ColumnBuilder, walk
from headrace.records.encoder import BatchEncoder
from headrace.records.problems import InvalidBatch, Problem
from headrace.records.record import Record, columns_of, records_of
from headrace.records.stamping import stamp_append_time, stamp_offset

with warnings.catch_warnings():
    # kafka-python loads its schemas through a deprecated call while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    import kafka.record.legacy_records as kafka_records
    import kafka.record.memory_records as kafka_memory

OPEN_BYTES = 1 << 20
TIME_MS = 1_700_000_000_000
OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
RECORDS = [
    Record(
        offset=row,
        timestamp_ms=TIME_MS + (row * 7919) % 1000,
        key=None if row % 3 == 0 else b"" if row % 7 == 0 else b"key-%d" % row,
        value=None if row % 11 == 0 else b"value " * (row % 40),
    )
    for row in range(100)
]
CLIENTS = {
    "aiokafka": (aiokafka_records, aiokafka_memory),
    "kafka-python": (kafka_records, kafka_memory),
}


@pytest.fixture(autouse=True)
def _codecs_of_kafka_python(monkeypatch: pytest.MonkeyPatch) -> None:
    # kafka-python takes raw snappy blocks from python-snappy, for which cramjam stands in, and the wrong header
    # checksum of its LZ4 frames in magic 0 from xxhash, for which any wrong byte does.
    raw_snappy = SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)),
    )
    wrong_hash = SimpleNamespace(xxh32=lambda _: SimpleNamespace(digest=lambda: b"\x00\x00\x5a\x00"))
    monkeypatch.setattr(kafka.codec, "snappy", raw_snappy)
    monkeypatch.setattr(kafka.codec, "xxhash", wrong_hash)


def message(
    value: bytes | None = b"value",
    *,
    key: bytes | None = b"key",
    magic: int = 1,
    attributes: int = 0,
    timestamp_ms: int = TIME_MS,
    offset: int = 0,
    trailing: bytes = b"",
) -> bytes:
    content = pack(">bb", magic, attributes) + (pack(">q", timestamp_ms) if magic == 1 else b"")
    for part in (key, value):
        content += pack(">i", -1 if part is None else len(part)) + (part or b"")
    return seal(content + trailing, offset=offset)


def seal(content: bytes, *, offset: int = 0) -> bytes:
    return pack(">qiI", offset, len(content) + 4, zlib.crc32(content)) + content


def wrapper(*messages: bytes, codec: Codec = Codec.GZIP, magic: int = 1, attributes: int = 0) -> bytes:
    packed = bytes(compress(codec, b"".join(messages)))
    return message(packed, key=None, magic=magic, attributes=attributes | codec)


def taken(data: bytes, max_open_bytes: int = OPEN_BYTES) -> BatchView:
    """Convert, and hold the result to what the broker demands of any producer."""
    batch = batches_from_message_set(memoryview(data), max_open_bytes=max_open_bytes)
    view = BatchView(memoryview(batch))
    assert view.size_bytes == len(batch)
    view.check_produced()
    assert walk(view, dense=True).max_timestamp_ms == view.max_timestamp_ms
    assert (view.base_offset, view.producer_id, view.producer_epoch, view.base_sequence) == (0, -1, -1, -1)
    return view


def records_in(view: BatchView) -> list[Record]:
    builder = ColumnBuilder()
    builder.append(view)
    return list(records_of(builder.columns()))


def problem_of(data: bytes, max_open_bytes: int = OPEN_BYTES) -> Problem:
    with pytest.raises(InvalidBatch) as caught:
        batches_from_message_set(memoryview(data), max_open_bytes=max_open_bytes)
    return caught.value.problem


def given_back(
    data: bytes | bytearray | memoryview, *, magic: int = 1, start_offset: int = 0, max_bytes: int | None = None
) -> bytes:
    return message_set_from_batches(
        memoryview(data), start_offset=start_offset, magic=magic, max_bytes=max_bytes, max_open_bytes=OPEN_BYTES
    )


def stored(
    records: list[Record], *, codec: Codec = Codec.NONE, attributes: int = 0, append_time_ms: int | None = None
) -> bytes:
    batch = bytearray(BatchEncoder(codec=codec).encode(columns_of(records, attributes=attributes)))
    if append_time_ms is not None:
        stamp_append_time(memoryview(batch), append_time_ms=append_time_ms)
    return bytes(batch)


def written_by(client: str, records: list[Record], *, magic: int, codec: Codec) -> bytes:
    builder = CLIENTS[client][0].LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=10**7)
    for record in records:
        builder.append(record.offset, timestamp=record.timestamp_ms, key=record.key, value=record.value)
    return bytes(builder.build())


def read_by(client: str, data: bytes) -> list[tuple[int, int | None, int | None, bytes | None, bytes | None]]:
    """Return offset, timestamp, timestamp type, key and value of every message."""
    read = []
    messages = CLIENTS[client][1].MemoryRecords(data)
    while (batch := messages.next_batch()) is not None:
        assert batch.validate_crc()
        read += [(row.offset, row.timestamp, row.timestamp_type, row.key, row.value) for row in batch]
    return read


@pytest.mark.parametrize(
    ("client", "magic", "codec"),
    # aiokafka writes no LZ4 in magic 0.
    [triple for triple in product(CLIENTS, (0, 1), OLD_CODECS) if triple != ("aiokafka", 0, Codec.LZ4)],
)
def test_message_sets_of_old_clients_become_one_batch(client: str, magic: int, codec: Codec) -> None:
    view = taken(written_by(client, RECORDS, magic=magic, codec=codec))
    assert view.codec is codec
    times = [record.timestamp_ms if magic else -1 for record in RECORDS]
    assert [record.timestamp_ms for record in records_in(view)] == times
    assert [(record.offset, record.key, record.value) for record in records_in(view)] == [
        (record.offset, record.key, record.value) for record in RECORDS
    ]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("append_time_ms", [None, TIME_MS + 5000])
def test_batches_become_messages_that_old_clients_read(
    client: str, magic: int, codec: Codec, append_time_ms: int | None
) -> None:
    sparse = RECORDS[3::7]
    read = read_by(client, given_back(stored(sparse, codec=codec, append_time_ms=append_time_ms), magic=magic))
    assert [(offset, key, value) for offset, _, _, key, value in read] == [
        (record.offset, record.key, record.value) for record in sparse
    ]
    if magic == 0:
        assert {(time, kind) for _, time, kind, *_ in read} == {(None, None)}
    elif append_time_ms is not None:
        assert {(time, kind) for _, time, kind, *_ in read} == {(append_time_ms, 1)}
    else:
        assert [(time, kind) for _, time, kind, *_ in read] == [(record.timestamp_ms, 0) for record in sparse]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_equal_those_of_other_clients_byte_for_byte(magic: int) -> None:
    ours = given_back(stored(RECORDS), magic=magic)
    for client in CLIENTS:
        assert ours == written_by(client, RECORDS, magic=magic, codec=Codec.NONE)


PARTS = st.none() | st.binary(max_size=40)
TIMES = st.integers(-1, 2**63 - 1)


@given(rows=st.lists(st.tuples(TIMES, PARTS, PARTS), min_size=1, max_size=30), codec=st.sampled_from(OLD_CODECS))
@settings(max_examples=150, deadline=None)
def test_magic_1_survives_the_way_there_and_back(
    rows: list[tuple[int, bytes | None, bytes | None]], codec: Codec
) -> None:
    sent = [message(value, key=key, timestamp_ms=time, offset=row) for row, (time, key, value) in enumerate(rows)]
    wrapped = b"".join(sent) if codec is Codec.NONE else wrapper(*sent, codec=codec)
    assert given_back(taken(wrapped).data) == b"".join(sent)


def test_offsets_and_append_time_bits_of_clients_mean_nothing() -> None:
    inner = [message(b"%d" % row, attributes=8, offset=900 - row, timestamp_ms=row) for row in range(5)]
    for data in (b"".join(inner), wrapper(*inner, attributes=8)):
        assert [(record.offset, record.timestamp_ms, record.value) for record in records_in(taken(data))] == [
            (row, row, b"%d" % row) for row in range(5)
        ]


def test_wrappers_and_single_messages_are_taken_in_their_order() -> None:
    data = message(b"0") + wrapper(message(b"1"), message(b"2")) + message(b"3", magic=0) + wrapper(message(b"4"))
    assert [record.value for record in records_in(taken(data))] == [b"%d" % row for row in range(5)]


@pytest.mark.parametrize("options", [{}, {"store_size": True}, {"content_checksum": True}, {"block_linked": True}])
def test_lz4_of_magic_0_is_taken_with_the_wrong_header_checksum_and_with_the_true_one(options: Any) -> None:
    true = lz4.frame.compress(message(magic=0) * 2, **({"store_size": False} | options))
    checksum_at = 14 if "store_size" in options else 6
    wrong = true[:checksum_at] + bytes([true[checksum_at] ^ 0x5A]) + true[checksum_at + 1 :]
    with pytest.raises(RuntimeError):
        lz4.frame.decompress(wrong)
    for frame in (true, wrong):
        assert len(records_in(taken(message(frame, magic=0, attributes=Codec.LZ4)))) == 2
    assert problem_of(message(wrong, attributes=Codec.LZ4)) is Problem.COMPRESSION


def test_every_flipped_byte_is_refused_except_in_offsets_that_mean_nothing() -> None:
    for magic in (0, 1):
        sent = [message(b"value %d" % row, magic=magic) for row in range(2)]
        for data in (b"".join(sent), wrapper(*sent, magic=magic)):
            good = taken(data).data
            free = {
                byte + start for start in ((0, len(sent[0])) if data == b"".join(sent) else (0,)) for byte in range(8)
            }
            for at in range(len(data)):
                for mask in (0x01, 0x80, 0xFF):
                    flipped = bytearray(data)
                    flipped[at] ^= mask
                    if at in free:
                        assert taken(bytes(flipped)).data == good
                    else:
                        assert problem_of(bytes(flipped)) in Problem


@pytest.mark.parametrize("codec", OLD_CODECS[1:])
@pytest.mark.parametrize("magic", [0, 1])
def test_every_flipped_byte_behind_a_valid_checksum_is_an_answer_or_one_typed_error(codec: Codec, magic: int) -> None:
    sent = wrapper(message(b"a" * 20, magic=magic), message(None, magic=magic), codec=codec, magic=magic)
    for at in range(16, len(sent)):
        for mask in (0x01, 0x80, 0xFF):
            flipped = bytearray(sent)
            flipped[at] ^= mask
            try:
                taken(seal(bytes(flipped[16:])))
            except InvalidBatch:
                continue


def test_every_truncation_is_refused() -> None:
    data = message() + wrapper(message(), message()) + message(magic=0)
    whole = {0, len(message()), len(data) - len(message(magic=0))}
    for end in range(len(data)):
        if end not in whole:
            assert problem_of(data[:end]) is Problem.TRUNCATED
    inner = message() + message()
    for end in range(len(message()) + 1, len(inner)):
        assert problem_of(wrapper(inner[:end])) is Problem.TRUNCATED


@pytest.mark.parametrize("size", [-(2**31), -13, -12, -1, 0, 4, 5, 13])
def test_sizes_that_no_message_has_are_refused(size: int) -> None:
    data = bytearray(message(magic=0))
    data[8:12] = pack(">i", size)
    assert problem_of(bytes(data)) is Problem.LENGTH


def test_sizes_beyond_the_bytes_are_refused() -> None:
    data = bytearray(message())
    for size in (len(data) - 11, 2**31 - 1):
        data[8:12] = pack(">i", size)
        assert problem_of(bytes(data)) is Problem.TRUNCATED


@pytest.mark.parametrize("length", [-(2**31), -2, 5, 2**31 - 1])
@pytest.mark.parametrize("make", [lambda n: pack(">i", n) + b"keypack", lambda n: pack(">ii", -1, n) + b"val"])
def test_keys_and_values_that_do_not_fit_are_refused(length: int, make: Callable[[int], bytes]) -> None:
    assert problem_of(seal(pack(">bb", 0, 0) + make(length))) is Problem.RECORD


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", Problem.COUNT),
        (message(trailing=b"x"), Problem.RECORD),
        (message(magic=0)[:-5] + b"wrong", Problem.CHECKSUM),
        (wrapper(message()[:-5] + b"wrong"), Problem.CHECKSUM),
        (stored(RECORDS), Problem.MAGIC),
        (wrapper(stored(RECORDS)), Problem.MAGIC),
        (message(magic=-1), Problem.MAGIC),
        (wrapper(message(magic=0), magic=1), Problem.MAGIC),
        (wrapper(message(), magic=0), Problem.MAGIC),
        (wrapper(wrapper(message())), Problem.RECORD),
        (message(None, attributes=Codec.GZIP), Problem.RECORD),
        (wrapper(), Problem.RECORD),
        (message(b"rubbish", attributes=Codec.GZIP), Problem.COMPRESSION),
        (message(b"rubbish", attributes=Codec.LZ4, magic=0), Problem.COMPRESSION),
        (message(b"\x04\x22\x4d\x18", attributes=Codec.LZ4, magic=0), Problem.COMPRESSION),
        (message(b"\x04\x22\x4d\x18\x69", attributes=Codec.LZ4, magic=0), Problem.COMPRESSION),
        (wrapper(message(), codec=Codec.ZSTD), Problem.CODEC),
        (message(attributes=7), Problem.CODEC),
        (message(timestamp_ms=-2), Problem.TIMESTAMP),
    ],
)
def test_what_is_wrong_is_named(data: bytes, problem: Problem) -> None:
    assert problem_of(data) is problem


@given(data=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_garbage_raises_one_typed_error(data: bytes) -> None:
    with pytest.raises(InvalidBatch):
        batches_from_message_set(memoryview(data), max_open_bytes=OPEN_BYTES)
    with pytest.raises(InvalidBatch):
        given_back(data or b"x")


@pytest.mark.parametrize("codec", OLD_CODECS[1:])
def test_bomb_is_refused_within_the_limit_and_the_limit_counts_all_wrappers(codec: Codec) -> None:
    bomb = wrapper(message(bytes(16 * OPEN_BYTES)), codec=codec)
    tracemalloc.start()
    try:
        assert problem_of(bomb) is Problem.TOO_LARGE
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * OPEN_BYTES + 2 * len(bomb)
    half = wrapper(message(bytes(OPEN_BYTES // 2)), codec=codec)
    assert problem_of(half * 2) is Problem.TOO_LARGE


def test_smallest_messages_cost_a_small_multiple_of_the_limit() -> None:
    smallest = message(None, key=None, magic=0)
    bomb = wrapper(smallest * (OPEN_BYTES // len(smallest)), magic=0)
    assert len(bomb) < OPEN_BYTES // 100
    tracemalloc.start()
    try:
        batch = batches_from_message_set(memoryview(bomb), max_open_bytes=OPEN_BYTES)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert BatchView(memoryview(batch)).record_count == OPEN_BYTES // len(smallest)
    assert peak_bytes < 6 * OPEN_BYTES


def test_set_is_cut_at_whole_messages_and_never_before_the_first() -> None:
    data = stored(RECORDS[:10]) + stored(RECORDS[10:20], codec=Codec.LZ4)
    messages = [
        message(record.value, key=record.key, timestamp_ms=record.timestamp_ms, offset=record.offset)
        for record in RECORDS[:20]
    ]
    whole = b"".join(messages)
    assert given_back(data) == given_back(data, max_bytes=len(whole)) == whole
    for count in range(1, 20):
        exact_bytes = len(b"".join(messages[:count]))
        assert given_back(data, max_bytes=exact_bytes) == b"".join(messages[:count])
        assert given_back(data, max_bytes=exact_bytes - 1) == b"".join(messages[: max(1, count - 1)])
    assert given_back(data, max_bytes=0) == messages[0]


def test_messages_before_the_asked_offset_take_no_room() -> None:
    data = stored(RECORDS[:10]) + stored(RECORDS[10:20])
    for start_offset in range(20):
        (first, *_), *rest = read_by("aiokafka", given_back(data, start_offset=start_offset, max_bytes=1))
        assert (first, rest) == (start_offset, [])
    assert given_back(data, start_offset=20) == b""


def test_headers_and_control_batches_and_empty_batches_are_left_out() -> None:
    headed = Record(offset=0, timestamp_ms=5, key=b"k", value=b"v", headers=((b"h", b"x"),))
    marker = stored([Record(offset=1, timestamp_ms=5, key=bytes(4), value=bytes(6))], attributes=CONTROL_BIT)
    empty = bytes(BatchEncoder().encode(columns_of([]), start_offset=2, end_offset=9))
    assert given_back(stored([headed]) + marker + empty) == message(b"v", key=b"k", timestamp_ms=5)
    assert given_back(marker + empty) == b""


def test_stamped_offsets_are_those_of_the_messages() -> None:
    batch = bytearray(stored(RECORDS[:3]))
    stamp_offset(memoryview(batch), base_offset=2**40, leader_epoch=-1)
    assert [row[0] for row in read_by("kafka-python", given_back(batch))] == [2**40, 2**40 + 1, 2**40 + 2]


def test_damaged_batches_get_no_new_checksum() -> None:
    data = stored(RECORDS[:3], codec=Codec.GZIP)
    for at in range(len(data)):
        # Base offset and leader epoch lie outside the CRC: they are the broker's to stamp.
        if at in range(8) or at in range(12, 16):
            continue
        for mask in (0x01, 0x20, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= mask
            with pytest.raises(InvalidBatch):
                given_back(damaged)
    for end in range(1, len(data)):
        with pytest.raises(InvalidBatch):
            given_back(data[:end])


def test_stored_bomb_is_refused() -> None:
    bomb = stored([Record(offset=0, timestamp_ms=0, value=bytes(2 * OPEN_BYTES))], codec=Codec.GZIP)
    with pytest.raises(InvalidBatch) as caught:
        given_back(bomb)
    assert caught.value.problem is Problem.TOO_LARGE


def test_magic_0_knows_no_append_time() -> None:
    stamped = stored(RECORDS, append_time_ms=TIME_MS + 5000)
    assert given_back(stamped, magic=0) == given_back(stored(RECORDS), magic=0)
