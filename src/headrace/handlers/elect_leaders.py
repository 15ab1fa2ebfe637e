"""ElectLeaders (43), versions 0-2: nothing has to be elected, and tools hear that in their own shape.

- v1 has a code for the whole answer and asks for a kind of election; v2 is flexible.

Any broker serves any partition: the leader that Metadata names is always a good one. Partitions that are named hear
ELECTION_NOT_NEEDED, which Apache Kafka's tool shows as a success. A request for all partitions is answered with an
empty list, as by Kafka where all is well.
"""

from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.named_topics import look_up
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import ElectLeadersRequest, ElectLeadersResponse

ELECTION_TYPES = (0, 1)
"""Preferred and unclean."""

FIRST_WITH_CODE = 1

_Result = ElectLeadersResponse.ReplicaElectionResult
_Partition = ElectLeadersResponse.PartitionResult


async def handle(node: Node, call: Call, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Answer every partition that was named."""
    if request.election_type not in ELECTION_TYPES:
        raise Refused(ErrorCode.INVALID_REQUEST, "an election is preferred (0) or unclean (1)")
    asked = request.topic_partitions or ()
    found = await look_up(node, [(one.topic, one.partitions) for one in asked])
    return ElectLeadersResponse(
        replica_election_results=[
            _Result(
                topic=one.topic,
                partition_result=[_partition(index, found.code_of(one.topic, index)) for index in one.partitions],
            )
            for one in asked
        ]
    )


def refused(call: Call, request: ElectLeadersRequest, refusal: Refusal) -> ElectLeadersResponse:
    """Refuse the whole request, and in versions without a code for that every partition."""
    return ElectLeadersResponse(
        error_code=refusal.code if call.version >= FIRST_WITH_CODE else ErrorCode.NONE,
        replica_election_results=[
            _Result(
                topic=one.topic,
                partition_result=[
                    _Partition(partition_id=index, error_code=refusal.code, error_message=refusal.message)
                    for index in one.partitions
                ],
            )
            for one in request.topic_partitions or ()
        ],
    )


def _partition(index: int, code: ErrorCode) -> _Partition:
    if code is not ErrorCode.NONE:
        return _Partition(partition_id=index, error_code=code, error_message="there is no such partition")
    return _Partition(
        partition_id=index,
        error_code=ErrorCode.ELECTION_NOT_NEEDED,
        error_message="any broker serves any partition: there is nothing to elect",
    )
