"""Batches that no broker may take: Kafka's code for that partition, nothing appended, the neighbours unharmed.

The codes were compared with those of Apache Kafka 4.3; where ours differ on purpose, the case says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.integration.wire.batches import ZSTD, batch, old_message, record, values_of
from tests.integration.wire.raw import Produced, RawClient, produce_request
from tests.integration.wire.watching import closing, mistakes, wait_until
from tests.servers.headrace import HeadraceProcess, running_headrace

NONE, CORRUPT_MESSAGE, UNKNOWN_PARTITION, TOO_LARGE, INVALID_ACKS = 0, 2, 3, 10, 21
INVALID_TIMESTAMP, INVALID_TXN_STATE, UNSUPPORTED_COMPRESSION, INVALID_RECORD = 32, 48, 76, 87

HEADER_BYTES = 61
DEFAULT_LIMIT_BYTES = 2**20 + 12
GOOD = batch([b"one", b"two"])
GOOD_BODY = GOOD[HEADER_BYTES:]
GAP = record(0, b"a") + record(2, b"b")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is sent, and the code it deserves."""

    name: str
    records: bytes | None
    code: int
    version: int = 8


def batch_of(size_bytes: int) -> bytes:
    """Return a batch of exactly this size, header included."""
    shorter = batch([bytes(size_bytes - 100)])
    exact = batch([bytes(2 * size_bytes - 100 - len(shorter))])
    assert len(exact) == size_bytes
    return exact


def with_length(length: int) -> bytes:
    return batch([b"one", b"two"], length=length)


FAULTS = [
    Fault("a wrong CRC", batch(crc=1), CORRUPT_MESSAGE),
    Fault("one flipped bit in a value", GOOD[:-2] + bytes([GOOD[-2] ^ 1]) + GOOD[-1:], CORRUPT_MESSAGE),
    Fault("a message of format 0", old_message(b"old", magic=0), INVALID_RECORD),
    Fault("a message of format 1", old_message(b"old", magic=1), INVALID_RECORD),
    Fault("a message of format 1 in version 3", old_message(b"old", magic=1), INVALID_RECORD, version=3),
    Fault("magic 0 in a batch", batch(magic=0), INVALID_RECORD),
    Fault("magic 1 in a batch", batch(magic=1), INVALID_RECORD),
    # Apache Kafka calls these corrupt, in all partitions of the request; a client would try again in vain.
    Fault("magic 3", batch(magic=3), INVALID_RECORD),
    Fault("magic -1", batch(magic=-1), INVALID_RECORD),
    # Apache Kafka never answers this one.
    Fault("no records", None, INVALID_RECORD),
    Fault("no bytes", b"", INVALID_RECORD),
    Fault("one byte", b"\0", INVALID_RECORD),
    Fault("a header that was cut off", GOOD[:30], INVALID_RECORD),
    Fault("a batch that was cut off", GOOD[:-1], INVALID_RECORD),
    Fault("a length past the end", with_length(len(GOOD) - 12 + 1), INVALID_RECORD),
    # Apache Kafka fails here, and all partitions with it.
    Fault("a length of 2^31-1", with_length(2**31 - 1), INVALID_RECORD),
    Fault("a length of 0", with_length(0), CORRUPT_MESSAGE),
    Fault("a negative length", with_length(-1), CORRUPT_MESSAGE),
    Fault("the least of all lengths", with_length(-(2**31)), CORRUPT_MESSAGE),
    Fault("a length shorter than a header", with_length(48), CORRUPT_MESSAGE),
    Fault("two batches", GOOD + GOOD, INVALID_RECORD),
    # Apache Kafka takes the batch and drops the byte.
    Fault("a batch and a byte", GOOD + b"\0", INVALID_RECORD),
    Fault("a count above the records there are", batch([b"one", b"two"], count=3), INVALID_RECORD),
    Fault("a count below the records there are", batch([b"one", b"two"], count=1), INVALID_RECORD),
    Fault("a count of 2^31-1", batch(count=2**31 - 1), INVALID_RECORD),
    Fault("a count of 0", batch([], count=0), INVALID_RECORD),
    Fault("a negative count", batch(count=-1), INVALID_RECORD),
    Fault("a last offset delta that lies", batch([b"one", b"two"], last_delta=5), INVALID_RECORD),
    Fault("a negative last offset delta", batch(last_delta=-1), INVALID_RECORD),
    # Apache Kafka does not look at these, and consumers then find records in the wrong places.
    Fault("offset deltas with a gap", batch(body=GAP, count=2), INVALID_RECORD),
    Fault("offset deltas with a gap that is owned to", batch(body=GAP, count=2, last_delta=2), INVALID_RECORD),
    Fault("a record that is longer than the batch", batch(body=b"\xfe\x01" + GOOD_BODY[1:], count=2), INVALID_RECORD),
    Fault("a record of 2^31-1 bytes", batch(body=b"\xfe\xff\xff\xff\x0f" + GOOD_BODY[1:], count=2), INVALID_RECORD),
    Fault("a record of negative size", batch(body=b"\x01" + GOOD_BODY[1:], count=2), INVALID_RECORD),
    # Apache Kafka fails here (UNKNOWN_SERVER_ERROR).
    Fault("a varint without an end", batch(body=b"\xff" * 40, count=1), INVALID_RECORD),
    Fault("no body at all", batch(body=b"", count=1), INVALID_RECORD),
    Fault("a producer id with sequence -1", batch(producer=(4000, 0, -1)), INVALID_RECORD),
    # Apache Kafka takes this one as if there were no producer.
    Fault("a producer id with epoch -1", batch(producer=(4000, -1, 0)), INVALID_RECORD),
    # Apache Kafka fails here (UNKNOWN_SERVER_ERROR); the code that it has for this says more.
    *(Fault(f"codec {codec}", batch(attributes=codec), UNSUPPORTED_COMPRESSION) for codec in (5, 6, 7)),
    Fault("zstd before version 7", batch(attributes=ZSTD), UNSUPPORTED_COMPRESSION, version=6),
    Fault("a control batch", batch(attributes=0x20), INVALID_RECORD),
    # Apache Kafka asks first who may use that transaction.
    Fault("a control batch in a transaction", batch(attributes=0x30, producer=(4000, 0, 0)), INVALID_RECORD),
    # Apache Kafka says so for compressed batches only.
    Fault("LogAppendTime", batch(attributes=0x08), INVALID_TIMESTAMP),
    Fault("a time after the end of all clocks", batch(timestamp_ms=2**63 - 1), INVALID_TIMESTAMP),
    Fault("one byte more than allowed", batch_of(DEFAULT_LIMIT_BYTES + 1), TOO_LARGE),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("data")) as running:
        yield running
        assert mistakes(running) == []


def test_every_faulty_batch_gets_its_code_appends_nothing_and_harms_no_neighbour(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        client.create_topic("faults", partitions=3)
        found = {}
        for number, fault in enumerate(FAULTS):
            neighbour = b"neighbour %d" % number
            sent = {1: batch([neighbour]), 0: fault.records, 2: batch([neighbour])}
            answers = client.produce(
                "faults", sent if fault.version > 2 else {0: fault.records}, version=fault.version
            )
            found[fault.name] = answers[0].code
            assert answers[0].base_offset == -1, fault.name
            assert answers[0].message or fault.version < 8, f"{fault.name}: nobody says why"
            assert answers[1] == answers[2] == Produced(NONE, number), fault.name
            assert client.end_offset("faults", 0) == 0, fault.name
        assert found == {fault.name: fault.code for fault in FAULTS}
        expected = [b"neighbour %d" % number for number in range(len(FAULTS))]
        for partition in (1, 2):
            assert values_of(client.fetch("faults", partition, 0).records) == expected
        assert client.produce("faults", {0: GOOD})[0] == Produced(NONE, 0)


def test_a_batch_in_place_of_old_messages_is_refused(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        client.create_topic("old")
        assert client.produce("old", {0: GOOD}, version=2)[0].code == INVALID_RECORD
        assert client.end_offset("old") == 0
        assert client.produce("old", {0: old_message(b"old", magic=1)}, version=2)[0].code == NONE
        assert values_of(client.fetch("old", 0, 0).records) == [b"old"]


def test_partitions_that_do_not_exist_get_a_code_and_others_are_served(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        client.create_topic("few", partitions=1)
        answers = client.produce("few", {-1: GOOD, 0: GOOD, 1: GOOD, 2**31 - 1: GOOD, -(2**31): GOOD})
        assert {index: answer.code for index, answer in answers.items()} == {
            -1: UNKNOWN_PARTITION,
            0: NONE,
            1: UNKNOWN_PARTITION,
            2**31 - 1: UNKNOWN_PARTITION,
            -(2**31): UNKNOWN_PARTITION,
        }
        assert client.produce("no-such-topic", {0: GOOD})[0].code == UNKNOWN_PARTITION


@pytest.mark.parametrize("acks", [2, -2, 2**15 - 1, -(2**15)])
def test_acks_that_mean_nothing_are_refused_and_append_nothing(broker: HeadraceProcess, acks: int) -> None:
    with RawClient(broker.kafka_port) as client:
        client.create_topic(f"acks{acks}")
        assert client.produce(f"acks{acks}", {0: GOOD}, acks=acks)[0].code == INVALID_ACKS
        assert client.end_offset(f"acks{acks}") == 0


def test_without_acknowledgement_a_refusal_closes_the_connection_and_says_why(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        client.create_topic("unacknowledged")
        client.send(produce_request("unacknowledged", {0: GOOD}, acks=0))
        client.send(produce_request("unacknowledged", {0: batch(crc=1)}, acks=0))
        assert client.rest() == b""
        entry = closing(broker, client.name)
        assert entry["kind"] == "produce" and "CRC" in entry["reason"]
    with RawClient(broker.kafka_port) as client:
        wait_until(lambda: client.end_offset("unacknowledged") == 2, "what came before the refusal is in the log")


def test_a_batch_may_be_exactly_as_large_as_the_topic_allows(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        for limit in (DEFAULT_LIMIT_BYTES, 5000):
            topic = f"limit-{limit}"
            client.create_topic(topic, configs={"max.message.bytes": str(limit)})
            assert client.produce(topic, {0: batch_of(limit + 1)})[0].code == TOO_LARGE
            assert client.end_offset(topic) == 0
            assert client.produce(topic, {0: batch_of(limit)})[0] == Produced(NONE, 0)
            assert len(client.fetch(topic, 0, 0).records) == limit


def test_a_limit_that_was_lowered_holds_for_new_batches_and_old_ones_are_still_read(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        client.create_topic("lowered", configs={"max.message.bytes": "5000"})
        assert client.produce("lowered", {0: batch_of(5000)})[0].code == NONE
        assert client.set_config("lowered", "max.message.bytes", "1000") == 0
        assert client.produce("lowered", {0: batch_of(1001)})[0].code == TOO_LARGE
        assert client.produce("lowered", {0: batch_of(1000)})[0] == Produced(NONE, 1)
        assert len(client.fetch("lowered", 0, 0).records) == 6000
        assert len(client.fetch("lowered", 0, 0, max_bytes=1).records) == 5000
