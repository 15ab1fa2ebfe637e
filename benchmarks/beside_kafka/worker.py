"""One client process: librdkafka through confluent-kafka, told what to do by one line of JSON.

It prepares itself (connection, metadata, values), says `ready`, waits for `go`, works, and prints what came of it.
So neither the start of Python nor that of the client is measured, and several of them begin together.

The settings are librdkafka's defaults except for those named here, and the same for both brokers.
"""

import os
import struct
import sys
import threading
import time
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from benchmarks.beside_kafka import jobs
from benchmarks.beside_kafka.values import NOTHING, Tally, make_pool, tally_of, tally_of_cycles

PREPARE_LIMIT_SECONDS = 30.0
STALL_LIMIT_SECONDS = 60.0
POLL_SECONDS = 0.05
READ_AT_ONCE = 10_000
OUTSTANDING_MAX_BYTES = 64_000_000
OUTSTANDING_MAX_RECORDS = 90_000
PRIMING_TOPIC = "primed"
SENT_AT = struct.Struct("<q")

PRODUCER_SETTINGS: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "none",
    # The client calls back for failures only; successes are counted by the reader that verifies.
    "delivery.report.only.error": True,
}
CONSUMER_SETTINGS: dict[str, Any] = {
    "group.id": "beside-kafka",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    # The default of one second makes a fast reader sleep as soon as its own queue is full, whatever the broker does.
    "fetch.queue.backoff.ms": 10,
}


class ClientFailed(Exception):
    """The client could not do its job; the message says which and why."""


class FailureCount:
    """Counts deliveries that failed and remembers the first."""

    def __init__(self) -> None:
        self.count = 0
        self.first: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.count += 1
            self.first = self.first or error


def make_producer(bootstrap: str, topic: str, failures: FailureCount, **settings: Any) -> Producer:
    """Return a producer that knows the topic already, and has its producer id.

    librdkafka asks for the id on a timer of half a second, at once or one tick later by chance: with a broker that
    answers quickly the connection it meant to ask on is gone by then. In a run of a second that decides the cell.
    """
    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER_SETTINGS, "on_delivery": failures, **settings})
    partitions_of(producer, topic)
    producer.produce(PRIMING_TOPIC, b"primed")
    finish(producer, failures)
    return producer


def partitions_of(client: Producer | Consumer, topic: str) -> int:
    """Return how many partitions the topic has, when all of them have a leader."""
    deadline = time.monotonic() + PREPARE_LIMIT_SECONDS
    while time.monotonic() < deadline:
        partitions = client.list_topics(topic, timeout=PREPARE_LIMIT_SECONDS).topics[topic].partitions
        if partitions and all(partition.leader >= 0 for partition in partitions.values()):
            return len(partitions)
        time.sleep(POLL_SECONDS)
    raise ClientFailed(f"topic {topic} has no leaders after {PREPARE_LIMIT_SECONDS:.0f} s")


def finish(producer: Producer, failures: FailureCount) -> None:
    """Wait until everything is acknowledged. Raises `ClientFailed` if something is not."""
    left = producer.flush(STALL_LIMIT_SECONDS)
    if left or failures.count:
        raise ClientFailed(f"{left} records unacknowledged, {failures.count} failed, the first with {failures.first}")


def produce(job: jobs.Produce) -> jobs.Done:
    """Write as fast as the broker takes it."""
    failures = FailureCount()
    producer = make_producer(job.bootstrap, job.topic, failures)
    pool = make_pool(job.record_bytes)
    messages = [{"value": value} for value in pool]
    outstanding = min(OUTSTANDING_MAX_RECORDS, OUTSTANDING_MAX_BYTES // job.record_bytes) - len(pool)
    tally = tally_of_cycles(pool, job.records)
    wait_for_go()
    began_ns = time.monotonic_ns()
    sent = 0
    while sent < job.records:
        while len(producer) > outstanding:
            producer.poll(POLL_SECONDS)
        # One call for many records: a call for each would make Python the bottleneck where records are small.
        some = messages[: job.records - sent]
        if producer.produce_batch(job.topic, some) != len(some):
            raise ClientFailed(f"the client's own queue refused records of topic {job.topic}")
        sent += len(some)
    finish(producer, failures)
    return jobs.Done(tally=tally, began_ns=began_ns, ended_ns=time.monotonic_ns())


def make_consumer(bootstrap: str, topic: str, start: int) -> tuple[Consumer, list[TopicPartition]]:
    """Return a consumer of all partitions and where it starts: at fixed offsets, so that nothing slips by."""
    consumer = Consumer({"bootstrap.servers": bootstrap, **CONSUMER_SETTINGS})
    partitions = [TopicPartition(topic, number) for number in range(partitions_of(consumer, topic))]
    for partition in partitions:
        first, end = consumer.get_watermark_offsets(partition, timeout=PREPARE_LIMIT_SECONDS)
        partition.offset = first if start == jobs.BEGINNING else end
    consumer.assign(partitions)
    return consumer, partitions


def values_of(messages: list[Message]) -> list[bytes]:
    """Return the values of messages. Raises `KafkaException` if one of them is an error in disguise."""
    for message in messages:
        if message.error() is not None:
            raise KafkaException(message.error())
    return cast(list[bytes], [message.value() for message in messages])


def read(job: jobs.Read) -> jobs.Done:
    """Read as fast as the broker gives, until all records are there."""
    consumer, _ = make_consumer(job.bootstrap, job.topic, job.start)
    if job.start == jobs.END:
        consumer.poll(POLL_SECONDS)  # let the first fetch wait at the broker, as a reader that keeps up would have it
    wait_for_go()
    began_ns = time.monotonic_ns()
    tally = NOTHING
    while tally.records < job.records:
        # Never ask for more than is still to come: the client would wait for it until the timeout.
        messages = consumer.consume(min(READ_AT_ONCE, job.records - tally.records), STALL_LIMIT_SECONDS)
        if not messages:
            raise ClientFailed(f"no record came for {STALL_LIMIT_SECONDS:.0f} s, after {tally} of {job}")
        values = values_of(messages)
        tally += tally_of(values) if job.is_checked else size_of(values)
    ended_ns = time.monotonic_ns()
    consumer.close()
    return jobs.Done(tally=tally, began_ns=began_ns, ended_ns=ended_ns)


def size_of(values: list[bytes]) -> Tally:
    """Count without checksums, which would slow a timed reader down."""
    return Tally(records=len(values), size_bytes=sum(map(len, values)), checksum=None)


def pace(job: jobs.Pace) -> jobs.Done:
    """Write one record after another at fixed times; one that is late does not delay those after it."""
    failures = FailureCount()
    linger = {} if job.linger_ms is None else {"linger.ms": job.linger_ms}
    producer = make_producer(job.bootstrap, job.topic, failures, **linger)
    rests = [value[SENT_AT.size :] for value in make_pool(job.record_bytes)]
    pause_ns = 1_000_000_000 // job.records_per_second
    tally = NOTHING
    wait_for_go()
    began_ns = time.monotonic_ns()
    for number in range(job.records):
        while (early_ns := began_ns + number * pause_ns - time.monotonic_ns()) > 0:
            time.sleep(early_ns / 1e9)
        value = SENT_AT.pack(time.monotonic_ns()) + rests[number % len(rests)]
        producer.produce(job.topic, value)
        producer.poll(0)
        tally += tally_of([value])
    finish(producer, failures)
    return jobs.Done(tally=tally, began_ns=began_ns, ended_ns=time.monotonic_ns())


def watch(job: jobs.Watch) -> jobs.Done:
    """Read from the end on and take the age of every record when it arrives."""
    consumer, _ = make_consumer(job.bootstrap, job.topic, jobs.END)
    consumer.poll(POLL_SECONDS)
    wait_for_go()
    began_ns = time.monotonic_ns()
    values: list[bytes] = []
    latencies_ns: list[int] = []
    while len(values) < job.records:
        message = consumer.poll(STALL_LIMIT_SECONDS)
        arrived_ns = time.monotonic_ns()
        if message is None:
            raise ClientFailed(f"no record came for {STALL_LIMIT_SECONDS:.0f} s, after {len(values)} of {job}")
        values += values_of([message])
        latencies_ns.append(arrived_ns - SENT_AT.unpack_from(values[-1])[0])
    ended_ns = time.monotonic_ns()
    consumer.close()
    return jobs.Done(
        tally=tally_of(values), began_ns=began_ns, ended_ns=ended_ns, latencies_ns=latencies_ns[job.uncounted :]
    )


def backfill(job: jobs.Backfill) -> jobs.Done:
    """Read from the beginning, over and over, until the input ends."""
    consumer, starts = make_consumer(job.bootstrap, job.topic, jobs.BEGINNING)
    wait_for_go()
    is_over = threading.Event()
    threading.Thread(target=wait_for_end_of_input, args=(is_over,), daemon=True).start()
    began_ns = time.monotonic_ns()
    tally = NOTHING
    while not is_over.is_set():
        messages = consumer.consume(READ_AT_ONCE, POLL_SECONDS)
        if not messages:
            consumer.assign(starts)
        tally += size_of(values_of(messages))
    ended_ns = time.monotonic_ns()
    consumer.close()
    return jobs.Done(tally=tally, began_ns=began_ns, ended_ns=ended_ns)


def wait_for_end_of_input(is_over: threading.Event) -> None:
    """Set the event when the benchmark wants no more of this client."""
    sys.stdin.read()
    is_over.set()


def wait_for_go() -> None:
    """Say that all is prepared, and wait until the others are, too."""
    print("ready", flush=True)
    if sys.stdin.readline().strip() != "go":
        raise ClientFailed("nobody said go: the benchmark has ended")


def perform(job: jobs.Job) -> jobs.Done:
    """Do what the job says."""
    match job:
        case jobs.Produce():
            return produce(job)
        case jobs.Read():
            return read(job)
        case jobs.Pace():
            return pace(job)
        case jobs.Watch():
            return watch(job)
        case jobs.Backfill():
            return backfill(job)


if __name__ == "__main__":
    print(jobs.encode_done(perform(jobs.decode_job(sys.stdin.readline()))), flush=True)
    # librdkafka's own farewell takes up to seconds, and nobody waits for anything of it.
    os._exit(0)
