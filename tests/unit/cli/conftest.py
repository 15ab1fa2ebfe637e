"""A cluster inside librdkafka itself, for commands that only produce and consume: no broker process is needed."""

import os
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

ANSWER_LIMIT_SECONDS = 60


class MockCluster:
    """A broker at `address`. A topic is created by its first use, with four partitions."""

    def __init__(self) -> None:
        self._owner = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
        [broker] = self._owner.list_topics(timeout=ANSWER_LIMIT_SECONDS).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def stop(self) -> None:
        self._owner.close()


@pytest.fixture(scope="session")
def mock_cluster() -> Iterator[str]:
    """Yield the address of a cluster that runs as long as the tests do."""
    cluster = MockCluster()
    yield cluster.address
    cluster.stop()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take our variables away: tests say themselves what holds."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
