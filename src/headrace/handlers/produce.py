"""Produce 0-13: append record batches to partitions.

0-2 carry message sets of the formats before 2, which are converted here; from 3 on each partition has exactly one
batch. 2 answers the append time, 5 the log start, 7 allows zstd, 8 says why a record was refused, 9 is flexible, 10
may tell the current leader (any broker takes any partition, so it never differs), 13 names topics by id.

Steps: find the topics; take each batch in, off the loop where that is much work; offer all of them to the log in one
go; answer when they are durable. The request after this one may begin as soon as the log has taken these batches, so
a producer's pipelined requests share commits, and stay in order.

acks: 0 gets no answer, and like Apache Kafka's broker we close the connection if something was refused, because a
client has no other way to notice; 1 and all mean the same here, durable. A request that times out is answered with
REQUEST_TIMED_OUT: it may or may not be in the log. Transactional batches are refused until transactions are served.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from headrace.errors import HeadraceError
from headrace.handlers.call import Call, HangUp, Refusal, refusal_of
from headrace.handlers.message_sets import batches_from_message_set
from headrace.handlers.node import Node
from headrace.index.values import PartResult, PartStatus
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import Topic, TopicId
from headrace.produce.intake import LIGHT_OPEN_BYTES, Accepted, is_heavy, take_in
from headrace.produce.offers import Appended, NewPart
from headrace.records.batch import BatchView, Codec
from headrace.records.problems import InvalidBatch, Problem
from headrace.wire.messages import ZERO_UUID, ProduceRequest, ProduceResponse

FIRST_WITH_BATCHES = 3
FIRST_WITH_STORAGE_ERROR = 4
FIRST_WITH_ZSTD = 7
FIRST_WITH_TOPIC_IDS = 13

MIN_WAIT_S = 1.0
"""A commit takes time, however little: a client that grants none gets this, as it would from Kafka's broker."""

MAX_WAIT_S = 600.0
"""However long a client is willing to wait, an answer is given after this time."""

PARTITIONS_PER_SLICE = 250
"""How many partitions of a request are checked before others have their turn: some milliseconds of work."""

SMALL_BATCH_BYTES = 16 * 1024
LARGE_FRAME_BYTES = 64 * 1024
"""A small batch out of a large frame is copied: in the tail cache it would keep the whole frame's buffer from use."""

_CODE_OF_PROBLEM = {
    Problem.LENGTH: ErrorCode.CORRUPT_MESSAGE,
    Problem.CHECKSUM: ErrorCode.CORRUPT_MESSAGE,
    Problem.COMPRESSION: ErrorCode.CORRUPT_MESSAGE,
    Problem.TIMESTAMP: ErrorCode.INVALID_TIMESTAMP,
    Problem.CODEC: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    Problem.TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE,
}
"""Every other problem is an INVALID_RECORD; so is a batch that was cut off, which Kafka takes for none at all."""

_CODE_OF_STATUS = {
    PartStatus.ACCEPTED: ErrorCode.NONE,
    PartStatus.DUPLICATE: ErrorCode.NONE,
    PartStatus.UNKNOWN_STREAM: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    PartStatus.OUT_OF_ORDER_SEQUENCE: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    PartStatus.FENCED_PRODUCER: ErrorCode.INVALID_PRODUCER_EPOCH,
    PartStatus.INVALID_SEQUENCE: ErrorCode.INVALID_RECORD,
    PartStatus.DAMAGED: ErrorCode.KAFKA_STORAGE_ERROR,
}


class _Slot:
    """One partition of the request: refused, or a part of what was offered to the log."""

    __slots__ = ("append_time_ms", "index", "part", "records", "refusal")

    def __init__(self, index: int) -> None:
        self.index = index
        self.refusal: Refusal | None = None
        self.records: Sequence[int] = ()
        self.part: NewPart | None = None
        self.append_time_ms = -1


async def handle(
    node: Node, call: Call, request: ProduceRequest
) -> "ProduceResponse | asyncio.Future[ProduceResponse] | None":
    """Offer the batches to the log; return the promise of an answer."""
    if request.acks not in (-1, 0, 1):
        return refused(call, request, Refusal(ErrorCode.INVALID_REQUIRED_ACKS, "acks is 0, 1 or -1 (all)"))
    topics = await _find_topics(node, call, request)
    slots = await _take_all_in(node, call, request, topics)
    parts = [slot.part for group in slots for slot in group if slot.part is not None]
    appended = await _append(node, call, request, parts) if parts else None
    if request.acks == 0:
        _hang_up_if_refused(slots, appended)
        return None
    if not isinstance(appended, Appended):
        return _shape(call, request, slots, appended)
    return _promise(node, call, request, slots, appended)


async def _find_topics(node: Node, call: Call, request: ProduceRequest) -> list[Topic | None]:
    """Return each named topic, or `None`; what is not known here is looked up in the store before it is denied."""
    topics = [_known(node, call, sent) for sent in request.topic_data]
    if not all(map(_has_all, topics, request.topic_data)):
        await node.topics.refresh()
        topics = [_known(node, call, sent) for sent in request.topic_data]
    return topics


def _known(node: Node, call: Call, sent: ProduceRequest.TopicProduceData) -> Topic | None:
    if call.version >= FIRST_WITH_TOPIC_IDS:
        return node.topics.get_by_id(TopicId(sent.topic_id))
    return node.topics.get(sent.name)


def _has_all(topic: Topic | None, sent: ProduceRequest.TopicProduceData) -> bool:
    return topic is not None and all(0 <= data.index < len(topic.streams) for data in sent.partition_data)


async def _take_all_in(
    node: Node, call: Call, request: ProduceRequest, topics: list[Topic | None]
) -> list[list[_Slot]]:
    """Check each partition's batch; between slices of them, others have their turn on the loop."""
    slots: list[list[_Slot]] = []
    left = PARTITIONS_PER_SLICE
    for sent, topic in zip(request.topic_data, topics, strict=True):
        group: list[_Slot] = []
        for data in sent.partition_data:
            if not left:
                await node.turns.next()
                left = PARTITIONS_PER_SLICE
            left -= 1
            group.append(await _take_in(node, call, topic, data))
        slots.append(group)
    return slots


async def _take_in(node: Node, call: Call, topic: Topic | None, data: ProduceRequest.PartitionProduceData) -> _Slot:
    """Check one partition's batch, and make it ready for the log."""
    slot = _Slot(data.index)
    if topic is None and call.version >= FIRST_WITH_TOPIC_IDS:
        slot.refusal = Refusal(ErrorCode.UNKNOWN_TOPIC_ID)
        return slot
    if topic is None or not 0 <= data.index < len(topic.streams):
        slot.refusal = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return slot
    try:
        accepted = await _accepted(node, call, topic, data)
    except InvalidBatch as error:
        slot.refusal = Refusal(_CODE_OF_PROBLEM.get(error.problem, ErrorCode.INVALID_RECORD), str(error))
        slot.records = error.records
        return slot
    if accepted.summary.is_transactional:
        slot.refusal = Refusal(ErrorCode.INVALID_TXN_STATE, "transactions are not served yet")
        return slot
    if topic.rules.is_log_append_time:
        slot.append_time_ms = accepted.summary.max_timestamp_ms
    slot.part = NewPart(topic.streams[data.index], accepted.data, (accepted.summary,))
    return slot


async def _accepted(node: Node, call: Call, topic: Topic, data: ProduceRequest.PartitionProduceData) -> Accepted:
    if data.records is None or len(data.records) == 0:
        raise InvalidBatch(Problem.COUNT, "there is no record batch")
    assert isinstance(data.records, memoryview), "records of a request are views of its frame"
    records = data.records
    if len(records) < SMALL_BATCH_BYTES and call.size_bytes > LARGE_FRAME_BYTES:
        records = memoryview(bytearray(records))
    work = partial(_checked, records, call.version, topic, now_ms=node.clock.now_ms())
    if call.version >= FIRST_WITH_BATCHES and not is_heavy(records, topic.rules):
        try:
            return work(max_open=min(LIGHT_OPEN_BYTES, node.max_open_bytes))
        except InvalidBatch as error:
            # A refusal leaves the bytes as they were: what was only too much for the loop is tried on a thread.
            if error.problem is not Problem.TOO_LARGE or len(records) > topic.rules.max_message_bytes:
                raise
    return await node.executor.run(partial(work, max_open=node.max_open_bytes))


def _checked(records: memoryview, version: int, topic: Topic, *, now_ms: int, max_open: int) -> Accepted:
    if version < FIRST_WITH_BATCHES:
        records = memoryview(bytearray(batches_from_message_set(records, max_open_bytes=max_open)))
    elif version < FIRST_WITH_ZSTD and BatchView(records).codec is Codec.ZSTD:
        raise InvalidBatch(Problem.CODEC, f"zstd needs Produce {FIRST_WITH_ZSTD} or later, this is {version}")
    return take_in(records, topic.rules, now_ms=now_ms, max_open_bytes=max_open)


async def _append(node: Node, call: Call, request: ProduceRequest, parts: list[NewPart]) -> Appended | Refusal:
    """Offer the parts to the log; while it is full, wait as long as the client is willing to."""
    try:
        if node.log_in.has_room(sum(len(part.data) for part in parts)):
            return await node.log_in.append_all(parts)
        return await asyncio.wait_for(node.log_in.append_all(parts), _left_s(node, call, request))
    except TimeoutError:
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, "the broker had no room for these records in time: try again")
    except HeadraceError as error:
        return refusal_of(error)


def _left_s(node: Node, call: Call, request: ProduceRequest) -> float:
    """Return how long the client still waits."""
    patience_s = max(MIN_WAIT_S, min(request.timeout_ms / 1000, MAX_WAIT_S))
    return max(0.0, patience_s - (node.clock.monotonic() - call.arrived_at))


def _promise(
    node: Node, call: Call, request: ProduceRequest, slots: list[list[_Slot]], appended: Appended
) -> "asyncio.Future[ProduceResponse]":
    """Return a future that is answered when everything is durable, or when the client's patience ends."""
    loop = asyncio.get_running_loop()
    promise: asyncio.Future[ProduceResponse] = loop.create_future()

    def answer() -> None:
        timer.cancel()
        if promise.done():
            return
        try:
            promise.set_result(_shape(call, request, slots, appended))
        except Exception as error:  # Whatever it is, whoever waits for the answer must hear of it.
            promise.set_exception(error)

    timer = loop.call_later(_left_s(node, call, request), answer)
    appended.done.add_done_callback(lambda _: answer())
    return promise


def _shape(
    call: Call, request: ProduceRequest, slots: list[list[_Slot]], outcome: Appended | Refusal | None
) -> ProduceResponse:
    """Put the results into the order of the request; what has none yet has timed out."""
    results = iter(outcome.results) if isinstance(outcome, Appended) else None
    responses: list[ProduceResponse.TopicProduceResponse] = []
    for sent, group in zip(request.topic_data, slots, strict=True):
        answers = []
        for slot in group:
            result = None if slot.part is None or results is None else next(results)
            if slot.refusal is not None:
                answers.append(_refused_partition(call, slot.index, slot.refusal, slot.records))
            elif isinstance(outcome, Refusal):
                answers.append(_refused_partition(call, slot.index, outcome))
            else:
                answers.append(_answered_partition(call, slot, result))
        responses.append(
            ProduceResponse.TopicProduceResponse(name=sent.name, topic_id=sent.topic_id, partition_responses=answers)
        )
    return ProduceResponse(responses=responses)


def _answered_partition(
    call: Call, slot: _Slot, result: PartResult | HeadraceError | None
) -> ProduceResponse.PartitionProduceResponse:
    if result is None:
        return _refused_partition(call, slot.index, Refusal(ErrorCode.REQUEST_TIMED_OUT))
    if isinstance(result, HeadraceError):
        return _refused_partition(call, slot.index, refusal_of(result))
    code = _CODE_OF_STATUS[result.status]
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and call.version >= FIRST_WITH_TOPIC_IDS:
        code = ErrorCode.UNKNOWN_TOPIC_ID
    if code is not ErrorCode.NONE:
        return _refused_partition(call, slot.index, Refusal(code))
    return ProduceResponse.PartitionProduceResponse(
        index=slot.index,
        base_offset=result.base_offset,
        log_append_time_ms=slot.append_time_ms,
        log_start_offset=result.log_start,
    )


def _refused_partition(
    call: Call, index: int, refusal: Refusal, records: Sequence[int] = ()
) -> ProduceResponse.PartitionProduceResponse:
    code = refusal.code
    if code is ErrorCode.KAFKA_STORAGE_ERROR and call.version < FIRST_WITH_STORAGE_ERROR:
        # Clients of that time take a code they do not know for the end, and this one for "ask again where to send".
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ProduceResponse.PartitionProduceResponse(
        index=index,
        error_code=code,
        base_offset=-1,
        record_errors=[
            # The client tells whoever sent one of these what was wrong, and all others that they may try again.
            ProduceResponse.BatchIndexAndErrorMessage(batch_index=record, batch_index_error_message=refusal.message)
            for record in records
        ],
        error_message=refusal.message,
    )


def _hang_up_if_refused(slots: list[list[_Slot]], appended: Appended | Refusal | None) -> None:
    if isinstance(appended, Refusal):
        raise HangUp("produce", f"the log did not take a request without acknowledgement: {appended.message}")
    for group in slots:
        for slot in group:
            if slot.refusal is not None:
                raise HangUp("produce", f"partition {slot.index} was refused: {slot.refusal.message}")


def refused(call: Call, request: ProduceRequest, refusal: Refusal) -> ProduceResponse | None:
    """Refuse every partition that was sent."""
    if request.acks == 0:
        raise HangUp("produce", f"a request without acknowledgement was refused: {refusal.message}")
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=sent.name,
                topic_id=sent.topic_id or ZERO_UUID,
                partition_responses=[_refused_partition(call, data.index, refusal) for data in sent.partition_data],
            )
            for sent in request.topic_data
        ]
    )
