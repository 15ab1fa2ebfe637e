"""GetTelemetrySubscriptions (71), version 0: which metrics a client is to send. None.

A client that has no id yet gets one, and asks again after the push interval.
"""

from typing import Final

from headrace.handlers.call import Call, Refusal
from headrace.handlers.node import Node
from headrace.wire.messages import ZERO_UUID, GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse

SUBSCRIPTION_ID: Final = 0
PUSH_INTERVAL_MS: Final = 300_000
"""Kafka's own default. librdkafka counts microseconds in 32 bits: told an hour, it asked 1,000 times a second."""

TELEMETRY_MAX_BYTES: Final = 1_048_576
_ID_BITS = 128
_VERSION_AND_VARIANT = (0xF << 76) | (0x3 << 62)
_RANDOM_UUID = (0x4 << 76) | (0x2 << 62)


async def handle(
    node: Node, call: Call, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Tell a client that nothing is subscribed."""
    known = request.client_instance_id
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=_new_id(node) if known == ZERO_UUID else known,
        subscription_id=SUBSCRIPTION_ID,
        push_interval_ms=PUSH_INTERVAL_MS,
        telemetry_max_bytes=TELEMETRY_MAX_BYTES,
        delta_temporality=True,
    )


def refused(
    call: Call, request: GetTelemetrySubscriptionsRequest, refusal: Refusal
) -> GetTelemetrySubscriptionsResponse:
    """Answer with the error."""
    return GetTelemetrySubscriptionsResponse(
        error_code=refusal.code, client_instance_id=request.client_instance_id, push_interval_ms=PUSH_INTERVAL_MS
    )


def _new_id(node: Node) -> bytes:
    """Return a random UUID (version 4); it is never all zeros, which would mean none."""
    bits = node.rng.getrandbits(_ID_BITS) & ~_VERSION_AND_VARIANT | _RANDOM_UUID
    return bits.to_bytes(_ID_BITS // 8, "big")
