"""Producing records to one topic."""

from collections.abc import Mapping
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.cli.client.link import SERVE_SECONDS, Link
from headrace.cli.options import Connection
from headrace.cli.records import Outgoing
from headrace.errors import Retryable
from headrace.runtime.clock import SystemClock

MAX_FAILURES_KEPT = 1000
_REASONS = {
    KafkaError._PURGE_QUEUE: "given up before it was sent",
    KafkaError._PURGE_INFLIGHT: "given up before a broker answered: it may be in the log or not",
    KafkaError._MSG_TIMED_OUT: "no broker answered in time: it may be in the log or not",
    KafkaError._UNKNOWN_PARTITION: "the topic has no such partition",
    KafkaError.MSG_SIZE_TOO_LARGE: "too large: raise -X message.max.bytes, and the topic's max.message.bytes",
}


class RecordSender:
    """Produces records to one topic and keeps count of what became of them.

    `failures` says why, for the first of them, by the number that the record had among those sent.
    """

    def __init__(self, connection: Connection, topic: str, properties: Mapping[str, object]) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.failed = 0
        self.failures: dict[int, str] = {}
        self._topic = topic
        self._clock = SystemClock()
        self._serve_at = 0.0
        self._link = Link(connection)
        self._producer = self._link.open(Producer, properties)

    def open(self) -> None:
        """Wait until a broker answers and the topic is there."""
        self._link.wait_for_topic(self._producer, self._topic)

    def send(self, record: Outgoing) -> None:
        """Hand a record over, waiting while too many are under way. What becomes of it is told later.

        Raises `Retryable` when no broker has answered for too long; then all that was under way has failed.
        """
        self.sent += 1
        while True:
            try:
                self._produce(record, self.sent)
            except BufferError:
                self._serve(SERVE_SECONDS)
            except KafkaException as error:
                self._failed(self.sent, error.args[0])
                return
            else:
                self._serve_when_due()
                return

    def flush(self) -> bool:
        """Wait a moment for outcomes; returns whether all are known. Raises like `send`."""
        self._producer.flush(SERVE_SECONDS)
        if len(self._producer) == 0:
            return True
        self._give_up_if_lost()
        return False

    def abandon(self) -> None:
        """Give up all records that are under way: they count as failed."""
        self._producer.purge()
        self._producer.flush(SERVE_SECONDS)

    def _produce(self, record: Outgoing, number: int) -> None:
        self._producer.produce(
            self._topic,
            value=record.value,
            key=record.key,
            partition=-1 if record.partition is None else record.partition,
            timestamp=record.timestamp_ms or 0,
            headers=list(record.headers) or None,
            on_delivery=partial(self._delivered, number),
        )

    def _serve_when_due(self) -> None:
        # A call after every record would cost as much as the record itself.
        now = self._clock.monotonic()
        if now >= self._serve_at:
            self._serve_at = now + SERVE_SECONDS
            self._serve(0)

    def _serve(self, seconds: float) -> None:
        self._producer.poll(seconds)
        self._give_up_if_lost()

    def _give_up_if_lost(self) -> None:
        if not self._link.lost:
            return
        try:
            self._link.wait_for_broker(self._producer)
        except Retryable:
            self.abandon()
            raise

    def _delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed(number, error)
            return
        self.acknowledged += 1

    def _failed(self, number: int, error: KafkaError) -> None:
        self.failed += 1
        if len(self.failures) < MAX_FAILURES_KEPT:
            self.failures[number] = _REASONS.get(error.code()) or f"{error.str()} ({error.name()})"
