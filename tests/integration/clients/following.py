"""A consumer that reads along from the beginning, in a thread of its own, while brokers come and go."""

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.integration.clients.librdkafka import quiet, stored
from tests.integration.clients.messages import CALL_LIMIT_SECONDS, Stored
from tests.integration.clients.waiting import eventually


class Follower:
    """librdkafka as a consumer of some partitions, without a group."""

    def __init__(self, bootstrap: str, topic: str, partitions: Sequence[int]) -> None:
        self.rows: dict[int, list[Stored]] = {partition: [] for partition in partitions}
        self.failures: list[str] = []
        self._bootstrap = bootstrap
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"follow-{topic}", daemon=True)

    def __enter__(self) -> "Follower":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(CALL_LIMIT_SECONDS)

    def wait_for(self, ends: Mapping[int, int]) -> None:
        """Wait until each partition was read up to its end offset."""
        eventually(
            f"{self._topic} is read to its end",
            lambda: all(len(self.rows[partition]) >= end for partition, end in ends.items()) or self.failures,
            limit_seconds=CALL_LIMIT_SECONDS,
        )
        assert self.failures == []

    def _run(self) -> None:
        consumer = Consumer(
            quiet(
                {
                    "bootstrap.servers": self._bootstrap,
                    "group.id": "none",
                    "enable.auto.commit": False,
                    # Nothing may ever be skipped silently.
                    "auto.offset.reset": "error",
                    "socket.timeout.ms": 10_000,
                    "topic.metadata.refresh.interval.ms": 1000,
                }
            )
        )
        consumer.assign([TopicPartition(self._topic, partition, OFFSET_BEGINNING) for partition in self.rows])
        while not self._stopping.is_set():
            for found in consumer.consume(1000, timeout=0.1):
                error = found.error()
                if error is None:
                    row = stored(found)
                    self.rows[row.message.partition].append(row)
                elif not error.retriable() and error.code() > 0:
                    self.failures.append(str(error))
        consumer.close()
