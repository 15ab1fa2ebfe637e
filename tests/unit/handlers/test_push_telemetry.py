"""PushTelemetry: taken and dropped, never opened."""

import pytest

from headrace.handlers.call import Refusal
from headrace.handlers.get_telemetry_subscriptions import TELEMETRY_MAX_BYTES
from headrace.handlers.push_telemetry import handle, refused
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import ZERO_UUID, PushTelemetryRequest
from tests.unit.handlers.admin_node import AdminNode
from tests.unit.handlers.topic_node import ask, call, over_the_wire

CLIENT = bytes(range(16))


@pytest.mark.parametrize("metrics", [b"", b"not what its codec says", bytes(TELEMETRY_MAX_BYTES)], ids=len)
@pytest.mark.parametrize("codec", [0, 4, 99])
async def test_metrics_are_taken_whatever_they_hold(metrics: bytes, codec: int) -> None:
    asked = PushTelemetryRequest(
        client_instance_id=CLIENT, subscription_id=0, terminating=True, compression_type=codec, metrics=metrics
    )
    assert (await ask(handle, AdminNode().node, 0, asked)).error_code == 0


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (PushTelemetryRequest(client_instance_id=ZERO_UUID), ErrorCode.INVALID_REQUEST),
        (PushTelemetryRequest(client_instance_id=CLIENT, subscription_id=5), ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        (
            PushTelemetryRequest(client_instance_id=CLIENT, metrics=bytes(TELEMETRY_MAX_BYTES + 1)),
            ErrorCode.TELEMETRY_TOO_LARGE,
        ),
    ],
    ids=["no id", "other subscription", "too large"],
)
async def test_what_does_not_fit_is_refused(asked: PushTelemetryRequest, code: ErrorCode) -> None:
    assert (await ask(handle, AdminNode().node, 0, asked)).error_code == code


def test_refusal_is_one_code() -> None:
    answer = refused(call(0), PushTelemetryRequest(), Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "broken"))
    assert over_the_wire(answer, 0).error_code == -1
