"""PushTelemetry (72), version 0: metrics of a client. Nobody asked for them, so they are dropped unopened.

Clients that are told of no subscription send nothing; some say good-bye with an empty push. What is wrong with a push
is answered and not raised: telemetry must not fill the broker's log.
"""

from headrace.handlers.call import Call, Refusal
from headrace.handlers.get_telemetry_subscriptions import SUBSCRIPTION_ID, TELEMETRY_MAX_BYTES
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import ZERO_UUID, PushTelemetryRequest, PushTelemetryResponse


async def handle(node: Node, call: Call, request: PushTelemetryRequest) -> PushTelemetryResponse:
    """Take what fits the (empty) subscription, and drop it."""
    return PushTelemetryResponse(error_code=_judge(request))


def refused(call: Call, request: PushTelemetryRequest, refusal: Refusal) -> PushTelemetryResponse:
    """Answer with the error."""
    return PushTelemetryResponse(error_code=refusal.code)


def _judge(request: PushTelemetryRequest) -> ErrorCode:
    if request.client_instance_id == ZERO_UUID:
        return ErrorCode.INVALID_REQUEST
    if request.subscription_id != SUBSCRIPTION_ID:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if len(request.metrics) > TELEMETRY_MAX_BYTES:
        return ErrorCode.TELEMETRY_TOO_LARGE
    return ErrorCode.NONE
