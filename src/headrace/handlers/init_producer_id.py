"""InitProducerId 0-5: a producer id for a producer that wants its retries recognised.

Flexible from 2 on; 3 brought the producer's present id and epoch, which matter for transactional producers only. One
without a transactional id always gets a fresh id with epoch 0. Transactions are not served yet: asking for one is
refused with a code that no client retries.
"""

from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import InitProducerIdRequest, InitProducerIdResponse


async def handle(node: Node, call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Answer with a fresh producer id."""
    if request.transactional_id == "":
        raise Refused(ErrorCode.INVALID_REQUEST, "a transactional id is not empty")
    if request.transactional_id is not None:
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, "transactions are not served yet: leave transactional.id out")
    producer_id = await node.producer_ids.take()
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def refused(call: Call, request: InitProducerIdRequest, refusal: Refusal) -> InitProducerIdResponse:
    code = refusal.code
    if code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT):
        # Older Java clients give an idempotent producer up for any other code. This is what Kafka answers, too, while
        # it has no ids to give; an id that may be lost in an unknown outcome does no harm.
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
