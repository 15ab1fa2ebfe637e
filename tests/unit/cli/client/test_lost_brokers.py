"""A cluster that goes away in the middle: whoever waits for it is told, within the timeout of the connection."""

import pytest

from headrace.cli.client.reader import RecordReader
from headrace.cli.client.sender import RecordSender
from headrace.cli.options import Connection
from headrace.cli.records import Outgoing
from headrace.errors import Retryable
from tests.unit.cli.conftest import MockCluster

PATIENCE_SECONDS = 3.0


@pytest.fixture
def cluster() -> MockCluster:
    return MockCluster()


def _connection(cluster: MockCluster) -> Connection:
    return Connection(bootstrap=cluster.address, timeout_seconds=PATIENCE_SECONDS, properties={})


def test_a_sender_gives_up_and_counts_what_was_under_way_as_failed(cluster: MockCluster) -> None:
    sender = RecordSender(_connection(cluster), "t", {})
    sender.open()
    sender.send(Outgoing(value=b"arrives"))
    while not sender.flush():
        pass
    cluster.stop()
    sender.send(Outgoing(value=b"does not"))
    with pytest.raises(Retryable, match="no broker answers"):
        while not sender.flush():
            pass
    assert (sender.acknowledged, sender.failed) == (1, 1)
    assert sender.flush()
    assert "given up before" in sender.failures[2]


def test_a_reader_that_follows_says_that_nobody_answers(cluster: MockCluster) -> None:
    sender = RecordSender(_connection(cluster), "t", {})
    sender.open()
    reader = RecordReader(_connection(cluster), "t", tell_ends=False)
    partitions = reader.open()
    assert reader.bounds(partitions[0]) == (0, 0)
    reader.start(dict.fromkeys(partitions, 0))
    assert reader.read(0.1) == []
    cluster.stop()
    with pytest.raises(Retryable, match="no broker answers"):
        while True:
            reader.read(0.1)
    reader.close()
