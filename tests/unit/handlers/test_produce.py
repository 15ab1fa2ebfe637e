"""Produce in every version: what is taken, what is refused and with which code, in which order, and for how long."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from headrace.errors import Fenced, OutcomeUnknown, Retryable
from headrace.handlers import produce
from headrace.handlers.call import HangUp, Refusal
from headrace.index.streams import delete_stream
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import Topic
from headrace.produce.intake import LIGHT_OPEN_BYTES
from headrace.records.batch import BatchView, Codec
from headrace.records.problems import Problem
from headrace.records.stamping import stamp_crc
from headrace.runtime.turns import WOKEN_PER_PASS
from headrace.testing.batches import make_batch, read_batches
from headrace.wire.messages import ProduceRequest
from tests.unit.handlers.fetch_node import over_the_wire
from tests.unit.handlers.produce_node import ProduceNode, codes, idempotent, request_of
from tests.unit.handlers.test_message_sets import message, wrapper
from tests.unit.produce.scripted import Hold, Refuse
from tests.unit.records.making import Batch, record

T = TypeVar("T")

ALL_VERSIONS = range(14)
BATCH_VERSIONS = range(3, 14)
PATIENCE_S = 60


def sent_in(version: int, *values: bytes) -> bytes:
    """Return records in the format that a client of this version sends."""
    if version >= 3:
        return make_batch(values)
    return b"".join(message(value, magic=1 if version == 2 else 0) for value in values)


# Versions


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_every_version_appends_and_answers_with_the_first_offset(version: int) -> None:
    node = ProduceNode()
    await node.start(2)
    (first,) = await node.send((0, sent_in(version, b"a", b"b")), version=version)
    second, other = await node.send((0, sent_in(version, b"c")), (1, sent_in(version, b"d")), version=version)
    assert codes([first, second, other]) == [0, 0, 0]
    assert [first.base_offset, second.base_offset, other.base_offset] == [0, 2, 0]
    assert (second.index, other.index) == (0, 1)
    assert second.log_append_time_ms == -1, "the topic keeps the producer's times"
    assert second.log_start_offset == (0 if version >= 5 else -1)
    assert await node.kit.values(node.streams[0]) == [b"a", b"b", b"c"]
    assert await node.kit.values(node.streams[1]) == [b"d"]


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_every_version_can_tell_a_refusal_beside_a_success(version: int) -> None:
    node = ProduceNode()
    await node.start(1)
    good, bad = await node.send((0, sent_in(version, b"a")), (5, sent_in(version, b"b")), version=version)
    assert codes([good, bad]) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (bad.index, bad.base_offset, bad.log_append_time_ms, bad.log_start_offset) == (5, -1, -1, -1)


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_every_version_can_be_refused_as_a_whole_and_names_every_partition(version: int) -> None:
    node = ProduceNode()
    request = over_the_wire("ProduceRequest", version, request_of(version, (0, b"x"), (3, b"y")))
    response = produce.refused(node.call(version), request, Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "sorry"))
    assert response is not None
    (topic,) = over_the_wire("ProduceResponse", version, response).responses
    assert [(one.index, one.error_code) for one in topic.partition_responses] == [(0, -1), (3, -1)]
    assert (topic.name, topic.topic_id) == (request.topic_data[0].name, request.topic_data[0].topic_id)


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_append_time_is_told_from_version_2_on_and_is_the_time_of_the_records(version: int) -> None:
    node = ProduceNode()
    await node.start(1, is_log_append_time=True)
    (answer,) = await node.send((0, sent_in(version, b"a", b"b")), version=version)
    now_ms = node.kit.clock.now_ms()
    assert answer.log_append_time_ms == (now_ms if version >= 2 else -1)
    (run,) = await node.kit.reader.read(node.streams[0], 0, max_bytes=1000)
    assert [one.timestamp_ms for one in read_batches(run.data)] == [now_ms, now_ms]


@pytest.mark.parametrize("version", BATCH_VERSIONS)
async def test_zstd_is_taken_from_version_7_on(version: int) -> None:
    node = ProduceNode()
    await node.start()
    (answer,) = await node.send((0, Batch(attributes=Codec.ZSTD).build()), version=version)
    assert answer.error_code == (0 if version >= 7 else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


# Old message sets


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
async def test_compressed_message_sets_of_old_clients_are_taken(codec: Codec) -> None:
    node = ProduceNode()
    await node.start()
    (answer,) = await node.send((0, wrapper(message(b"a"), message(b"b"), codec=codec)), version=2)
    assert answer.error_code == 0
    assert await node.kit.values(node.streams[0]) == [b"a", b"b"]


async def test_old_message_sets_are_held_to_the_largest_message_as_they_are_stored() -> None:
    node = ProduceNode()
    await node.start()
    node.topics.here["t"] = _ruled(node, max_message_bytes=200)
    small, large = message(b"x" * 50), message(b"x" * 300)
    assert codes(await node.send((0, large), version=2)) == [ErrorCode.MESSAGE_TOO_LARGE]
    assert codes(await node.send((0, small), version=2)) == [0]


async def test_damaged_message_set_and_batches_in_old_versions_are_refused() -> None:
    node = ProduceNode()
    await node.start()
    damaged = bytearray(message(b"abc"))
    damaged[-1] ^= 1
    assert codes(await node.send((0, damaged), version=1)) == [ErrorCode.CORRUPT_MESSAGE]
    assert codes(await node.send((0, make_batch([b"a"])), version=2)) == [ErrorCode.INVALID_RECORD]
    assert codes(await node.send((0, message(b"abc")), version=3)) == [ErrorCode.INVALID_RECORD]
    assert await node.kit.values(node.streams[0]) == []


# Refusals per partition


def _flipped() -> memoryview:
    batch = Batch().build()
    batch[-1] ^= 1
    return batch


def _truncated() -> memoryview:
    return Batch().build()[:-1]


BROKEN: list[tuple[Problem, Callable[[], memoryview], ErrorCode]] = [
    (Problem.TRUNCATED, _truncated, ErrorCode.INVALID_RECORD),
    (Problem.LENGTH, lambda: Batch(body=b"", length_error=-20).build(), ErrorCode.CORRUPT_MESSAGE),
    (Problem.CHECKSUM, _flipped, ErrorCode.CORRUPT_MESSAGE),
    (Problem.MAGIC, lambda: Batch(magic=1).build(), ErrorCode.INVALID_RECORD),
    (Problem.COUNT, lambda: Batch(record_count=2).build(), ErrorCode.INVALID_RECORD),
    (Problem.RECORD, lambda: Batch(record_count=2, last_offset_delta=1).build(), ErrorCode.INVALID_RECORD),
    (Problem.ATTRIBUTES, lambda: Batch(attributes=0x20).build(), ErrorCode.INVALID_RECORD),
    (Problem.PRODUCER, lambda: Batch(producer_id=5).build(), ErrorCode.INVALID_RECORD),
    (Problem.TIMESTAMP, lambda: Batch(attributes=0x08).build(), ErrorCode.INVALID_TIMESTAMP),
    (Problem.CODEC, lambda: Batch(attributes=0x05).build(), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    (Problem.TOO_LARGE, lambda: Batch(body=record(value=b"x" * 2000)).build(), ErrorCode.MESSAGE_TOO_LARGE),
]


@pytest.mark.parametrize(("problem", "make", "code"), BROKEN, ids=[problem for problem, _, _ in BROKEN])
async def test_broken_batch_is_refused_with_its_code_and_neighbours_are_unharmed(
    problem: Problem, make: Callable[[], memoryview], code: ErrorCode
) -> None:
    node = ProduceNode()
    await node.start(3)
    node.topics.here["t"] = _ruled(node, max_message_bytes=1000)
    answers = await node.send((0, make_batch([b"a"])), (1, make()), (2, make_batch([b"c"])))
    assert codes(answers) == [0, code, 0]
    assert answers[1].error_message, "version 8 and later say why"
    assert [await node.kit.values(stream) for stream in node.streams] == [[b"a"], [], [b"c"]]


async def test_body_that_is_not_what_its_codec_says_is_corrupt_where_it_has_to_be_opened() -> None:
    node = ProduceNode()
    await node.start(1, compression="gzip")
    lying = Batch(attributes=Codec.NONE, body=b"no zstd frame").build()
    lying[21:23] = (Codec.ZSTD).to_bytes(2, "big")
    stamp_crc(lying)
    assert codes(await node.send((0, lying))) == [ErrorCode.CORRUPT_MESSAGE]


async def test_every_problem_of_a_clients_batch_has_a_code() -> None:
    tested = {problem for problem, _, _ in BROKEN} | {Problem.COMPRESSION, Problem.COLUMNS}
    assert tested == set(Problem), "a new problem needs a line in BROKEN"


@pytest.mark.parametrize("records", [None, b""])
async def test_a_partition_without_a_batch_is_refused(records: bytes | None) -> None:
    node = ProduceNode()
    await node.start()
    assert codes(await node.send((0, records))) == [ErrorCode.INVALID_RECORD]


async def test_two_batches_for_one_partition_are_refused() -> None:
    node = ProduceNode()
    await node.start()
    assert codes(await node.send((0, make_batch([b"a"]) + make_batch([b"b"])))) == [ErrorCode.INVALID_RECORD]


async def test_transactional_batches_are_refused_until_transactions_are_served() -> None:
    node = ProduceNode()
    await node.start()
    batch = Batch(attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0).build()
    assert codes(await node.send((0, batch))) == [ErrorCode.INVALID_TXN_STATE]


@pytest.mark.parametrize("acks", [2, -2, 100])
async def test_unknown_acks_are_refused(acks: int) -> None:
    node = ProduceNode()
    await node.start()
    assert codes(await node.send((0, make_batch([b"a"])), acks=acks)) == [ErrorCode.INVALID_REQUIRED_ACKS]
    assert await node.kit.values(node.streams[0]) == []


# Names


async def test_topic_that_only_the_store_knows_is_found() -> None:
    node = ProduceNode()
    await node.start()
    node.topics.add("t2", 2, node.streams, is_here=False)
    response = await node.produce(9, request_of(9, (0, make_batch([b"a"])), topic=2))
    assert codes(response.responses[0].partition_responses) == [0]
    assert node.topics.refreshes == 1


async def test_partition_that_was_added_elsewhere_is_found() -> None:
    node = ProduceNode()
    await node.start(2)
    node.topics.here["t"] = replace(node.topics.stored["t"], streams=tuple(node.streams[:1]))
    assert codes(await node.send((1, make_batch([b"a"])))) == [0]


async def test_what_is_known_costs_no_look_into_the_store() -> None:
    node = ProduceNode()
    await node.start()
    await node.send((0, make_batch([b"a"])))
    assert node.topics.refreshes == 0


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (13, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
async def test_unknown_topic_is_denied_only_by_the_store_and_keeps_its_neighbours(
    version: int, code: ErrorCode
) -> None:
    node = ProduceNode()
    await node.start()
    known, unknown = (request_of(version, (0, make_batch([b"a"])), topic=n).topic_data[0] for n in (1, 2))
    request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[unknown, known])
    response = await node.produce(version, request)
    assert [codes(topic.partition_responses) for topic in response.responses] == [[code], [0]]
    assert [(topic.name, topic.topic_id) for topic in response.responses] == [
        (topic.name, topic.topic_id) for topic in request.topic_data
    ]
    assert node.topics.refreshes == 1


@pytest.mark.parametrize(
    ("version", "code"), [(9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)]
)
async def test_topic_that_was_deleted_meanwhile_is_denied_by_the_commit(version: int, code: ErrorCode) -> None:
    node = ProduceNode()
    await node.start(2)
    await delete_stream(node.kit.keys, node.streams[0], now_ms=0).apply(node.kit.metadata)
    answers = await node.send((0, make_batch([b"a"])), (1, make_batch([b"b"])), version=version)
    assert codes(answers) == [code, 0]


# Idempotent producers


async def test_repeated_batch_is_answered_with_its_first_offset() -> None:
    node = ProduceNode()
    await node.start()
    for _ in range(2):
        (answer,) = await node.send((0, idempotent(b"a", b"b", sequence=0)))
        assert (answer.error_code, answer.base_offset) == (0, 0)
    (answer,) = await node.send((0, idempotent(b"c", sequence=2)))
    assert answer.base_offset == 2
    assert await node.kit.values(node.streams[0]) == [b"a", b"b", b"c"]


async def test_gap_and_old_epoch_are_refused() -> None:
    node = ProduceNode()
    await node.start()
    await node.send((0, idempotent(b"a", sequence=0, epoch=3)))
    gap = await node.send((0, idempotent(b"c", sequence=2, epoch=3)))
    old = await node.send((0, idempotent(b"c", sequence=1, epoch=2)))
    assert codes([*gap, *old]) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH]


async def test_pipelined_requests_share_a_commit_and_stay_in_order() -> None:
    node = ProduceNode()
    await node.start()
    commit = Hold()
    node.kit.script.plan("commit_frame", commit)
    promises = []
    for sequence in range(5):
        request = request_of(9, (0, idempotent(b"%d" % sequence, sequence=sequence)))
        promises.append(await node.begin(9, request))
        await node.kit.clock.settle()
    commit.release()
    answers = [await node.answered(9, promise) for promise in promises]
    offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
    assert offsets == [0, 1, 2, 3, 4]
    assert len(await node.kit.log()) == 2, "four requests waited for the first and went together"


# Durability, time, trouble


async def test_nothing_is_answered_before_the_commit() -> None:
    node = ProduceNode()
    await node.start()
    commit = Hold()
    node.kit.script.plan("commit_frame", commit)
    promise = await node.begin(9, request_of(9, (0, make_batch([b"a"])), acks=1))
    assert isinstance(promise, asyncio.Future)
    await node.kit.clock.settle()
    assert not promise.done(), "acks=1 means durable, too"
    commit.release()
    await asyncio.wait_for(promise, PATIENCE_S)


async def test_request_that_outlasts_its_client_is_answered_as_timed_out_and_still_lands() -> None:
    node = ProduceNode()
    await node.start(2)
    commit = Hold()
    node.kit.script.plan("commit_frame", commit)
    (answer,) = await node.send((0, make_batch([b"a"])), timeout_ms=5)
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT and answer.base_offset == -1
    commit.release()
    await node.send((1, make_batch([b"b"])))
    assert await node.kit.values(node.streams[0]) == [b"a"]


async def test_timeout_tells_what_is_known_and_what_is_not() -> None:
    node = ProduceNode()
    await node.start(2)
    second_frame = Hold()
    node.kit.writer._limits = replace(node.kit.writer._limits, frame_max_bytes=1)
    node.kit.script.plan("commit_frame", _pass, second_frame)
    answers = await node.send((0, make_batch([b"a"])), (1, make_batch([b"b"])), timeout_ms=200)
    assert codes(answers) == [0, ErrorCode.REQUEST_TIMED_OUT]
    second_frame.release()


async def test_timed_out_request_keeps_its_bytes_until_they_are_written() -> None:
    """The frame that waits holds views: a pool must not lend the memory again before they are gone."""
    node = ProduceNode()
    await node.start()
    write = Hold()
    node.kit.script.plan("append", write)
    await node.send((0, make_batch([b"precious" * 1000])), timeout_ms=5)
    write.release()
    await node.send((0, make_batch([b"b"])))
    assert await node.kit.values(node.streams[0]) == [b"precious" * 1000, b"b"]


async def test_full_log_makes_requests_wait_and_then_tells_them_that_time_is_up() -> None:
    node = ProduceNode()
    await node.start()
    node.kit.writer._limits = replace(node.kit.writer._limits, buffer_max_bytes=100)
    write = Hold()
    node.kit.script.plan("append", write)
    first = await node.begin(9, request_of(9, (0, make_batch([b"a" * 100]))))
    (late,) = await node.send((0, make_batch([b"b" * 100])), timeout_ms=5)
    assert late.error_code == ErrorCode.REQUEST_TIMED_OUT
    patient = asyncio.create_task(node.send((0, make_batch([b"c" * 100]))))
    await node.kit.clock.settle()
    assert not patient.done()
    write.release()
    assert codes(await patient) == [0]
    await node.answered(9, first)
    assert await node.kit.values(node.streams[0]) == [b"a" * 100, b"c" * 100], "who gave up was never taken"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Retryable("away"), ErrorCode.KAFKA_STORAGE_ERROR),
        (Fenced("gone"), ErrorCode.KAFKA_STORAGE_ERROR),
        (OutcomeUnknown("hm"), ErrorCode.REQUEST_TIMED_OUT),
    ],
)
async def test_errors_of_the_log_become_codes_that_clients_retry(error: Exception, code: ErrorCode) -> None:
    node = ProduceNode()
    await node.start(2)

    async def fail(parts: object) -> object:
        raise error

    node.log_in.append_all = fail  # type: ignore[method-assign, assignment]
    answers = await node.send((0, make_batch([b"a"])), (9, b""), (1, make_batch([b"b"])))
    assert codes(answers) == [code, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, code]


async def test_frame_that_could_not_be_stored_is_refused_with_a_retriable_code() -> None:
    node = ProduceNode()
    await node.start()
    node.kit.script.plan("append", Refuse(Retryable("the disk is full")))
    (answer,) = await node.send((0, make_batch([b"a"])))
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "disk is full" in (answer.error_message or "")


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.NOT_LEADER_OR_FOLLOWER), (4, ErrorCode.KAFKA_STORAGE_ERROR)]
)
async def test_clients_that_do_not_know_the_storage_error_get_one_that_they_retry(
    version: int, code: ErrorCode
) -> None:
    node = ProduceNode()
    await node.start()
    node.log_in.use(None)
    assert codes(await node.send((0, make_batch([b"a"])), version=version)) == [code]
    node.log_in.use(node.kit.writer)
    node.kit.script.plan("append", Refuse(Retryable("the disk is full")))
    assert codes(await node.send((0, make_batch([b"a"])), version=version)) == [code]
    refused = produce.refused(
        node.call(version), request_of(version, (0, b"")), Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "away")
    )
    assert refused is not None and codes(refused.responses[0].partition_responses) == [code]


async def test_an_answer_that_cannot_be_shaped_fails_the_promise_instead_of_leaving_it_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = ProduceNode()
    await node.start()
    monkeypatch.setattr(produce, "_CODE_OF_STATUS", {})
    promise = await node.begin(9, request_of(9, (0, make_batch([b"a"]))))
    assert isinstance(promise, asyncio.Future)
    with pytest.raises(KeyError):
        await asyncio.wait_for(promise, PATIENCE_S)


# acks=0


async def test_request_without_acknowledgement_is_appended_and_not_answered() -> None:
    node = ProduceNode()
    await node.start()
    assert await node.begin(9, request_of(9, (0, make_batch([b"a"])), acks=0)) is None
    await node.send((0, make_batch([b"b"])))
    assert await node.kit.values(node.streams[0]) == [b"a", b"b"]


async def test_refused_request_without_acknowledgement_ends_the_connection_after_the_others_were_taken() -> None:
    node = ProduceNode()
    await node.start(2)
    with pytest.raises(HangUp, match="partition 1"):
        await node.begin(9, request_of(9, (0, make_batch([b"a"])), (1, _flipped()), acks=0))
    await node.kit.clock.settle()
    assert await node.kit.values(node.streams[0]) == [b"a"]


async def test_request_without_acknowledgement_that_the_log_does_not_take_ends_the_connection() -> None:
    node = ProduceNode()
    await node.start()
    node.log_in.use(None)
    with pytest.raises(HangUp, match="joining"):
        await node.begin(9, request_of(9, (0, make_batch([b"a"])), acks=0))


async def test_whole_refusal_without_acknowledgement_ends_the_connection() -> None:
    node = ProduceNode()
    with pytest.raises(HangUp, match="sorry"):
        produce.refused(node.call(9), request_of(9, acks=0), Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "sorry"))


# Bytes


async def test_what_a_reader_of_the_tail_gets_is_what_lies_in_the_log() -> None:
    node = ProduceNode()
    await node.start()
    await node.send((0, make_batch([b"a", b"b"])))
    await node.send((0, make_batch([b"c"])))
    tail = b"".join(bytes(run.data) for run in node.kit.tail.find(node.streams[0], 0, 10_000))
    stored = b"".join(bytes(run.data) for run in await node.kit.reader.read(node.streams[0], 0, max_bytes=10_000))
    assert tail == stored and tail
    assert [one.offset for one in read_batches(memoryview(tail))] == [0, 1, 2]


async def test_offsets_are_stamped_only_after_the_bytes_were_written_and_committed() -> None:
    node = ProduceNode()
    await node.start()
    await node.send((0, make_batch([b"a"])))
    commit = Hold()
    node.kit.script.plan("commit_frame", commit)
    records = memoryview(bytearray(make_batch([b"b"])))
    request = request_of(9, (0, records))
    promise = await produce.handle(node.node, node.call(9), request)
    await node.kit.clock.settle()
    assert BatchView(records).base_offset == 0
    commit.release()
    await node.answered(9, promise)
    assert BatchView(records).base_offset == 1


async def test_repeated_batch_leaves_the_tail_as_it_is() -> None:
    node = ProduceNode()
    await node.start()
    for _ in range(2):
        await node.send((0, idempotent(b"a", sequence=0)))
    assert len(node.kit.tail.find(node.streams[0], 0, 10_000)) == 1


async def test_small_batch_of_a_large_frame_is_copied_so_that_the_tail_does_not_hold_the_frame() -> None:
    node = ProduceNode()
    await node.start()
    frame = memoryview(bytearray(make_batch([b"a"]) + bytes(100_000)))
    records = frame[: len(make_batch([b"a"]))]
    promise = await produce.handle(node.node, node.call(9, size_bytes=len(frame)), request_of(9, (0, records)))
    await node.answered(9, promise)
    frame[:] = bytes(len(frame))
    (run,) = node.kit.tail.find(node.streams[0], 0, 1000)
    assert [one.value for one in read_batches(run.data)] == [b"a"]


@pytest.mark.parametrize(
    "rules", [{"compression": "gzip"}, {"is_compacted": True}, {"timestamp_before_max_ms": 10**15}]
)
async def test_what_has_to_be_opened_leaves_the_loop(rules: dict[str, object]) -> None:
    node = ProduceNode()
    await node.start(1, **rules)
    ran: list[object] = []

    class Counting:
        async def run(self, work: Callable[[], T]) -> T:
            ran.append(work)
            return work()

    node.node.executor = Counting()  # type: ignore[misc, assignment]
    (answer,) = await node.send((0, Batch(body=record(key=b"k")).build()))
    assert answer.error_code == 0 and len(ran) == 1


async def test_small_batch_that_becomes_large_leaves_the_loop_and_is_taken() -> None:
    node = ProduceNode()
    await node.start(1)
    ran: list[object] = []

    class Counting:
        async def run(self, work: Callable[[], T]) -> T:
            ran.append(work)
            return work()

    node.node.executor = Counting()  # type: ignore[misc, assignment]
    for value, threads in ((b"x", 0), (bytes(LIGHT_OPEN_BYTES), 1)):
        (answer,) = await node.send((0, Batch(body=record(value=value), attributes=Codec.GZIP).build()))
        assert answer.error_code == 0 and len(ran) == threads


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_compacted_topic_refuses_a_whole_batch_and_tells_which_records_have_no_key(version: int) -> None:
    node = ProduceNode()
    await node.start(1, is_compacted=True)
    if version >= 3:
        body = record(key=b"a") + record(1) + record(2, key=b"b") + record(3)
        data = bytes(Batch(body=body, record_count=4, last_offset_delta=3).build())
    else:
        data = b"".join(message(b"v", key=key, magic=version // 2) for key in (b"a", None, b"b", None))
    (answer,) = await node.send((0, data), version=version)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [one.batch_index for one in answer.record_errors] == ([1, 3] if version >= 8 else [])
    assert all("no key" in (one.batch_index_error_message or "") for one in answer.record_errors)
    assert await node.kit.values(node.streams[0]) == []


def _ruled(node: ProduceNode, *, max_message_bytes: int) -> Topic:
    topic = node.topics.stored["t"]
    return replace(topic, rules=replace(topic.rules, max_message_bytes=max_message_bytes))


async def _pass(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


# Long requests


async def test_request_with_many_partitions_lets_others_run_in_between() -> None:
    node = ProduceNode()
    await node.start(1)
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            await asyncio.sleep(0)
            passes += 1

    probe = asyncio.create_task(count())
    await asyncio.sleep(0)
    sent = [(7, make_batch([b"x"]))] * (10 * produce.PARTITIONS_PER_SLICE)  # no such partition
    sent[-1] = (0, make_batch([b"last"]))
    passes = 0
    answer = await node.begin(9, request_of(9, *sent))
    assert passes >= 9, "the loop was kept for the whole request"
    probe.cancel()
    (topic,) = (await node.answered(9, answer)).responses
    assert codes(topic.partition_responses) == [3] * (len(sent) - 1) + [0]
    assert await node.kit.values(node.streams[0]) == [b"last"]


async def test_producer_is_answered_before_the_readers_who_wait_for_its_records() -> None:
    node = ProduceNode()
    await node.start(1)
    await node.send((0, make_batch([b"before"])))
    fetches = [asyncio.create_task(node.kit.fetch((node.streams[0], 1), max_wait_ms=60_000)) for _ in range(500)]
    await node.kit.clock.settle()
    assert node.kit.fetcher.parked == 500
    (answer,) = await node.send((0, make_batch([b"awaited"])))
    answered_first = sum(fetch.done() for fetch in fetches)
    assert answer.base_offset == 1
    assert answered_first <= 4 * WOKEN_PER_PASS, "the readers ran first"
    found = await asyncio.gather(*fetches)
    assert all(one.end_offset == 2 for (one,) in found)


async def test_readers_of_one_commit_are_woken_in_slices_and_in_order() -> None:
    node = ProduceNode()
    await node.start(1)
    await node.send((0, make_batch([b"before"])))
    order: list[int] = []

    async def read(number: int) -> None:
        await node.kit.fetch((node.streams[0], 1), max_wait_ms=60_000)
        order.append(number)

    fetches = [asyncio.create_task(read(number)) for number in range(10 * WOKEN_PER_PASS)]
    await node.kit.clock.settle()
    await node.send((0, make_batch([b"awaited"])))
    most = 0
    while not all(fetch.done() for fetch in fetches):
        before = len(order)
        await asyncio.sleep(0)
        most = max(most, len(order) - before)
    assert 0 < most <= WOKEN_PER_PASS
    assert order == list(range(len(fetches)))
