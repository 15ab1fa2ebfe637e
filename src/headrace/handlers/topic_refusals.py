"""What a client hears when a topic cannot be created or changed."""

from headrace.errors import HeadraceError
from headrace.handlers.call import Refusal, Refused, refusal_of
from headrace.model.error_codes import ErrorCode
from headrace.topics.problems import InvalidPartitionCount, InvalidTopicConfig, InvalidTopicName


def refusal_of_topic(error: HeadraceError | Refused) -> Refusal:
    """Return the code and the sentence for what one topic of a request has met with."""
    match error:
        case InvalidTopicName():
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error))
        case InvalidPartitionCount():
            return Refusal(ErrorCode.INVALID_PARTITIONS, str(error))
        case InvalidTopicConfig():
            return Refusal(ErrorCode.INVALID_CONFIG, str(error))
    return refusal_of(error)
