"""The table of APIs: readable and writable in every version that it promises, and able to refuse each of them."""

import inspect

import pytest

from headrace.handlers.api import Api
from headrace.handlers.call import HangUp, Refusal
from headrace.handlers.dispatch import LIGHT_ELEMENTS
from headrace.handlers.table import MAX_PRODUCE_ELEMENTS, TABLE, WARMED, served, warm_up
from headrace.model.error_codes import ErrorCode
from headrace.wire import messages
from headrace.wire.compiler import reader, writer
from headrace.wire.errors import TooManyElements
from headrace.wire.headers import encode_request, encode_response, parse_request, parse_response
from headrace.wire.schema import apis
from tests.unit.handlers.topic_node import call

APIS = list(TABLE.values())
NAMES = [api.name for api in APIS]


def test_table_stands_by_key_and_tells_itself() -> None:
    assert all(key == api.key for key, api in TABLE.items())
    assert list(TABLE) == sorted(TABLE)
    assert list(served()) == [(api.key, api.first_version, api.last_version) for api in APIS]
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("api", APIS, ids=NAMES)
def test_names_and_versions_are_those_of_the_messages(api: Api) -> None:
    first, last = apis()[api.key].versions
    assert api.name == apis()[api.key].name
    assert first <= api.first_version <= api.last_version <= last
    assert inspect.iscoroutinefunction(api.handle)


@pytest.mark.parametrize("api", APIS, ids=NAMES)
def test_each_api_can_refuse_an_empty_request_in_every_version_it_promises(api: Api) -> None:
    request = getattr(messages, f"{api.name}Request")()
    for version in range(api.first_version, api.last_version + 1):
        refusal = Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "a sentence for people")
        try:
            response = api.refused(call(version), request, refusal)
        except HangUp:
            assert api.name == "Produce", "only what wants no answer may hang up"
            continue
        buffers = encode_response(api.key, version, 1, response)
        whole = b"".join(bytes(buffer) for buffer in buffers)
        assert parse_response(api.key, version, memoryview(whole)[4:])[0] == 1


def test_what_clients_ask_first_is_compiled_beforehand() -> None:
    assert set(WARMED) <= set(NAMES)
    warm_up()
    hits = reader.cache_info().hits
    reader("ProduceRequest", TABLE[0].last_version)
    writer("ProduceResponse", TABLE[0].last_version)
    assert reader.cache_info().hits == hits + 1


def test_what_real_clients_send_is_within_the_limits() -> None:
    limits = {api.name: api.max_elements for api in APIS}
    assert limits["Produce"] == MAX_PRODUCE_ELEMENTS >= 2 * 10_000, "10,000 topics with a partition each"
    for name in ("Metadata", "Fetch", "OffsetFetch", "OffsetCommit", "ListOffsets"):
        assert limits[name] >= 2 * 100_000, "100,000 partitions, each of a topic of its own"
    for name in ("CreateTopics", "DescribeConfigs", "DescribeGroups", "DeleteTopics"):
        assert limits[name] >= 10_000
    assert min(limits.values()) >= LIGHT_ELEMENTS, "the first look must not refuse what its API takes"


def test_produce_with_250_000_tiny_batches_is_refused_before_it_is_made() -> None:
    data = messages.ProduceRequest.PartitionProduceData(records=b"")
    topic = messages.ProduceRequest.TopicProduceData(name="t", partition_data=[data] * 250_000)
    frame = encode_request(0, 9, 1, "c", messages.ProduceRequest(topic_data=[topic]))[4:]
    with pytest.raises(TooManyElements):
        parse_request(memoryview(frame), max_elements=TABLE[0].max_elements)
