"""A broker that stands still for longer than its session has lost its place, and notices before it acts again."""

import time
from pathlib import Path

import pytest

from headrace.model.error_codes import ErrorCode
from headrace.testing.batches import make_batch
from tests.integration.clients.flows import LOST_SOCKETS, Flows
from tests.integration.clients.librdkafka import create_topic
from tests.integration.clients.waiting import eventually, free_port
from tests.integration.clients.wire_client import PRODUCE, PRODUCE_VERSION, WireClient, produce_request
from tests.servers.headrace import HeadraceProcess, running_headrace

pytestmark = pytest.mark.filterwarnings(LOST_SOCKETS)

SESSION_SECONDS = 1.0
SHORT_SESSIONS = {"broker.session.timeout.ms": "1000"}

RETRIABLE = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER}


def serves(broker: HeadraceProcess) -> bool:
    """Say whether a broker takes a batch that is sent to it directly."""
    with WireClient(broker.kafka_port) as client:
        return client.produce("direct", make_batch([b"served"])).error_code == ErrorCode.NONE


def test_a_lone_broker_goes_on_after_a_pause(tmp_path: Path) -> None:
    with (
        running_headrace(tmp_path, kafka_port=free_port(), settings=SHORT_SESSIONS) as broker,
        Flows(broker.bootstrap) as flows,
    ):
        create_topic(broker.bootstrap, "direct")
        flows.wait_for_more()
        broker.pause()
        time.sleep(2 * SESSION_SECONDS)  # This is the fault itself: nobody is there to notice it.
        broker.resume()
        eventually("the broker serves again", lambda: serves(broker))
        flows.wait_for_more()
        flows.verify(broker.bootstrap)


def test_a_broker_that_was_given_up_comes_back_and_acknowledges_nothing_stale(tmp_path: Path) -> None:
    with (
        running_headrace(tmp_path, node_id=1, settings=SHORT_SESSIONS) as first,
        running_headrace(tmp_path, node_id=2, settings=SHORT_SESSIONS) as second,
        WireClient(first.kafka_port) as sees,
        WireClient(second.kafka_port) as stuck,
    ):
        eventually("both live", lambda: sees.node_ids() == {1, 2})
        create_topic(first.bootstrap, "direct")
        before = stuck.produce("direct", make_batch([b"before"]))
        assert (before.error_code, before.base_offset) == (ErrorCode.NONE, 0)
        second.pause()
        # The paused broker has this request in its socket and finds it there when it wakes.
        stuck.send(PRODUCE, PRODUCE_VERSION, produce_request("direct", make_batch([b"meanwhile"])))
        eventually("the others give it up", lambda: sees.node_ids() == {1})
        during = sees.produce("direct", make_batch([b"during"]))
        assert (during.error_code, during.base_offset) == (ErrorCode.NONE, 1)
        second.resume()
        meanwhile = stuck.produced()
        eventually("it is back", lambda: sees.node_ids() == {1, 2})
        eventually("it serves again", lambda: serves(second))
        values = sees.values("direct")
        assert values[:2] == [b"before", b"during"]
        if meanwhile.error_code == ErrorCode.NONE:
            assert values[meanwhile.base_offset] == b"meanwhile" and values.count(b"meanwhile") == 1
        else:
            assert meanwhile.error_code in RETRIABLE and b"meanwhile" not in values
