"""Rows become frames: in order, within bounds, under the topic's rules, each attempt under names of its own."""

import os

import msgspec
import pyarrow as pa
import pytest

from headrace.errors import Invalid
from headrace.index.objects import wal_object_key
from headrace.model.ids import DomainId, WriterId
from headrace.model.topics import TopicRules
from headrace.objects.memory import MemoryObjects
from headrace.pipeline.sink.framing import FrameLimits
from headrace.records.batch import BatchView, Codec
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock
from headrace.testing.inline import at_once
from headrace.wal.frame import parse_frame
from tests.unit.pipeline.sink.sink_kit import WRITE, batch_of, plan_of, records_in, write_task


def fresh_objects() -> MemoryObjects:
    return MemoryObjects(ManualClock())


def test_a_frame_is_as_a_brokers_frames_are() -> None:
    objects = fresh_objects()
    (frame,) = write_task(plan_of(), objects, [batch_of(key=["a", "b", "c", "d"], value=["1", "2", "3", "4"])])
    data = memoryview(bytes(at_once(objects.get(wal_object_key(DomainId(0), frame.object_id)))))
    parsed = parse_frame(data)
    assert (parsed.header.writer, parsed.header.frame_number, parsed.size_bytes) == (WRITE, 0, frame.size_bytes)
    assert [(chunk.stream, chunk.start_byte) for chunk in parsed.chunks] == [
        (run.stream, run.start_byte) for run in frame.runs
    ]
    assert sum(chunk.record_count for chunk in parsed.chunks) == 4


def test_large_tasks_write_many_frames_and_keep_the_order_of_rows() -> None:
    objects = fresh_objects()
    values = [f"{number:05d}" + "x" * 95 for number in range(5000)]
    batches = [batch_of(value=values[start : start + 500]) for start in range(0, 5000, 500)]
    limits = FrameLimits(chunk_bytes=100_000, chunk_rows=700, frame_bytes=120_000)
    frames = write_task(plan_of(partitions=1), objects, batches, limits=limits)
    assert len(frames) > 3
    assert len({frame.object_id for frame in frames}) == len(frames)
    found = [record.value for frame in frames for record in records_in(objects, frame)[0]]
    assert found == [value.encode() for value in values]


def test_batches_that_are_larger_than_a_chunk_are_cut() -> None:
    objects = fresh_objects()
    batch = batch_of(value=[f"{number:04d}" for number in range(1000)])
    limits = FrameLimits(chunk_bytes=1_000, chunk_rows=64, frame_bytes=10**9)
    (frame,) = write_task(plan_of(partitions=1), objects, [batch], limits=limits)
    assert [record.value for record in records_in(objects, frame)[0]] == [b"%04d" % number for number in range(1000)]


def test_attempts_of_one_task_never_share_a_name() -> None:
    objects = fresh_objects()
    batch = batch_of(value=["v"])
    names = {write_task(plan_of(), objects, [batch], attempt=attempt)[0].object_id for attempt in (1, 2)}
    assert len(names) == 2


def test_no_rows_make_no_frame() -> None:
    objects = fresh_objects()
    assert write_task(plan_of(), objects, []) == ()
    assert write_task(plan_of(), objects, [batch_of(value=["x"]).slice(0, 0)]) == ()


def test_what_the_topic_says_of_codecs_wins_over_the_option() -> None:
    objects = fresh_objects()
    rules = TopicRules(max_message_bytes=1_000_000, compression="lz4")
    rows = [batch_of(value=["same"] * 1000)]
    for plan, codec in ((plan_of(codec=Codec.ZSTD), Codec.ZSTD), (plan_of(codec=Codec.ZSTD, rules=rules), Codec.LZ4)):
        (frame,) = write_task(plan, objects, rows, attempt=int(codec))
        data = memoryview(bytes(at_once(objects.get(wal_object_key(DomainId(0), frame.object_id)))))
        assert BatchView(data, frame.runs[0].start_byte).codec is codec


def test_batches_are_cut_to_what_the_topic_takes_and_a_record_that_is_too_large_is_refused() -> None:
    objects = fresh_objects()
    rules = TopicRules(max_message_bytes=1_000)
    (frame,) = write_task(plan_of(partitions=1, rules=rules), objects, [batch_of(value=["x" * 200] * 50)])
    assert len(frame.runs[0].batches) >= 10
    assert max(batch.size_bytes for batch in frame.runs[0].batches) <= 1_000
    with pytest.raises(Invalid, match=r"max\.message\.bytes is 1000"):
        write_task(plan_of(rules=rules), objects, [batch_of(value=[os.urandom(2_000)])], attempt=2)


def test_compacted_topics_take_no_rows_without_a_key() -> None:
    rules = TopicRules(max_message_bytes=1_000_000, is_compacted=True)
    with pytest.raises(Invalid, match="1 records have no key"):
        write_task(plan_of(rules=rules), fresh_objects(), [batch_of(key=["k", None], value=["1", "2"])])


def test_times_are_the_topics_business() -> None:
    objects = fresh_objects()
    rules = TopicRules(max_message_bytes=1_000_000, is_log_append_time=True)
    (frame,) = write_task(plan_of(partitions=1, rules=rules), objects, [batch_of(value=["v"])], now_ms=123_456)
    assert [record.timestamp_ms for record in records_in(objects, frame)[0]] == [123_456]
    assert frame.runs[0].batches[0].max_timestamp_ms == 123_456
    old = TopicRules(max_message_bytes=1_000_000, timestamp_before_max_ms=10)
    late = batch_of(value=["v"], timestamp=pa.array([0], pa.timestamp("us", "UTC")))
    with pytest.raises(Invalid, match=r"message\.timestamp\.before\.max\.ms is 10"):
        write_task(plan_of(rules=old), objects, [late], attempt=2, now_ms=5_000)


def test_small_writes_without_keys_do_not_all_begin_with_the_same_partition() -> None:
    # A stream of one task per batch is the usual one; the partition of its rows must not follow from the task alone.
    objects, rng = fresh_objects(), seeded_rng(1)
    reached: set[int] = set()
    for _ in range(20):
        plan = msgspec.structs.replace(plan_of(), write=WriterId(f"{rng.getrandbits(128):032x}"))
        tasks = [write_task(plan, objects, [batch_of(value=["v"])], task=task) for task in range(3)]
        streams = [int(frame.runs[0].stream) for frames in tasks for frame in frames]
        assert sorted(streams) == [0, 1, 2], "tasks of one write take turns"
        reached.add(streams[0])
    assert reached == {0, 1, 2}


def test_an_attempt_that_fails_takes_back_what_it_has_written() -> None:
    objects = fresh_objects()
    other = write_task(plan_of(), objects, [batch_of(value=["v"])], attempt=1)
    rules = TopicRules(max_message_bytes=1_000)
    limits = FrameLimits(chunk_bytes=100, chunk_rows=10, frame_bytes=100)
    batches = [batch_of(value=["v" * 200]), batch_of(value=["v" * 200]), batch_of(value=[os.urandom(600).hex()])]
    with pytest.raises(Invalid, match=r"max\.message\.bytes is 1000"):
        write_task(plan_of(rules=rules), objects, batches, attempt=2, limits=limits)
    left = at_once(listed(objects))
    assert left == [wal_object_key(DomainId(0), other[0].object_id)], "what others wrote stays"


async def listed(objects: MemoryObjects) -> list[str]:
    return [info.key async for info in objects.list("")]
