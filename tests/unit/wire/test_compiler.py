"""What readers and writers do with nulls, tags, lengths and things that do not fit."""

import pytest
from msgspec.structs import replace

from headrace.wire.compiler import read_message, reader, write_message
from headrace.wire.errors import WireError
from headrace.wire.messages import (
    ZERO_UUID,
    ApiVersionsResponse,
    ConsumerGroupHeartbeatResponse,
    DescribeClientQuotasResponse,
    FetchRequest,
    FetchResponse,
    JoinGroupRequest,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from headrace.wire.reading import MAX_REQUEST_ELEMENTS
from headrace.wire.varint import varint


def test_a_null_array_is_not_an_empty_one() -> None:
    for version, null, empty in ((1, "ffffffff", "00000000"), (9, "00", "01")):
        rest = "" if version == 1 else "01 00 00 00"
        assert read_message("MetadataRequest", version, bytes.fromhex(null + rest)).topics is None
        assert read_message("MetadataRequest", version, bytes.fromhex(empty + rest)).topics == []
        assert write_message("MetadataRequest", version, MetadataRequest(topics=None))[:4].hex().startswith(null)


@pytest.mark.parametrize("count", ["ffffffff", "fffffffe", "80000000", "00000001", "7fffffff", "00010000"])
def test_a_count_that_cannot_be_is_refused(count: str) -> None:
    with pytest.raises(WireError, match="MetadataRequest v0 Topics"):
        read_message("MetadataRequest", 0, bytes.fromhex(count))


@pytest.mark.parametrize("count", ["00", "ffffffff0f", "03", "ffffffff1f", "808080808001"])
def test_a_compact_count_that_cannot_be_is_refused(count: str) -> None:
    with pytest.raises(WireError):
        read_message("DescribeGroupsRequest", 5, bytes.fromhex(count + "00"))


def test_a_string_must_be_utf_8_and_end_in_time() -> None:
    for text in ("0001 ff", "0002 c328", "0003 eda080", "0003 6162", "fffe", "ffff"):
        with pytest.raises(WireError):
            read_message("SaslHandshakeRequest", 0, bytes.fromhex(text))


def test_a_string_longer_than_kafka_allows_is_refused_both_ways() -> None:
    longest = JoinGroupRequest(group_id="g" * 32767)
    for version in (0, 9):
        assert (
            read_message("JoinGroupRequest", version, write_message("JoinGroupRequest", version, longest)) == longest
        )
        with pytest.raises(WireError):
            write_message("JoinGroupRequest", version, replace(longest, group_id="g" * 32768))
    body = bytes.fromhex("818002") + b"g" * 32768
    with pytest.raises(WireError, match="GroupId"):
        read_message("JoinGroupRequest", 9, body + bytes(100))


def test_a_request_may_have_a_limited_number_of_elements() -> None:
    frame = memoryview(bytearray((MAX_REQUEST_ELEMENTS + 1) * 2 + 4))
    frame[:4] = MAX_REQUEST_ELEMENTS.to_bytes(4)
    assert len(read_message("MetadataRequest", 0, frame[:-2]).topics) == MAX_REQUEST_ELEMENTS
    frame[:4] = (MAX_REQUEST_ELEMENTS + 1).to_bytes(4)
    with pytest.raises(WireError, match="1 elements more than are taken at once"):
        read_message("MetadataRequest", 0, frame)


def test_elements_are_counted_over_all_arrays_of_a_request() -> None:
    half = [ListOffsetsRequest.ListOffsetsPartition()] * (MAX_REQUEST_ELEMENTS // 2)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=half) for name in ("a", "b")]
    with pytest.raises(WireError, match="2 elements more"):
        read_message(
            "ListOffsetsRequest", 1, write_message("ListOffsetsRequest", 1, ListOffsetsRequest(topics=topics))
        )


def test_records_are_views_of_the_frame() -> None:
    partition = ProduceRequest.PartitionProduceData(index=1, records=b"r" * 20_000)
    request = ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=[partition])])
    for version in (0, 3, 9):
        frame = bytearray(write_message("ProduceRequest", version, request))
        records = read_message("ProduceRequest", version, frame).topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview) and records.obj is frame
        frame[frame.index(b"rrrr")] = 0
        assert records[0] == 0


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16382, 16383, 16384, 2**21 - 2, 2**21 - 1, 2**21])
def test_records_of_every_length_of_varint_are_found(size: int) -> None:
    partition = ProduceRequest.PartitionProduceData(records=bytes(size))
    request = ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=[partition])])
    read = read_message("ProduceRequest", 9, write_message("ProduceRequest", 9, request))
    assert len(read.topic_data[0].partition_data[0].records) == size


def test_unknown_tags_are_passed_over_and_known_ones_read() -> None:
    body = bytes.fromhex("0000 01 00000000")
    tags = bytes.fromhex("03 01 08 0000000000000005 8001 02 beef 03 01 01")
    read = read_message("ApiVersionsResponse", 3, body + tags)
    assert read.finalized_features_epoch == 5 and read.zk_migration_ready is True
    with pytest.raises(WireError, match="FinalizedFeaturesEpoch ends at byte 18 but was said to end at byte 19"):
        read_message("ApiVersionsResponse", 3, body + bytes.fromhex("01 01 09 0000000000000005 00"))
    with pytest.raises(WireError, match="tagged fields"):
        read_message("ApiVersionsResponse", 3, body + bytes.fromhex("01 05 09 00"))


def test_tagged_fields_count_against_the_limit_of_elements() -> None:
    for count, is_too_much in ((MAX_REQUEST_ELEMENTS, False), (MAX_REQUEST_ELEMENTS + 1, True)):
        frame = bytes.fromhex("01") + b"\x00" + varint(count) + b"\x05\x00" * count
        if is_too_much:
            with pytest.raises(WireError, match="1 elements more"):
                read_message("DescribeGroupsRequest", 5, frame)
        else:
            assert read_message("DescribeGroupsRequest", 5, frame).groups == []


def test_tags_at_their_default_are_not_written() -> None:
    plain = write_message("ApiVersionsResponse", 3, ApiVersionsResponse())
    assert plain == bytes.fromhex("0000 01 00000000 00")
    assert write_message("ApiVersionsResponse", 3, ApiVersionsResponse(finalized_features_epoch=-1)) == plain


def test_a_tagged_struct_is_written_when_it_says_something() -> None:
    def response(leader: ProduceResponse.LeaderIdAndEpoch) -> ProduceResponse:
        partition = ProduceResponse.PartitionProduceResponse(current_leader=leader)
        topic = ProduceResponse.TopicProduceResponse(name="t", partition_responses=[partition])
        return ProduceResponse(responses=[topic])

    says_nothing = response(ProduceResponse.LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1))
    says_much = response(ProduceResponse.LeaderIdAndEpoch(leader_id=3))
    difference = len(write_message("ProduceResponse", 10, says_much)) - len(
        write_message("ProduceResponse", 10, says_nothing)
    )
    assert difference == 2 + 4 + 4 + 1
    assert read_message("ProduceResponse", 10, write_message("ProduceResponse", 10, says_much)) == says_much


def test_a_nullable_struct_is_there_or_not() -> None:
    absent = ConsumerGroupHeartbeatResponse(member_id="m")
    present = replace(absent, assignment=ConsumerGroupHeartbeatResponse.Assignment(topic_partitions=[]))
    for message in (absent, present):
        written = write_message("ConsumerGroupHeartbeatResponse", 0, message)
        assert read_message("ConsumerGroupHeartbeatResponse", 0, written) == message


def test_a_value_that_a_version_cannot_carry_is_refused_unless_it_may_be_dropped() -> None:
    forgotten = FetchRequest.ForgottenTopic(topic="t", partitions=[1])
    with pytest.raises(WireError, match="FetchRequest v6 ForgottenTopicsData"):
        write_message("FetchRequest", 6, FetchRequest(forgotten_topics_data=[forgotten]))
    with pytest.raises(WireError, match="ProduceResponse v9 NodeEndpoints"):
        write_message("ProduceResponse", 9, ProduceResponse(node_endpoints=[ProduceResponse.NodeEndpoint()]))
    topic = MetadataResponse.MetadataResponseTopic(name="t", topic_id=bytes(range(16)))
    written = write_message("MetadataResponse", 1, MetadataResponse(topics=[topic], throttle_time_ms=9))
    read = read_message("MetadataResponse", 1, written)
    assert read.topics[0].topic_id == ZERO_UUID and read.throttle_time_ms == 0


@pytest.mark.parametrize(
    "message",
    [
        FetchResponse(session_id=2**31),
        FetchResponse(error_code="1"),  # type: ignore[arg-type]
        FetchResponse(responses=None),  # type: ignore[arg-type]
        FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="\ud800")]),
        FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic=None)]),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_fit_its_field_is_refused_by_the_writer(message: FetchResponse) -> None:
    with pytest.raises(WireError, match="FetchResponse v12 cannot be written"):
        write_message("FetchResponse", 12, message)


def test_a_null_that_may_not_be_is_refused_on_the_short_way_too() -> None:
    partition = ProduceResponse.PartitionProduceResponse(record_errors=None)  # type: ignore[arg-type]
    topic = ProduceResponse.TopicProduceResponse(name="t", partition_responses=[partition])
    with pytest.raises(WireError):
        write_message("ProduceResponse", 9, ProduceResponse(responses=[topic]))


def test_a_uuid_has_sixteen_bytes() -> None:
    topic = FetchResponse.FetchableTopicResponse(topic_id=b"short")
    with pytest.raises(WireError, match="TopicId has 5 bytes"):
        write_message("FetchResponse", 13, FetchResponse(responses=[topic]))


@pytest.mark.parametrize("version", [0, 8, 9, 13])
def test_node_lists_of_any_length_are_written(version: int) -> None:
    shapes = [([], []), ([1], [1]), ([1, 2], [1]), (list(range(126)), [3]), (list(range(127)), list(range(300)))]
    partitions = [
        MetadataResponse.MetadataResponsePartition(partition_index=index, replica_nodes=replicas, isr_nodes=in_sync)
        for index, (replicas, in_sync) in enumerate(shapes)
    ]
    topic = MetadataResponse.MetadataResponseTopic(name="t", partitions=partitions)
    response = MetadataResponse(topics=[topic])
    assert read_message("MetadataResponse", version, write_message("MetadataResponse", version, response)) == response


def test_not_a_number_passes() -> None:
    value = DescribeClientQuotasResponse.ValueData(key="k", value=float("nan"))
    entry = DescribeClientQuotasResponse.EntryData(values=[value])
    written = write_message("DescribeClientQuotasResponse", 1, DescribeClientQuotasResponse(entries=[entry]))
    [read] = read_message("DescribeClientQuotasResponse", 1, written).entries
    assert read.values[0].value != read.values[0].value


def test_readers_are_compiled_once() -> None:
    assert reader("FetchRequest", 12) is reader("FetchRequest", 12)


@pytest.mark.parametrize(("name", "version"), [("FetchRequest", 19), ("FetchRequest", -1), ("VoteRequest", 0)])
def test_what_the_table_does_not_have_is_refused(name: str, version: int) -> None:
    with pytest.raises(WireError, match="the table has no"):
        reader(name, version)
