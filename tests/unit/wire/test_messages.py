"""Classes made from the table."""

import pytest
from msgspec.structs import replace

from headrace.wire import messages
from headrace.wire.messages import FetchRequest, FetchResponse, MetadataRequest, ShareFetchResponse, message_class
from headrace.wire.schema import message_schemas


def test_what_is_left_out_has_kafkas_default() -> None:
    request = FetchRequest()
    assert (request.max_bytes, request.session_epoch, request.cluster_id) == (0x7FFFFFFF, -1, None)
    assert request.replica_state == FetchRequest.ReplicaState(replica_id=-1, replica_epoch=-1)
    assert MetadataRequest().allow_auto_topic_creation is True and MetadataRequest().topics == []
    assert FetchResponse.PartitionData().records is None
    assert ShareFetchResponse.PartitionData().current_leader.leader_id == 0


def test_lists_are_not_shared_between_messages() -> None:
    assert FetchRequest().topics is not FetchRequest().topics


def test_messages_are_values() -> None:
    topic = FetchRequest.FetchTopic(topic="t")
    assert FetchRequest(topics=[topic]) == FetchRequest(topics=[FetchRequest.FetchTopic(topic="t")])
    assert replace(topic, topic="u").topic == "u"
    with pytest.raises(AttributeError):
        topic.topic = "u"  # type: ignore[misc]


def test_structs_hang_on_their_message() -> None:
    for name, schema in message_schemas().items():
        assert all(hasattr(message_class(name), struct) for struct in schema.structs), name


def test_an_unknown_name_is_no_attribute() -> None:
    assert not hasattr(messages, "VoteRequest")
    with pytest.raises(AttributeError, match="the table has no message VoteRequest"):
        message_class("VoteRequest")
