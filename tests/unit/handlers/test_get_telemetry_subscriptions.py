"""GetTelemetrySubscriptions: an id, and nothing to send."""

import uuid

from headrace.handlers.call import Refusal
from headrace.handlers.get_telemetry_subscriptions import PUSH_INTERVAL_MS, TELEMETRY_MAX_BYTES, handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import ZERO_UUID, GetTelemetrySubscriptionsRequest
from tests.unit.handlers.admin_node import AdminNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire


async def test_new_clients_get_ids_of_their_own() -> None:
    kit = AdminNode()
    asked = GetTelemetrySubscriptionsRequest(client_instance_id=ZERO_UUID)
    ids = {(await ask(handle, kit.node, 0, asked)).client_instance_id for _ in range(20)}
    assert len(ids) == 20
    assert {(uuid.UUID(bytes=one).version, uuid.UUID(bytes=one).variant) for one in ids} == {(4, uuid.RFC_4122)}


async def test_known_client_keeps_its_id_and_nothing_is_subscribed() -> None:
    known = bytes(range(16))
    asked = GetTelemetrySubscriptionsRequest(client_instance_id=known)
    answer = await ask(handle, AdminNode().node, 0, asked)
    assert (answer.error_code, answer.client_instance_id, answer.subscription_id) == (0, known, 0)
    assert (answer.requested_metrics, answer.accepted_compression_types) == ([], [])
    assert (answer.push_interval_ms, answer.telemetry_max_bytes) == (PUSH_INTERVAL_MS, TELEMETRY_MAX_BYTES)


def test_refusal_is_one_code() -> None:
    answer = refused(call(0), GetTelemetrySubscriptionsRequest(), Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "broken"))
    assert over_the_wire(answer, 0).error_code == -1


def test_push_interval_fits_into_32_bits_of_microseconds_with_jitter() -> None:
    # librdkafka multiplies it in 32 bits; an hour made it ask again at once, a thousand times a second.
    assert PUSH_INTERVAL_MS * 1000 * 1.25 < 2**31
