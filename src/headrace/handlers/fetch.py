"""Fetch (API 1), versions 0–18: read batches from partitions.

- v0–3 get old message sets, converted here; v3 brings the limit of the whole answer, v4 isolation levels, v5 the log
  start, v7 fetch sessions, v9 leader epochs, v11 racks, v12 is flexible and has diverging epochs, v13 topic ids,
  v15 replica states, v16 node endpoints, v17 directory ids, v18 a follower's high watermark.

Every partition that was asked for is answered; within an incremental session only those with news. Steps: the
session, names to streams, the flow, the shape.

Left out on purpose: leader epochs and everything for followers are ignored, since any broker serves any partition. A
rack is not answered with another replica (KIP-392): Metadata lists the leader as the only replica, and a client that
is sent to a broker which is no replica comes straight back, for ever. INCONSISTENT_TOPIC_ID does not occur: an id
names its topic directly here, and one that is gone is UNKNOWN_TOPIC_ID.
"""

from collections.abc import Sequence
from functools import partial

from headrace.errors import Corrupt
from headrace.fetch.fetcher import MAX_ANSWER_BYTES, Fetched, Outcome, Wanted
from headrace.fetch.runs import Piece
from headrace.fetch.sessions import NO_SESSION, SessionFetch, SessionPartition, SessionProblem, TopicKey
from headrace.handlers.call import Call, Refusal, refusal_of
from headrace.handlers.message_sets import message_set_from_batches
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.model.ids import StreamId
from headrace.model.topics import Topic, TopicId
from headrace.records.problems import InvalidBatch
from headrace.wire.messages import FetchRequest, FetchResponse

FIRST_WITH_BATCHES = 4
FIRST_WITH_SESSIONS = 7
FIRST_WITH_ZSTD = 10
FIRST_WITH_TOPIC_IDS = 13
FIRST_WITH_MAGIC_1 = 2

READ_COMMITTED = 1

_Data = FetchResponse.PartitionData
_TopicData = FetchResponse.FetchableTopicResponse

_PROBLEMS = {
    SessionProblem.NOT_FOUND: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    SessionProblem.WRONG_EPOCH: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    SessionProblem.TOPIC_KEYS_MIXED: ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}

_Found = Fetched | ErrorCode
"""What a partition answers, or why it was not even looked at."""


async def handle(node: Node, call: Call, request: FetchRequest) -> FetchResponse:
    """Answer with what there is, once there is enough of it."""
    session = _begin_session(node, call, request)
    if isinstance(session, SessionProblem):
        return FetchResponse(error_code=_PROBLEMS[session])
    streams = _streams(node, call, session)
    if any(isinstance(stream, ErrorCode) for stream in streams):
        await node.topics.refresh()  # only the store can say that there is no such topic
        streams = _streams(node, call, session)
    found = await _fetch(node, call, request, session, streams)
    if call.version < FIRST_WITH_BATCHES:
        return FetchResponse(responses=await _old_responses(node, call, request, session, streams, found))
    return _finish_session(node, request, session, found)


def refused(call: Call, request: FetchRequest, refusal: Refusal) -> FetchResponse:
    """Refuse every partition that was asked for, and the session with them."""
    has_ids = call.version >= FIRST_WITH_TOPIC_IDS
    responses = []
    for topic in request.topics:
        partitions = [_refused(one.partition, refusal.code) for one in topic.partitions]
        responses.append(_topic_data(topic.topic_id if has_ids else topic.topic, partitions))
    code = refusal.code if call.version >= FIRST_WITH_SESSIONS else ErrorCode.NONE
    return FetchResponse(error_code=code, responses=responses)


def _begin_session(node: Node, call: Call, request: FetchRequest) -> SessionFetch | SessionProblem:
    has_ids = call.version >= FIRST_WITH_TOPIC_IDS
    wanted: list[SessionPartition] = []
    for topic in request.topics:
        key: TopicKey = topic.topic_id if has_ids else topic.topic
        for one in topic.partitions:
            wanted.append(SessionPartition(key, one.partition, one.fetch_offset, one.partition_max_bytes))
    forgotten: list[tuple[TopicKey, int]] = [
        (topic.topic_id if has_ids else topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]
    return node.fetch_sessions.begin(
        session_id=request.session_id,
        epoch=request.session_epoch,
        wanted=wanted,
        forgotten=forgotten,
        has_topic_ids=has_ids,
        now_ms=_now_ms(node),
    )


async def _fetch(
    node: Node, call: Call, request: FetchRequest, session: SessionFetch, streams: "Sequence[StreamId | ErrorCode]"
) -> list[_Found]:
    wanted = [
        Wanted(stream, one.offset, max(one.max_bytes, 0))
        for stream, one in zip(streams, session.partitions, strict=True)
        if not isinstance(stream, ErrorCode)
    ]
    if not wanted:
        return [stream for stream in streams if isinstance(stream, ErrorCode)]
    is_whole = len(wanted) == len(streams)
    fetched = iter(
        await node.fetcher.fetch(
            wanted,
            max_bytes=max(request.max_bytes, 0),
            min_bytes=request.min_bytes,
            max_wait_ms=request.max_wait_ms if is_whole else 0,  # errors are told at once
            arrived_at=call.arrived_at,
            room=call.room,
        )
    )
    return [stream if isinstance(stream, ErrorCode) else next(fetched) for stream in streams]


def _streams(node: Node, call: Call, session: SessionFetch) -> "list[StreamId | ErrorCode]":
    """Return each partition's stream, or why it has none."""
    topics: dict[TopicKey, Topic | None] = {}
    streams: list[StreamId | ErrorCode] = []
    for one in session.partitions:
        key = one.topic
        if key in topics:
            topic = topics[key]
        else:
            found = node.topics.get(key) if isinstance(key, str) else node.topics.get_by_id(TopicId(key))
            topic = topics[key] = found
        if topic is None:
            streams.append(_unknown_topic(key))
        elif not 0 <= one.partition < len(topic.streams):
            streams.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif topic.rules.compression == "zstd" and FIRST_WITH_BATCHES <= call.version < FIRST_WITH_ZSTD:
            streams.append(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)  # KIP-110
        else:
            streams.append(topic.streams[one.partition])
    return streams


def _finish_session(
    node: Node, request: FetchRequest, session: SessionFetch, found: Sequence[_Found]
) -> FetchResponse:
    answered = [
        one
        for one, answer in zip(session.partitions, found, strict=True)
        if isinstance(answer, Fetched) and answer.size_bytes
    ]
    session_id = node.fetch_sessions.finish(session, answered=answered, now_ms=_now_ms(node))
    if isinstance(session_id, SessionProblem):
        return FetchResponse(error_code=_PROBLEMS[session_id])
    aborted: list[FetchResponse.AbortedTransaction] | None = [] if request.isolation_level == READ_COMMITTED else None
    responses: dict[TopicKey, list[_Data]] = {}
    for one, answer in zip(session.partitions, found, strict=True):
        data = _partition_data(one, answer, aborted)
        if session_id != NO_SESSION and not _is_news(one, data) and session.is_incremental:
            continue
        responses.setdefault(one.topic, []).append(data)
    return FetchResponse(
        session_id=session_id, responses=[_topic_data(key, partitions) for key, partitions in responses.items()]
    )


def _is_news(one: SessionPartition, data: _Data) -> bool:
    return one.note(
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
        log_start=data.log_start_offset,
        has_records=bool(data.records),
        has_error=data.error_code != ErrorCode.NONE,
    )


def _partition_data(
    one: SessionPartition, answer: _Found, aborted: "list[FetchResponse.AbortedTransaction] | None"
) -> _Data:
    code = answer if isinstance(answer, ErrorCode) else _code(one.topic, answer)
    if code or isinstance(answer, ErrorCode):
        return _refused(one.partition, code)
    return _Data(
        partition_index=one.partition,
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.last_stable_offset,
        log_start_offset=answer.log_start,
        aborted_transactions=aborted,
        records=answer.records,
    )


def _code(topic: TopicKey, answer: Fetched) -> ErrorCode:
    if answer.outcome is Outcome.FOUND:
        return ErrorCode.NONE
    if answer.outcome is Outcome.OUT_OF_RANGE:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if answer.outcome is Outcome.NO_STREAM:
        return _unknown_topic(topic)
    assert answer.error is not None, "what failed says why"
    if isinstance(answer.error, Corrupt):
        # librdkafka hands this code to the application with the offset, at every attempt, and Java's consumer throws.
        # On KAFKA_STORAGE_ERROR both look for another leader and ask again for ever, without a word.
        return ErrorCode.CORRUPT_MESSAGE
    return refusal_of(answer.error).code


def _unknown_topic(topic: TopicKey) -> ErrorCode:
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if isinstance(topic, str) else ErrorCode.UNKNOWN_TOPIC_ID


def _refused(partition: int, code: ErrorCode) -> _Data:
    return _Data(
        partition_index=partition, error_code=code, high_watermark=-1, aborted_transactions=None, records=b""
    )


def _topic_data(key: TopicKey, partitions: list[_Data]) -> _TopicData:
    if isinstance(key, str):
        return _TopicData(topic=key, partitions=partitions)
    return _TopicData(topic_id=key, partitions=partitions)


def _now_ms(node: Node) -> int:
    return int(node.clock.monotonic() * 1000)


async def _old_responses(
    node: Node,
    call: Call,
    request: FetchRequest,
    session: SessionFetch,
    streams: "Sequence[StreamId | ErrorCode]",
    found: Sequence[_Found],
) -> list[_TopicData]:
    """Answer with message sets. What batches become when they are opened counts against the limits, too."""
    left = min(max(request.max_bytes, 0), MAX_ANSWER_BYTES)
    is_first = True
    responses: dict[TopicKey, list[_Data]] = {}
    for one, stream, answer in zip(session.partitions, streams, found, strict=True):
        data = _partition_data(one, answer, None)
        if isinstance(answer, Fetched) and answer.size_bytes and not isinstance(stream, ErrorCode):
            if left or is_first:
                wanted = Wanted(stream, one.offset, min(max(one.max_bytes, 0), left))
                data = await _old_data(node, call, one, wanted, answer)
                left, is_first = max(left - len(data.records or b""), 0), False
            else:
                data = _old_partition_data(one, answer, b"")
        responses.setdefault(one.topic, []).append(data)
    return [_topic_data(key, partitions) for key, partitions in responses.items()]


async def _old_data(node: Node, call: Call, one: SessionPartition, wanted: Wanted, answer: Fetched) -> _Data:
    """Convert a partition's batches, and read on where nothing is left of them: a client would ask for ever."""
    magic = 1 if call.version >= FIRST_WITH_MAGIC_1 else 0
    while True:
        convert = partial(_converted, answer.records, wanted, magic=magic, max_open_bytes=node.max_open_bytes)
        try:
            # Every record becomes a message of its own: never on the loop.
            messages = await node.executor.run(convert)
        except InvalidBatch:
            # The bytes are those that were produced: a client has compressed what is no batch.
            return _refused(one.partition, ErrorCode.CORRUPT_MESSAGE)
        if messages:
            return _old_partition_data(one, answer, messages)
        wanted = Wanted(wanted.stream, answer.end_offset, wanted.max_bytes)
        (answer,) = await node.fetcher.fetch(
            [wanted], max_bytes=wanted.max_bytes, min_bytes=0, max_wait_ms=0, arrived_at=call.arrived_at
        )
        if not answer.size_bytes:
            return _partition_data(one, answer, None)


def _converted(pieces: Sequence[Piece], wanted: Wanted, *, magic: int, max_open_bytes: int) -> bytes:
    """Return batches as one message set. They are joined, because only the set's own end may cut messages off."""
    return message_set_from_batches(
        memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces)),
        start_offset=wanted.offset,
        magic=magic,
        max_bytes=wanted.max_bytes,
        max_open_bytes=max_open_bytes,
    )


def _old_partition_data(one: SessionPartition, answer: Fetched, messages: bytes) -> _Data:
    return _Data(partition_index=one.partition, high_watermark=answer.high_watermark, records=messages)
