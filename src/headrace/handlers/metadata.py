"""Metadata (3), versions 0-13: brokers, topics, and where each partition is best asked for.

- v0 asks for all topics with an empty list; from v1 on `null` asks for all and an empty list for none.
- v1 has racks and names a controller; v2 has the cluster's id; v4 lets the client forbid auto-creation.
- v8-10 can ask for what is allowed on the cluster, v8 and later for what is allowed on topics.
- v10 has topic ids in the answer; v12 can ask by id, with no name; v13 has an error for the whole answer.

A topic that is unknown here is looked up in the store before we say so, and created where the cluster's rule and the
client both allow it; the answer then names its leaders at once. Any broker serves any partition, so the leader is a
hint; leader epochs are not given (-1), replicas and in-sync replicas are the leader alone.

A large list of all topics is made in slices, encoded on a thread, and kept until topics or brokers change.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.cluster.view import NO_NODE, LivingBrokers
from headrace.cluster.zones import zone_of
from headrace.errors import HeadraceError, OutcomeUnknown, Retryable
from headrace.handlers.all_topics import Wishes
from headrace.handlers.call import Call, Encoded, Refusal, Refused
from headrace.handlers.node import Node
from headrace.handlers.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from headrace.handlers.topic_refusals import refusal_of_topic
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import Topic, TopicId
from headrace.topics.names import is_legal
from headrace.wire.headers import encode_body
from headrace.wire.messages import ZERO_UUID, MetadataRequest, MetadataResponse

FIRST_VERSION_BY_ID = 12

METADATA_KEY = 3

LARGE_ANSWER_PARTITIONS = 1_000
"""From how many partitions on a list of all topics is kept; a smaller one is made again in a few milliseconds."""

PARTITIONS_PER_SLICE = 1_000
"""About how many partitions are described before others have their turn: some milliseconds of work."""

MAX_CREATED_PER_REQUEST = 100
"""How many unknown topics one request creates; for the others the client hears: ask again soon."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A topic as the client names it: by id if it has one, else by name."""

    name: str | None
    id: TopicId

    @property
    def is_by_id(self) -> bool:
        return self.name is None or self.id != ZERO_UUID

    def find(self, node: Node) -> Topic | None:
        return node.topics.get_by_id(self.id) if self.is_by_id else node.topics.get(self.name or "")


async def handle(node: Node, call: Call, request: MetadataRequest) -> MetadataResponse | Encoded:
    """Answer with the living brokers and with every topic that was asked for."""
    wants_all = not request.topics if call.version == 0 else request.topics is None
    if wants_all:
        # A list of all topics denies every other one.
        await node.topics.refresh()
        return await _all(node, call, request)
    topics = await _named_topics(node, call, request)
    return _answer(node.cluster.cluster_id, node.cluster.living, topics, request)


async def _all(node: Node, call: Call, request: MetadataRequest) -> MetadataResponse | Encoded:
    """Answer with all topics that are known at this moment."""
    living, known = node.cluster.living, node.topics.known()
    zone = living.known_zone(zone_of(call.client_id))

    async def made() -> MetadataResponse:
        topics = await _described_all(node, known, living, zone, request)
        return _answer(node.cluster.cluster_id, living, topics, request)

    async def encoded() -> bytes:
        return await node.executor.run(partial(encode_body, METADATA_KEY, call.version, await made()))

    if node.topics.partition_count < LARGE_ANSWER_PARTITIONS:
        return await made()
    wishes = Wishes(
        version=call.version,
        zone=zone,
        cluster_operations=request.include_cluster_authorized_operations,
        topic_operations=request.include_topic_authorized_operations,
    )
    return Encoded(await node.all_topics.body(wishes, node.topics.generation, living, encoded))


def _answer(
    cluster_id: str,
    living: LivingBrokers,
    topics: list[MetadataResponse.MetadataResponseTopic],
    request: MetadataRequest,
) -> MetadataResponse:
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in living.infos
        ],
        cluster_id=cluster_id,
        controller_id=living.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def refused(call: Call, request: MetadataRequest, refusal: Refusal) -> MetadataResponse:
    """Answer every topic that was asked for with the same error."""
    return MetadataResponse(
        topics=[_refused_topic(call, asked, refusal) for asked in _asked(request)],
        error_code=refusal.code if call.version >= 13 else ErrorCode.NONE,
    )


async def _named_topics(
    node: Node, call: Call, request: MetadataRequest
) -> list[MetadataResponse.MetadataResponseTopic]:
    asked = _asked(request)
    if call.version < FIRST_VERSION_BY_ID and any(each.is_by_id for each in asked):
        raise Refused(ErrorCode.INVALID_REQUEST, f"topics are asked for by id from version {FIRST_VERSION_BY_ID} on")
    why_not = await _look_up(node, request, asked)
    found = [(each, each.find(node)) for each in asked]
    known = [topic for _, topic in found if topic is not None]
    described = iter(await _described_all(node, known, node.cluster.living, zone_of(call.client_id), request))
    return [
        _refused_topic(call, each, why_not.get(each) or _unknown(each)) if topic is None else next(described)
        for each, topic in found
    ]


async def _described_all(
    node: Node, topics: Sequence[Topic], living: LivingBrokers, zone: str | None, request: MetadataRequest
) -> list[MetadataResponse.MetadataResponseTopic]:
    """Describe topics; between slices of them, others have their turn on the loop."""
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    described = []
    left = PARTITIONS_PER_SLICE
    for topic in topics:
        if left <= 0:
            await node.turns.next()
            left = PARTITIONS_PER_SLICE
        left -= len(topic.streams)
        described.append(_described(topic, living, zone, operations))
    return described


def _asked(request: MetadataRequest) -> list[_Asked]:
    """Return what was asked for, in order, each once."""
    return list(dict.fromkeys(_Asked(topic.name, TopicId(topic.topic_id)) for topic in request.topics or ()))


async def _look_up(node: Node, request: MetadataRequest, asked: Sequence[_Asked]) -> dict[_Asked, Refusal]:
    """See to it that every topic that can be known is known here; return what hindered us, by topic."""
    unknown = _not_found(node, asked)
    if not unknown:
        return {}
    try:
        await node.topics.refresh()
    except HeadraceError as error:
        # What is known can be answered without the store.
        return dict.fromkeys(unknown, _refusal_for_now(error))
    if not (node.auto_create_topics and request.allow_auto_topic_creation):
        return {}
    missing = {each.name: each for each in _not_found(node, unknown) if each.name is not None and not each.is_by_id}
    failed = await node.admin.auto_create(list(missing)[:MAX_CREATED_PER_REQUEST])
    # Those beyond the limit, and those that this broker could not read back, are there when the client asks again.
    return dict.fromkeys(missing.values(), Refusal(ErrorCode.LEADER_NOT_AVAILABLE)) | {
        missing[name]: _refusal_for_now(error) for name, error in failed.items()
    }


def _not_found(node: Node, asked: Iterable[_Asked]) -> list[_Asked]:
    """Return those that are not known here, but might exist."""
    return [
        each
        for each in asked
        if each.find(node) is None and (each.is_by_id or each.name is None or is_legal(each.name))
    ]


def _refusal_for_now(error: HeadraceError) -> Refusal:
    if isinstance(error, Retryable | OutcomeUnknown):
        # Clients take this code as: it is coming, ask again soon.
        return Refusal(ErrorCode.LEADER_NOT_AVAILABLE, str(error))
    return refusal_of_topic(error)


def _unknown(asked: _Asked) -> Refusal:
    if asked.is_by_id:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_ID)
    if asked.name is not None and not is_legal(asked.name):
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION)
    return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _described(
    topic: Topic, living: LivingBrokers, zone: str | None, operations: int
) -> MetadataResponse.MetadataResponseTopic:
    partitions = []
    for index, stream in enumerate(topic.streams):
        leader = living.leader_of(stream, zone)
        replicas = [leader] if leader != NO_NODE else []
        partitions.append(
            MetadataResponse.MetadataResponsePartition(
                error_code=ErrorCode.NONE if replicas else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=leader,
                replica_nodes=replicas,
                isr_nodes=replicas,
            )
        )
    return MetadataResponse.MetadataResponseTopic(
        name=topic.name, topic_id=topic.id, partitions=partitions, topic_authorized_operations=operations
    )


def _refused_topic(call: Call, asked: _Asked, refusal: Refusal) -> MetadataResponse.MetadataResponseTopic:
    """Return the answer for a topic that is not there. Only from v12 on it may go without a name."""
    name = asked.name if call.version >= FIRST_VERSION_BY_ID else asked.name or ""
    return MetadataResponse.MetadataResponseTopic(error_code=refusal.code, name=name, topic_id=asked.id)
