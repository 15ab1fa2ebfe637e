"""Every message of every version comes back from its bytes as it was, and nothing else does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.runtime.rng import seeded_rng
from headrace.testing.fuzz_wire import all_messages, random_message
from headrace.wire.compiler import read_message, reader, write_message
from headrace.wire.errors import WireError
from headrace.wire.headers import encode_request, encode_response, parse_request, parse_response
from headrace.wire.messages import message_class
from headrace.wire.schema import apis

SEEDS = 8
SIZE_BYTES = 4


@pytest.mark.parametrize("name", sorted({name for name, _ in all_messages()}))
def test_a_message_comes_back_as_it_was_in_every_version(name: str) -> None:
    for version in (version for found, version in all_messages() if found == name):
        for seed in range(SEEDS):
            message = random_message(name, version, seeded_rng(f"{name} {version} {seed}"))
            assert read_message(name, version, write_message(name, version, message)) == message, (version, seed)


@settings(max_examples=200, deadline=None)
@given(case=st.sampled_from(all_messages()), seed=st.integers(0, 2**32))
def test_a_part_of_a_message_is_refused_and_more_is_passed_over_behind_requests_only(
    case: tuple[str, int], seed: int
) -> None:
    name, version = case
    message = random_message(name, version, seeded_rng(seed))
    written = write_message(name, version, message)
    read = reader(name, version)
    if name.endswith("Request"):
        assert read(memoryview(written + b"\0")) == message
    else:
        with pytest.raises(WireError):
            read(memoryview(written + b"\0"))
    for end in range(len(written)):
        with pytest.raises(WireError):
            read(memoryview(written)[:end])


def test_defaults_survive_in_every_version() -> None:
    for name, version in all_messages():
        message = message_class(name)()
        assert read_message(name, version, write_message(name, version, message)) == message, (name, version)


@settings(max_examples=150, deadline=None)
@given(
    key=st.sampled_from(sorted(apis())),
    data=st.data(),
    seed=st.integers(0, 2**32),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    client_id=st.none() | st.text(max_size=40),
)
def test_frames_carry_headers_and_messages(
    key: int, data: st.DataObject, seed: int, correlation_id: int, client_id: str | None
) -> None:
    api = apis()[key]
    version = data.draw(st.integers(*api.versions))
    request = random_message(f"{api.name}Request", version, seeded_rng(seed))
    frame = memoryview(encode_request(key, version, correlation_id, client_id, request))
    assert int.from_bytes(frame[:SIZE_BYTES]) == len(frame) - SIZE_BYTES
    header, body = parse_request(frame[SIZE_BYTES:])
    assert (header.request_api_key, header.request_api_version) == (key, version)
    assert (header.correlation_id, header.client_id, body) == (correlation_id, client_id, request)
    response = random_message(f"{api.name}Response", version, seeded_rng(seed))
    answer = memoryview(b"".join(encode_response(key, version, correlation_id, response)))
    assert int.from_bytes(answer[:SIZE_BYTES]) == len(answer) - SIZE_BYTES
    assert parse_response(key, version, answer[SIZE_BYTES:]) == (correlation_id, response)
