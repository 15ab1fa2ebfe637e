"""What all handlers of groups share: codes that members understand, and who the client is."""

import pytest

from headrace.groups.protocol import Client
from headrace.handlers.call import Call
from headrace.handlers.group_calls import beat_code, client_of, fetch_code, group_refusal, member_code
from headrace.model.error_codes import ErrorCode
from tests.unit.handlers.topic_node import call

PASSING = [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT]
KEPT = [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_SERVER_ERROR]


@pytest.mark.parametrize("code", PASSING)
def test_troubles_of_the_store_send_clients_to_look_for_the_coordinator(code: ErrorCode) -> None:
    assert member_code(code) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert beat_code(code) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert fetch_code(code) is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("code", KEPT)
def test_what_members_know_passes_through(code: ErrorCode) -> None:
    assert member_code(code) is beat_code(code) is fetch_code(code) is code


def test_loading_is_told_only_where_clients_expect_it() -> None:
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert member_code(loading) is fetch_code(loading) is loading
    assert beat_code(loading) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_old_consumers_do_not_hear_that_nobody_is_available_to_fetch_offsets_from() -> None:
    assert fetch_code(ErrorCode.COORDINATOR_NOT_AVAILABLE) is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("client_id", "peer", "expected"),
    [
        ("c", "10.0.0.7:4711", Client("c", "/10.0.0.7")),
        (None, "::1:4711", Client("", "/::1")),
        ("", "unknown", Client("", "/unknown")),
    ],
)
def test_client_is_known_by_name_and_host(client_id: str | None, peer: str, expected: Client) -> None:
    made = client_of(Call(api_key=11, version=0, client_id=client_id, peer=peer, arrived_at=0.0))
    assert made == expected


def test_client_is_made_once() -> None:
    assert client_of(call(1)) is client_of(call(2))


def test_only_an_empty_name_is_none() -> None:
    refusal = group_refusal("")
    assert refusal is not None and refusal.code is ErrorCode.INVALID_GROUP_ID
    assert group_refusal(" ") is None
