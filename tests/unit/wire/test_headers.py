"""Frames by hand: these bytes are typed from Kafka's protocol guide, not made by our own codec."""

import pytest

from headrace.wire.errors import UnsupportedRequest, WireError
from headrace.wire.headers import (
    encode_request,
    encode_response,
    known_versions,
    parse_header,
    parse_request,
    request_header_version,
    response_header_version,
)
from headrace.wire.messages import ApiVersionsResponse, FetchResponse, HeartbeatResponse, MetadataRequest

API_VERSIONS, FETCH, METADATA, HEARTBEAT, SASL_HANDSHAKE = 18, 1, 3, 12, 17


def test_an_old_request_has_a_header_without_tags() -> None:
    frame = bytes.fromhex("0003 0001 0000002a 0003 616263 00000001 0002 7431")
    header, body = parse_request(memoryview(frame))
    assert (header.request_api_key, header.request_api_version, header.correlation_id) == (METADATA, 1, 42)
    assert header.client_id == "abc"
    assert [topic.name for topic in body.topics] == ["t1"]


def test_a_flexible_request_has_tags_behind_an_old_client_id() -> None:
    frame = bytes.fromhex("0012 0003 00000007 ffff 00 04 6b6166 02 31 00")
    header, body = parse_request(memoryview(frame))
    assert header.client_id is None
    assert (body.client_software_name, body.client_software_version) == ("kaf", "1")


def test_unknown_tags_of_the_header_are_passed_over() -> None:
    frame = bytes.fromhex("0012 0003 00000007 0000 02 05 02 abcd 8101 00 04 6b6166 02 31 00")
    header, body = parse_request(memoryview(frame))
    assert header.client_id == "" and body.client_software_name == "kaf"


def test_an_unsupported_version_still_tells_who_asked() -> None:
    frame = bytes.fromhex("0012 0063 00000007 0003 616263 00 dead")
    with pytest.raises(UnsupportedRequest, match="API 18 is not served in version 99") as caught:
        parse_request(memoryview(frame))
    assert (caught.value.header.correlation_id, caught.value.header.client_id) == (7, "abc")


def test_a_negative_version_is_unsupported() -> None:
    with pytest.raises(UnsupportedRequest):
        parse_request(memoryview(bytes.fromhex("0003 ffff 00000007 ffff")))


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "00",
        "0003",
        "0003 0001 0000",
        "0003 0001 0000002a 0005 6162",
        "0003 0001 0000002a fffe",
        "0003 0001 0000002a 0001 ff 00000000",
        "0004 0000 00000001 ffff",
        "4745 5420 2f20 4854 5450",
        "1603 0100 c801 0000 c403",
    ],
)
def test_garbage_is_refused(frame: str) -> None:
    with pytest.raises(WireError):
        parse_request(memoryview(bytes.fromhex(frame)))


def test_the_header_alone_tells_where_the_body_begins() -> None:
    frame = bytes.fromhex("0003 0001 0000002a 0003 616263 00000000")
    header, position = parse_header(memoryview(frame))
    assert (header.correlation_id, position) == (42, 13)


def test_header_versions_follow_the_api() -> None:
    assert [request_header_version(METADATA, version) for version in (8, 9)] == [1, 2]
    assert [response_header_version(METADATA, version) for version in (8, 9)] == [0, 1]
    assert [response_header_version(SASL_HANDSHAKE, version) for version in (0, 1)] == [0, 0]


def test_an_api_versions_response_has_the_oldest_header_in_every_version() -> None:
    assert request_header_version(API_VERSIONS, 4) == 2
    assert response_header_version(API_VERSIONS, 4) == 0
    [frame] = encode_response(API_VERSIONS, 3, 5, ApiVersionsResponse(error_code=35))
    assert frame == bytes.fromhex("0000000c 00000005 0023 01 00000000 00")


def test_a_flexible_response_has_tags_in_its_header() -> None:
    [frame] = encode_response(HEARTBEAT, 4, 5, HeartbeatResponse(error_code=27))
    assert frame == bytes.fromhex("0000000c 00000005 00 00000000 001b 00")
    [frame] = encode_response(HEARTBEAT, 0, 5, HeartbeatResponse(error_code=27))
    assert frame == bytes.fromhex("00000006 00000005 001b")


def test_a_request_is_framed() -> None:
    request = MetadataRequest(topics=None)
    assert encode_request(METADATA, 1, 42, "abc", request) == bytes.fromhex(
        "00000011 0003 0001 0000002a 0003 616263 ffffffff"
    )


def fetched(*records: memoryview | list[bytes | bytearray | memoryview] | None) -> FetchResponse:
    partitions = [FetchResponse.PartitionData(partition_index=i, records=one) for i, one in enumerate(records)]
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=partitions)])


@pytest.mark.parametrize("version", [4, 12])
def test_records_are_handed_on_and_not_copied(version: int) -> None:
    first, second, third = (memoryview(bytes([fill]) * 1000) for fill in (1, 2, 3))
    response = fetched(first, None, [second, third], memoryview(b""))
    buffers = encode_response(FETCH, version, 9, response)
    given = [buffer for buffer in buffers if isinstance(buffer, memoryview)]
    assert [id(buffer) for buffer in given] == [id(first), id(second), id(third)]
    joined = b"".join(buffers)
    assert int.from_bytes(joined[:4]) == len(joined) - 4
    flat = fetched(first, None, memoryview(bytes(second) + bytes(third)), memoryview(b""))
    assert joined == b"".join(encode_response(FETCH, version, 9, flat))


def test_the_versions_are_those_that_kafka_and_old_clients_speak() -> None:
    assert known_versions()[0] == (0, 13)
    assert known_versions()[FETCH] == (0, 18)
    assert known_versions()[22] == (0, 5), "version 6 is not stable"
    assert 4 not in known_versions() and 88 not in known_versions()
    assert len(known_versions()) == 62
