"""What a producer's batch has to be, and what the topic's rules make of it."""

import random
from dataclasses import replace

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.topics import TopicRules
from headrace.produce.intake import HEAVY_BYTES, LIGHT_PACKED_BYTES, MAX_RECORDS_NAMED, Accepted, is_heavy, take_in
from headrace.records.batch import CODEC_AT, HEADER, HEADER_BYTES, LENGTH_END, BatchView, Codec
from headrace.records.codecs import compress
from headrace.records.columns import walk
from headrace.records.problems import InvalidBatch, Problem
from headrace.records.stamping import stamp_crc
from headrace.testing.batches import make_batch, read_batches
from tests.unit.records.making import Batch, record

NOW_MS = 1_700_000_000_000
OPEN_BYTES = 100_000
RULES = TopicRules(max_message_bytes=1_000_000)
HEADS_ALONE = replace(RULES, opens_compressed=False)
NAMES = {
    Codec.NONE: "uncompressed",
    Codec.GZIP: "gzip",
    Codec.SNAPPY: "snappy",
    Codec.LZ4: "lz4",
    Codec.ZSTD: "zstd",
}


def taken(batch: memoryview, rules: TopicRules = RULES, *, max_open_bytes: int = OPEN_BYTES) -> Accepted:
    """Take a batch in, and hold the result to what every reader relies on."""
    accepted = take_in(batch, rules, now_ms=NOW_MS, max_open_bytes=max_open_bytes)
    assert not accepted.data.readonly, "offsets are stamped into it later"
    view = BatchView(accepted.data)
    assert view.size_bytes == len(accepted.data)
    view.check()
    assert view.summary() == accepted.summary
    return accepted


def problem_of(batch: memoryview, rules: TopicRules = RULES, *, max_open_bytes: int = OPEN_BYTES) -> Problem:
    """Return why a batch is refused; it must be left as it was."""
    before = bytes(batch)
    with pytest.raises(InvalidBatch) as caught:
        take_in(batch, rules, now_ms=NOW_MS, max_open_bytes=max_open_bytes)
    assert bytes(batch) == before, "nothing is changed before everything was checked"
    return caught.value.problem


def batch_of(*values: bytes, codec: Codec = Codec.NONE, at_ms: int = NOW_MS, key: bytes | None = b"k") -> memoryview:
    body = b"".join(record(n, n, key=key, value=value) for n, value in enumerate(values))
    last = len(values) - 1
    return Batch(
        body=body,
        attributes=codec,
        last_offset_delta=last,
        record_count=len(values),
        base_timestamp_ms=at_ms,
        max_timestamp_ms=at_ms + last,
    ).build()


def values_in(accepted: Accepted) -> list[bytes | None]:
    return [one.value for one in read_batches(accepted.data)]


# As it is


@pytest.mark.parametrize("codec", list(Codec))
def test_batch_without_demanding_rules_stays_byte_for_byte(codec: Codec) -> None:
    batch = batch_of(b"a", b"b", codec=codec)
    before = bytes(batch)
    accepted = taken(batch)
    assert accepted.data.obj is batch.obj, "no copy"
    assert bytes(accepted.data) == before


def test_two_batches_and_trailing_bytes_are_refused() -> None:
    assert problem_of(memoryview(bytearray(make_batch([b"a"]) * 2))) is Problem.COUNT
    assert problem_of(memoryview(bytearray(make_batch([b"a"]) + b"x"))) is Problem.COUNT


def test_batch_of_the_largest_size_is_taken_and_one_byte_more_is_not() -> None:
    batch = batch_of(b"x" * 100)
    taken(batch, replace(RULES, max_message_bytes=len(batch)))
    assert problem_of(batch, replace(RULES, max_message_bytes=len(batch) - 1)) is Problem.TOO_LARGE


def test_uncompressed_records_are_walked() -> None:
    lying = Batch(body=record(0) + record(7), record_count=2, last_offset_delta=1).build()
    assert problem_of(lying) is Problem.RECORD


LIES = {
    "one record claims to be five": ({"record_count": 5, "last_offset_delta": 4}, Problem.COUNT),
    "one record claims to be 2^31-1": ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}, Problem.COUNT),
    "two records claim to be one": ({"body": record(0) + record(1)}, Problem.COUNT),
    "a gap": ({"body": record(0) + record(7), "record_count": 2, "last_offset_delta": 1}, Problem.RECORD),
    "an offset twice": ({"body": record(0) + record(0), "record_count": 2, "last_offset_delta": 1}, Problem.RECORD),
    "a length past the end": ({"body": b"\x7e" + record(0)[1:]}, Problem.RECORD),
    "a length without end": ({"body": b"\xff" * 20}, Problem.RECORD),
    "no records": ({"body": b"\x00" * 20}, Problem.RECORD),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("codec", list(Codec))
def test_lie_about_the_records_is_refused_whatever_the_compression(codec: Codec, lie: str) -> None:
    fields, problem = LIES[lie]
    assert problem_of(Batch(attributes=codec, **fields).build()) is problem  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("body", [random.Random(7).randbytes(200), b"", compress(Codec.LZ4, record(0))[:-5]])
def test_body_that_cannot_be_opened_is_refused(codec: Codec, body: bytes) -> None:
    batch = bytearray(Batch().build()[:HEADER_BYTES]) + body
    fields = list(HEADER.unpack_from(batch))
    fields[1], fields[5] = len(batch) - LENGTH_END, codec
    HEADER.pack_into(batch, 0, *fields)
    stamp_crc(memoryview(batch))
    assert problem_of(memoryview(batch)) in (Problem.COMPRESSION, Problem.COUNT)


def test_raw_snappy_is_checked_like_xerial_snappy() -> None:
    for body, problem in ((record(0), None), (record(3), Problem.RECORD)):
        batch = bytearray(Batch().build()[:HEADER_BYTES]) + bytes(cramjam.snappy.compress_raw(body))
        fields = list(HEADER.unpack_from(batch))
        fields[1], fields[5] = len(batch) - LENGTH_END, Codec.SNAPPY
        HEADER.pack_into(batch, 0, *fields)
        stamp_crc(memoryview(batch))
        if problem is None:
            taken(memoryview(batch))
        else:
            assert problem_of(memoryview(batch)) is problem


@pytest.mark.parametrize("codec", list(Codec))
def test_maximum_timestamp_is_that_of_the_records(codec: Codec) -> None:
    batch = Batch(body=record(0, 9), attributes=codec, base_timestamp_ms=NOW_MS, max_timestamp_ms=5).build()
    assert taken(batch).summary.max_timestamp_ms == NOW_MS + 9


def test_topic_that_checks_heads_alone_opens_compressed_records_only_when_another_rule_asks() -> None:
    lying = Batch(body=record(0) + record(7), record_count=2, last_offset_delta=1, attributes=Codec.GZIP).build()
    taken(lying, HEADS_ALONE)
    asking = [{"compression": "gzip"}, {"is_compacted": True}, {"timestamp_before_max_ms": 10**15}]
    assert [problem_of(lying, replace(HEADS_ALONE, **rule)) for rule in asking] == [Problem.RECORD] * 3  # type: ignore[arg-type]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_whatever_the_bytes_are_they_are_taken_or_refused_with_one_typed_error(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(list(Codec)))
    batch = batch_of(b"some value", b"another", codec=codec)
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        stamp_crc(batch)
    rules = TopicRules(
        max_message_bytes=1_000_000,
        is_log_append_time=data.draw(st.booleans()),
        timestamp_before_max_ms=data.draw(st.sampled_from([1000, 2**63 - 1])),
        compression=data.draw(st.sampled_from([None, "lz4", "uncompressed"])),
        is_compacted=data.draw(st.booleans()),
    )
    try:
        taken(batch, rules)
    except InvalidBatch as error:
        assert str(error)


# Timestamps


def test_wrong_maximum_timestamp_is_corrected() -> None:
    batch = Batch(
        body=record(0, 500) + record(1, 100),
        record_count=2,
        last_offset_delta=1,
        base_timestamp_ms=NOW_MS,
        max_timestamp_ms=NOW_MS + 100,
    ).build()
    assert taken(batch).summary.max_timestamp_ms == NOW_MS + 500


@pytest.mark.parametrize("codec", list(Codec))
def test_append_time_overrules_the_producer_s_and_its_limits(codec: Codec) -> None:
    rules = replace(RULES, is_log_append_time=True, timestamp_before_max_ms=1, timestamp_after_max_ms=1)
    accepted = taken(batch_of(b"a", b"b", at_ms=5, codec=codec), rules)
    assert accepted.summary.max_timestamp_ms == NOW_MS
    assert [one.timestamp_ms for one in read_batches(accepted.data)] == [NOW_MS, NOW_MS]


@pytest.mark.parametrize("codec", list(Codec))
def test_records_too_far_ahead_are_refused(codec: Codec) -> None:
    rules = replace(RULES, timestamp_after_max_ms=1000)
    taken(batch_of(b"a", at_ms=NOW_MS + 1000, codec=codec), rules)
    assert problem_of(batch_of(b"a", at_ms=NOW_MS + 1001, codec=codec), rules) is Problem.TIMESTAMP


@pytest.mark.parametrize("codec", list(Codec))
def test_records_too_old_are_refused_also_behind_younger_ones(codec: Codec) -> None:
    rules = replace(RULES, timestamp_before_max_ms=1000)
    taken(batch_of(b"a", at_ms=NOW_MS - 1000, codec=codec), rules)
    old_inside = Batch(
        body=record(0, 0) + record(1, -1001),
        attributes=codec,
        record_count=2,
        last_offset_delta=1,
        base_timestamp_ms=NOW_MS,
        max_timestamp_ms=NOW_MS,
    ).build()
    assert problem_of(old_inside, rules) is Problem.TIMESTAMP


def test_record_without_a_timestamp_is_neither_old_nor_young() -> None:
    rules = replace(RULES, timestamp_before_max_ms=1, timestamp_after_max_ms=1)
    taken(Batch(base_timestamp_ms=-1, max_timestamp_ms=-1).build(), rules)


# Compression


@pytest.mark.parametrize("wanted", list(Codec))
@pytest.mark.parametrize("sent", list(Codec))
def test_batch_is_stored_with_the_compression_that_the_topic_wants(sent: Codec, wanted: Codec) -> None:
    batch = Batch(
        body=b"".join(record(n, n, key=b"k%d" % n, value=b"value" * n) for n in range(20)),
        attributes=sent,
        record_count=20,
        last_offset_delta=19,
        base_timestamp_ms=NOW_MS,
        max_timestamp_ms=NOW_MS + 19,
        producer_id=4,
        producer_epoch=2,
        base_sequence=9,
    ).build()
    before = taken(memoryview(bytearray(batch)))
    after = taken(batch, replace(RULES, compression=NAMES[wanted]))
    view = BatchView(after.data)
    assert view.codec is wanted
    assert read_batches(after.data) == read_batches(before.data)
    assert replace_size(after) == replace_size(before), "producer, sequence, counts and times are kept"
    walk(view, dense=True)
    if sent is wanted:
        assert after.data.obj is batch.obj, "nothing is copied where nothing changes"


def replace_size(accepted: Accepted) -> dict[str, object]:
    facts = {name: getattr(accepted.summary, name) for name in accepted.summary.__struct_fields__}
    del facts["size_bytes"]
    return facts


def test_batch_that_is_too_large_only_as_it_would_be_stored_is_refused() -> None:
    batch = batch_of(b"x" * 50_000, codec=Codec.ZSTD)
    rules = replace(RULES, max_message_bytes=1000, compression="uncompressed")
    assert len(batch) < 1000
    assert problem_of(batch, rules) is Problem.TOO_LARGE


def test_recompressed_batch_can_have_the_append_time_and_a_corrected_maximum() -> None:
    batch = batch_of(b"a", at_ms=5)
    accepted = taken(batch, replace(RULES, compression="gzip", is_log_append_time=True))
    assert [one.timestamp_ms for one in read_batches(accepted.data)] == [NOW_MS]
    wrong = Batch(body=record(0, 9), base_timestamp_ms=NOW_MS, max_timestamp_ms=NOW_MS).build()
    assert taken(wrong, replace(RULES, compression="lz4")).summary.max_timestamp_ms == NOW_MS + 9


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_bomb_is_not_opened_beyond_the_limit(codec: Codec) -> None:
    bomb = batch_of(bytes(5_000_000), codec=codec)
    taken(bomb, HEADS_ALONE)
    assert problem_of(bomb, max_open_bytes=1_000_000) is Problem.TOO_LARGE
    for rule in ({"is_compacted": True}, {"compression": "uncompressed"}, {"timestamp_before_max_ms": 10**15}):
        rules = replace(RULES, **rule)
        assert problem_of(bomb, rules, max_open_bytes=1_000_000) is Problem.TOO_LARGE


# Compacted topics


@pytest.mark.parametrize("codec", list(Codec))
def test_compacted_topic_takes_no_record_without_a_key(codec: Codec) -> None:
    rules = replace(RULES, is_compacted=True)
    assert values_in(taken(batch_of(b"a", b"b", codec=codec, key=b""), rules)) == [b"a", b"b"]
    assert problem_of(batch_of(b"a", codec=codec, key=None), rules) is Problem.RECORD


@pytest.mark.parametrize("codec", list(Codec))
def test_refusal_names_the_records_without_a_key(codec: Codec) -> None:
    keys = [None if number in (2, 9, 10) else b"k" for number in range(12)]
    body = b"".join(record(offset_delta=number, key=key) for number, key in enumerate(keys))
    data = Batch(body=body, record_count=12, last_offset_delta=11, attributes=codec).build()
    with pytest.raises(InvalidBatch, match="3 records have no key") as refused:
        taken(data, replace(RULES, is_compacted=True))
    assert refused.value.records == [2, 9, 10]


def test_refusal_names_a_bounded_number_of_records() -> None:
    count = MAX_RECORDS_NAMED + 5
    body = b"".join(record(offset_delta=number) for number in range(count))
    data = Batch(body=body, record_count=count, last_offset_delta=count - 1).build()
    with pytest.raises(InvalidBatch, match=f"{count} records") as refused:
        taken(data, replace(RULES, is_compacted=True))
    assert refused.value.records == list(range(MAX_RECORDS_NAMED))


# Where the work is done


def test_what_is_large_or_has_to_be_opened_is_heavy() -> None:
    small, large = memoryview(bytes(HEAVY_BYTES)), memoryview(bytes(HEAVY_BYTES + 1))
    assert not is_heavy(small, RULES) and is_heavy(large, RULES)
    packed = memoryview(bytearray(LIGHT_PACKED_BYTES + 1))
    packed[CODEC_AT] = Codec.ZSTD
    assert is_heavy(packed, RULES) and not is_heavy(packed, HEADS_ALONE) and not is_heavy(packed[:-1], RULES)
    assert is_heavy(small[:10], replace(RULES, compression="gzip"))
    assert is_heavy(small[:10], replace(RULES, is_compacted=True))
    assert is_heavy(small[:10], replace(RULES, timestamp_before_max_ms=1))
    assert not is_heavy(small[:10], replace(RULES, timestamp_after_max_ms=1, is_log_append_time=True))
