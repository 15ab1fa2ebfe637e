"""AlterReplicaLogDirs (34), versions 1-2: there is one directory, a label, and everything is in it already.

v2 is flexible. Moving a partition to the directory that DescribeLogDirs names succeeds and does nothing; every other
path is LOG_DIR_NOT_FOUND.
"""

from headrace.handlers.call import Call, Refusal
from headrace.handlers.describe_log_dirs import LOG_DIR
from headrace.handlers.named_topics import NamedTopics, look_up
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse

_Topic = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
_Partition = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult


async def handle(node: Node, call: Call, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """Answer every partition that was named."""
    named = [(topic.name, topic.partitions) for one in request.dirs for topic in one.topics]
    return _shaped(request, await look_up(node, named), None)


def refused(call: Call, request: AlterReplicaLogDirsRequest, refusal: Refusal) -> AlterReplicaLogDirsResponse:
    """Refuse every partition that was named."""
    return _shaped(request, NamedTopics({}), refusal.code)


def _shaped(
    request: AlterReplicaLogDirsRequest, found: NamedTopics, for_all: ErrorCode | None
) -> AlterReplicaLogDirsResponse:
    codes: dict[str, dict[int, ErrorCode]] = {}
    for one in request.dirs:
        for topic in one.topics:
            for index in topic.partitions:
                code = ErrorCode.LOG_DIR_NOT_FOUND if one.path != LOG_DIR else found.code_of(topic.name, index)
                codes.setdefault(topic.name, {})[index] = code if for_all is None else for_all
    return AlterReplicaLogDirsResponse(
        results=[
            _Topic(
                topic_name=name,
                partitions=[_Partition(partition_index=index, error_code=code) for index, code in partitions.items()],
            )
            for name, partitions in codes.items()
        ]
    )
