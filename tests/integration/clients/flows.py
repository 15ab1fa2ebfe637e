"""Producers that go on while brokers come and go, and what must be true of what they leave behind.

A flow sends numbered messages to every partition in turn, from a thread of its own, until it is told to stop. Clients
are set to find a broker again quickly and to be patient otherwise: a flow that fails was failed by the broker.
"""

import asyncio
import gc
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Producer
from confluent_kafka import Message as Delivered

from tests.integration.clients.kafka_python import open_producer
from tests.integration.clients.librdkafka import Librdkafka, create_topic, ends_now, quiet
from tests.integration.clients.messages import CALL_LIMIT_SECONDS, Stored
from tests.integration.clients.waiting import eventually

LOST_SOCKETS = "ignore:unclosed <socket:ResourceWarning"
"""A warning filter that every test with flows needs: kafka-python forgets sockets that could not connect."""

PACE_SECONDS = 0.01
"""Between two rounds over all partitions: so that what is read back in the end stays readable."""

MAX_UNANSWERED = 200
REQUEST_TIMEOUT_MS = 10_000
PATIENCE_MS = int(CALL_LIMIT_SECONDS * 1000)


class Flow(ABC):
    """One producer at work."""

    is_idempotent = True

    def __init__(self, bootstrap: str, topic: str, *, partitions: int = 3) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=f"flow-{topic}", daemon=True)

    def __enter__(self) -> "Flow":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if kind is None:
            self.stop()

    def stop(self) -> None:
        """Send no more, and wait until everything sent was answered."""
        self._stopping.set()
        self._thread.join(CALL_LIMIT_SECONDS)
        assert not self._thread.is_alive(), f"{self.topic}: the producer does not come to an end"
        gc.collect()  # What `LOST_SOCKETS` is for shall happen here, where the filter holds.

    def wait_for_more(self, count: int = 30) -> None:
        """Wait until so many more messages are acknowledged."""
        target = len(self.acknowledged) + count
        eventually(
            f"{self.topic} gets on, and has {len(self.acknowledged)} acknowledgements",
            lambda: len(self.acknowledged) >= target or self.failures,
            limit_seconds=CALL_LIMIT_SECONDS,
        )

    @abstractmethod
    def _run(self) -> None:
        """Send until told to stop, then wait for all answers."""

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.failures.append(repr(error))

    def _answered(self, partition: int, number: int, offset: int | None, error: object) -> None:
        if error is not None or offset is None:
            self.failures.append(f"message {number} of partition {partition}: {error!r}")
        else:
            self.acknowledged[partition, number] = offset

    def _value(self, partition: int, number: int) -> bytes:
        return b"%d:%d:" % (partition, number) + b"x" * (number % 97)


class LibrdkafkaFlow(Flow):
    """Through librdkafka."""

    def _run(self) -> None:
        producer = Producer(
            quiet(
                {
                    "bootstrap.servers": self.bootstrap,
                    "enable.idempotence": self.is_idempotent,
                    # A plain producer keeps its order only with one request at a time.
                    "max.in.flight": 5 if self.is_idempotent else 1,
                    "acks": "all",
                    "linger.ms": 1,
                    "retry.backoff.ms": 50,
                    "retry.backoff.max.ms": 200,
                    "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                    "message.timeout.ms": PATIENCE_MS,
                }
            )
        )
        number = 0
        while not self._stopping.is_set():
            for place in range(self.partitions):
                done = partial(self._delivered, place, number)
                producer.produce(self.topic, self._value(place, number), partition=place, on_delivery=done)
            number += 1
            producer.poll(0)
            self._stopping.wait(PACE_SECONDS)
            while len(producer) > MAX_UNANSWERED and not self._stopping.is_set():
                producer.poll(PACE_SECONDS)
        producer.flush(CALL_LIMIT_SECONDS)

    def _delivered(self, place: int, number: int, error: KafkaError | None, message: Delivered) -> None:
        self._answered(place, number, message.offset(), error)


class PlainLibrdkafkaFlow(LibrdkafkaFlow):
    """Through librdkafka, without idempotence: a lost answer becomes a double."""

    is_idempotent = False


class AiokafkaFlow(Flow):
    """Through aiokafka."""

    def _run(self) -> None:
        asyncio.run(self._send())

    async def _send(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            enable_idempotence=True,
            # It is the limit for a request and for a message at once.
            request_timeout_ms=PATIENCE_MS // 2,
            metadata_max_age_ms=REQUEST_TIMEOUT_MS,
        )
        await producer.start()
        number = unanswered = 0

        def answered(place: int, number: int, done: "asyncio.Future[Any]") -> None:
            nonlocal unanswered
            unanswered -= 1
            error = done.exception()
            self._answered(place, number, None if error else done.result().offset, error)

        while not self._stopping.is_set():
            for place in range(self.partitions):
                unanswered += 1
                sending = await producer.send(self.topic, self._value(place, number), partition=place)
                sending.add_done_callback(partial(answered, place, number))
            number += 1
            await asyncio.sleep(PACE_SECONDS)
            while unanswered > MAX_UNANSWERED and not self._stopping.is_set():
                await asyncio.sleep(PACE_SECONDS)
        await asyncio.wait_for(producer.stop(), CALL_LIMIT_SECONDS)


class KafkaPythonFlow(Flow):
    """Through kafka-python."""

    def _run(self) -> None:
        producer = open_producer(
            self.bootstrap,
            enable_idempotence=True,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=PATIENCE_MS,
            max_block_ms=PATIENCE_MS,
            reconnect_backoff_max_ms=200,
        )
        number = sent = 0
        while not self._stopping.is_set():
            for place in range(self.partitions):
                sending = producer.send(self.topic, self._value(place, number), partition=place)
                sending.add_callback(partial(self._sent, place, number))
                sending.add_errback(partial(self._answered, place, number, None))
                sent += 1
            number += 1
            self._stopping.wait(PACE_SECONDS)
            while sent - len(self.acknowledged) > MAX_UNANSWERED and not self._stopping.is_set():
                self._stopping.wait(PACE_SECONDS)
        producer.flush(CALL_LIMIT_SECONDS)
        producer.close()

    def _sent(self, place: int, number: int, metadata: Any) -> None:
        self._answered(place, number, metadata.offset, None)


FLOWS: dict[str, type[Flow]] = {
    "librdkafka": LibrdkafkaFlow,
    "librdkafka-plain": PlainLibrdkafkaFlow,
    "aiokafka": AiokafkaFlow,
    "kafka-python": KafkaPythonFlow,
}


class Flows:
    """One producer of each kind at work, each on a topic of its own."""

    def __init__(self, bootstrap: str, *, partitions: int = 3) -> None:
        self.each = [kind(bootstrap, name, partitions=partitions) for name, kind in FLOWS.items()]
        self._stack = ExitStack()

    def __enter__(self) -> "Flows":
        for flow in self.each:
            create_topic(flow.bootstrap, flow.topic, flow.partitions)
            self._stack.enter_context(flow)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def wait_for_more(self) -> None:
        """Wait until each gets on."""
        for flow in self.each:
            flow.wait_for_more()

    def verify(self, bootstrap: str) -> None:
        """Stop them and check everything that was promised to each."""
        for flow in self.each:
            flow.stop()
            verify(flow, bootstrap)


def verify(flow: Flow, bootstrap: str) -> None:
    """Read back what a stopped flow has left, and check every promise that was made to it."""
    assert flow.failures == [], f"{flow.topic}: clients see retriable errors at most"
    ends = ends_now(bootstrap, flow.topic, range(flow.partitions))
    verify_rows(flow, Librdkafka().read(bootstrap, flow.topic, ends))


def verify_rows(flow: Flow, rows: Mapping[int, Sequence[Stored]]) -> None:
    """Check what was read: offsets without a gap, acknowledged messages in their places, in order, and once each."""
    assert flow.acknowledged, f"{flow.topic}: nothing was acknowledged, so nothing was tested"
    numbers: dict[int, list[int]] = {}
    for partition, stored in rows.items():
        assert [row.offset for row in stored] == list(range(len(stored))), f"{flow.topic}-{partition}: offsets"
        numbers[partition] = [_number(row, partition) for row in stored]
    for (partition, number), offset in flow.acknowledged.items():
        assert offset < len(numbers[partition]), f"{flow.topic}-{partition}: {number} was acknowledged and is gone"
        assert numbers[partition][offset] == number, f"{flow.topic}-{partition}: another message at offset {offset}"
    for partition, found in numbers.items():
        once = list(dict.fromkeys(found))
        assert once == list(range(len(once))), f"{flow.topic}-{partition}: order, or a message is missing"
        if flow.is_idempotent:
            assert found == once, f"{flow.topic}-{partition}: a message is there twice"


def _number(row: Stored, partition: int) -> int:
    assert row.message.value is not None
    written, number, padding = row.message.value.split(b":")
    assert int(written) == partition and len(padding) == int(number) % 97
    return int(number)
