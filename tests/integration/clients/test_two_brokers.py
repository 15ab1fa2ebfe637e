"""Two processes on one data directory are two brokers of one cluster: either serves everything, each may die."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.model.error_codes import ErrorCode
from headrace.testing.batches import make_batch
from tests.integration.clients.all_clients import CLIENTS
from tests.integration.clients.flows import LOST_SOCKETS, Flows, verify_rows
from tests.integration.clients.following import Follower
from tests.integration.clients.librdkafka import create_topic, ends_now
from tests.integration.clients.messages import Message, as_stored, assorted, ends_of
from tests.integration.clients.waiting import eventually
from tests.integration.clients.wire_client import FETCH, FETCH_VERSION, WireClient, fetch_request
from tests.servers.headrace import HeadraceProcess, running_headrace

SHORT_SESSIONS = {"broker.session.timeout.ms": "2000"}
ENDLESS_SESSIONS = {"broker.session.timeout.ms": "600000"}
"""Longer than a test may take: whoever waits for such a session to end fails the test."""

Pair = tuple[HeadraceProcess, HeadraceProcess]


@contextlib.contextmanager
def running_pair(data_dir: Path, settings: dict[str, str] | None = None) -> Iterator[Pair]:
    with (
        running_headrace(data_dir, node_id=1, settings=settings) as first,
        running_headrace(data_dir, node_id=2, settings=settings) as second,
    ):
        for broker in (first, second):
            wait_for_nodes(broker, {1, 2})
        yield first, second


def wait_for_nodes(broker: HeadraceProcess, node_ids: set[int]) -> None:
    """Wait until a broker tells its clients of exactly these."""
    with WireClient(broker.kafka_port) as client:
        eventually(f"the brokers are {node_ids}", lambda: client.node_ids() == node_ids)


def both(pair: Pair) -> str:
    return ",".join(broker.bootstrap for broker in pair)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tmp_path_factory.mktemp("data")) as brokers:
        yield brokers


def test_both_name_both_and_agree_on_leaders(pair: Pair) -> None:
    create_topic(pair[0].bootstrap, "leaders", 30)
    told = []
    for broker in pair:
        with WireClient(broker.kafka_port) as client:
            answer = client.metadata("leaders")
            assert {(node.node_id, node.port) for node in answer.brokers} == {
                (1, pair[0].kafka_port),
                (2, pair[1].kafka_port),
            }
            told.append((answer.cluster_id, answer.controller_id, answer.topics))
    assert told[0] == told[1]
    partitions = told[0][2][0].partitions
    assert {partition.leader_id for partition in partitions} == {1, 2}
    assert all(partition.leader_epoch == -1 for partition in partitions)
    assert all(partition.isr_nodes == partition.replica_nodes == [partition.leader_id] for partition in partitions)


def test_either_takes_and_gives_every_partition_at_once(pair: Pair) -> None:
    create_topic(pair[0].bootstrap, "either", 10)
    with WireClient(pair[0].kafka_port) as first, WireClient(pair[1].kafka_port) as second:
        for partition in range(10):
            assert first.produce("either", make_batch([b"from 1", b"more"]), partition).base_offset == 0
            # What one broker acknowledged is visible in the other, without any delay.
            assert second.values("either", partition) == [b"from 1", b"more"]
            assert second.produce("either", make_batch([b"from 2"]), partition).base_offset == 2
            assert first.values("either", partition) == [b"from 1", b"more", b"from 2"]
            assert second.fetch("either", partition).high_watermark == 3


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_find_both_from_either(pair: Pair, name: str) -> None:
    topic = f"found-{name}"
    create_topic(pair[0].bootstrap, topic, 12)
    sent = [Message(partition=n % 12, value=b"%d" % n) for n in range(600)]
    CLIENTS[name].produce(pair[0].bootstrap, topic, sent, idempotent=True)
    expected = as_stored(sent)
    assert CLIENTS[name].read(pair[1].bootstrap, topic, ends_of(expected)) == expected


def test_a_long_poll_at_one_broker_wakes_for_what_the_other_takes(pair: Pair) -> None:
    create_topic(pair[0].bootstrap, "wakes")
    with WireClient(pair[0].kafka_port) as reader, WireClient(pair[1].kafka_port) as writer:
        reader.send(FETCH, FETCH_VERSION, fetch_request("wakes", max_wait_ms=100_000))
        assert writer.produce("wakes", make_batch([b"wake up"])).error_code == ErrorCode.NONE
        woken = reader.receive(FETCH, FETCH_VERSION).responses[0].partitions[0]
        assert woken.high_watermark == 1 and len(woken.records) > 0


def test_a_retry_that_reaches_the_other_broker_is_recognised(pair: Pair) -> None:
    create_topic(pair[0].bootstrap, "retries")
    with WireClient(pair[0].kafka_port) as first, WireClient(pair[1].kafka_port) as second:
        producer = first.producer_id()
        assert second.producer_id() != producer

        def batch(sequence: int, *values: bytes, epoch: int = 0) -> bytes:
            return make_batch(values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)

        answers = [broker.produce("retries", batch(0, b"a", b"b")) for broker in (first, second, first)]
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [(ErrorCode.NONE, 0)] * 3
        # The sequence goes on wherever the next batch arrives, and its retry is recognised anywhere, too.
        answers = [broker.produce("retries", batch(2, b"c")) for broker in (second, first)]
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [(ErrorCode.NONE, 2)] * 2
        # An earlier batch of the last five is still known.
        assert second.produce("retries", batch(0, b"a", b"b")).base_offset == 0
        for broker in (first, second):
            gap = broker.produce("retries", batch(7, b"too early"))
            assert (gap.error_code, gap.base_offset) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert second.produce("retries", batch(0, b"d", epoch=1)).base_offset == 3
        assert first.produce("retries", batch(3, b"zombie")).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        for broker in (first, second):
            assert broker.values("retries") == [b"a", b"b", b"c", b"d"]


def test_admin_changes_at_one_broker_hold_at_the_other(pair: Pair) -> None:
    first, second = pair
    create_topic(first.bootstrap, "shared-rule", max_message_bytes="1000")
    large = make_batch([b"x" * 2000])
    with WireClient(second.kafka_port) as client:
        assert client.produce("shared-rule", large).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert client.produce("shared-rule", make_batch([b"x"])).base_offset == 0


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_second_process_with_the_same_node_id_is_refused(pair: Pair, tmp_path: Path, elsewhere: bool) -> None:
    shared = pair[0].data_dir
    options = [f"--metadata=sqlite:{shared}/meta.db", f"--objects=file:{shared}/objects"]
    data_dir, why = (tmp_path, "is alive at") if elsewhere else (shared, "runs already on")
    with pytest.raises(RuntimeError, match=why) as refused, running_headrace(data_dir, node_id=2, options=options):
        pass
    assert "--node-id" in str(refused.value), "it says what to do"
    with WireClient(pair[1].kafka_port) as client:
        assert client.node_ids() == {1, 2}


@pytest.mark.filterwarnings(LOST_SOCKETS)
def test_clients_move_on_when_a_broker_is_killed(tmp_path: Path) -> None:
    with (
        running_pair(tmp_path, SHORT_SESSIONS) as pair,
        Flows(both(pair), partitions=6) as flows,
        contextlib.ExitStack() as stack,
    ):
        followers = [stack.enter_context(Follower(both(pair), flow.topic, range(6))) for flow in flows.each]
        flows.wait_for_more()
        pair[0].kill()
        wait_for_nodes(pair[1], {2})
        flows.wait_for_more()
        flows.verify(pair[1].bootstrap)
        for flow, follower in zip(flows.each, followers, strict=True):
            follower.wait_for(ends_now(pair[1].bootstrap, flow.topic, range(6)))
            verify_rows(flow, follower.rows)


def test_a_broker_killed_and_started_at_once_takes_its_own_place_back(tmp_path: Path) -> None:
    sent = assorted(0, null_headers=True)
    with running_pair(tmp_path, ENDLESS_SESSIONS) as (first, second):
        create_topic(second.bootstrap, "place")
        CLIENTS["librdkafka"].produce(second.bootstrap, "place", sent)
        second.kill()
        with running_headrace(tmp_path, node_id=2, settings=ENDLESS_SESSIONS) as again:
            with WireClient(first.kafka_port) as client:
                eventually(
                    "the other broker knows the new address",
                    lambda: (
                        (2, again.kafka_port) in {(node.node_id, node.port) for node in client.metadata().brokers}
                    ),
                )
                assert client.node_ids() == {1, 2}
            expected = as_stored(sent)
            assert CLIENTS["aiokafka"].read(again.bootstrap, "place", ends_of(expected)) == expected
