"""DeleteTopics (20), versions 0-6: topics by name, from v6 on by name or by id.

- v1 has a throttle time; v5 has error messages; v6 names each topic by one of the two, and answers with both.

A topic's name is free as soon as this is answered; its records are removed later, in the background. The timeout is
not used: a topic is deleted in one transaction or not at all.
"""

from collections import Counter
from dataclasses import dataclass

from headrace.errors import HeadraceError, Missing
from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.node import Node
from headrace.handlers.topic_refusals import refusal_of_topic
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import Topic, TopicId
from headrace.wire.messages import ZERO_UUID, DeleteTopicsRequest, DeleteTopicsResponse

FIRST_VERSION_BY_ID = 6


@dataclass(frozen=True, slots=True)
class _Asked:
    """A topic as the client names it."""

    name: str | None
    id: TopicId

    @property
    def is_by_id(self) -> bool:
        return self.id != ZERO_UUID

    def find(self, node: Node) -> Topic | None:
        return node.topics.get_by_id(self.id) if self.is_by_id else node.topics.get(self.name or "")


async def handle(node: Node, call: Call, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete what can be deleted and answer every topic that was named, once."""
    times = Counter(_asked(call, request))
    # A name may belong to another topic by now: deleting goes by the id that it has at this moment.
    await node.topics.refresh()
    responses = []
    for asked, count in times.items():
        topic = asked.find(node)
        try:
            deleted = _checked(asked, topic, is_repeated=count > 1)
            await node.admin.delete(deleted.id)
        except Missing:
            responses.append(_refused_topic(asked, _unknown(asked).refusal))
        except (HeadraceError, Refused) as error:
            responses.append(_refused_topic(asked, refusal_of_topic(error)))
        else:
            responses.append(_deleted(call, deleted))
    return DeleteTopicsResponse(responses=responses)


def refused(call: Call, request: DeleteTopicsRequest, refusal: Refusal) -> DeleteTopicsResponse:
    """Answer every topic that was named with the same error."""
    return DeleteTopicsResponse(
        responses=[_refused_topic(asked, refusal) for asked in dict.fromkeys(_asked(call, request))]
    )


def _asked(call: Call, request: DeleteTopicsRequest) -> list[_Asked]:
    if call.version < FIRST_VERSION_BY_ID:
        return [_Asked(name, TopicId(ZERO_UUID)) for name in request.topic_names]
    return [_Asked(topic.name, TopicId(topic.topic_id)) for topic in request.topics]


def _checked(asked: _Asked, topic: Topic | None, *, is_repeated: bool) -> Topic:
    """Return the topic to delete, or raise what is wrong with the way it was named."""
    if asked.is_by_id and asked.name is not None:
        raise Refused(ErrorCode.INVALID_REQUEST, "a topic is named by its name or by its id, not by both")
    if not asked.is_by_id and asked.name is None:
        raise Refused(ErrorCode.INVALID_REQUEST, "a topic must be named by its name or by its id")
    if is_repeated:
        raise Refused(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
    if topic is None:
        raise _unknown(asked)
    return topic


def _unknown(asked: _Asked) -> Refused:
    if asked.is_by_id:
        return Refused(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id")
    return Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic with this name")


def _deleted(call: Call, topic: Topic) -> DeleteTopicsResponse.DeletableTopicResult:
    topic_id = topic.id if call.version >= FIRST_VERSION_BY_ID else ZERO_UUID
    return DeleteTopicsResponse.DeletableTopicResult(name=topic.name, topic_id=topic_id)


def _refused_topic(asked: _Asked, refusal: Refusal) -> DeleteTopicsResponse.DeletableTopicResult:
    return DeleteTopicsResponse.DeletableTopicResult(
        name=asked.name, topic_id=asked.id, error_code=refusal.code, error_message=refusal.message
    )
