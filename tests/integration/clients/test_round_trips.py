"""What any client writes, every client reads: every byte, key, header, timestamp and offset."""

import random

import pytest

from tests.integration.clients.all_clients import CLIENTS
from tests.integration.clients.librdkafka import create_topic
from tests.integration.clients.messages import CODECS, Failed, Message, as_stored, assorted, ends_of
from tests.servers.headrace import HeadraceProcess

PRODUCERS = [(codec, is_idempotent) for codec in CODECS for is_idempotent in (False, True)]
"""Every kind of producer; each writes to the partition of its place here."""

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
LONE_RECORD_OVERHEAD_BYTES = 61 + 3 + 8
"""What a batch with one uncompressed record of about a megabyte, without key and headers, adds to its value."""

MESSAGE_TOO_LARGE = 10


@pytest.mark.parametrize("writer", CLIENTS)
def test_every_client_reads_what_any_client_wrote_with_any_codec(broker: HeadraceProcess, writer: str) -> None:
    topic = f"trip-{writer}"
    create_topic(broker.bootstrap, topic, len(PRODUCERS))
    client = CLIENTS[writer]
    sent = []
    for partition, (codec, is_idempotent) in enumerate(PRODUCERS):
        messages = assorted(partition, null_headers=client.sends_null_headers)
        offsets = client.produce(broker.bootstrap, topic, messages, codec=codec, idempotent=is_idempotent)
        assert offsets == list(range(len(messages))), (codec, is_idempotent)
        sent += messages
    expected = as_stored(sent)
    for reader in CLIENTS.values():
        read = reader.read(broker.bootstrap, topic, ends_of(expected))
        for partition, producer in enumerate(PRODUCERS):
            assert read[partition] == expected[partition], (reader.name, producer)


@pytest.mark.parametrize("partitions", [1, 100])
@pytest.mark.parametrize("writer", CLIENTS)
def test_many_small_messages_keep_their_order_in_each_partition(
    broker: HeadraceProcess, writer: str, partitions: int
) -> None:
    topic = f"many-{writer}-{partitions}"
    create_topic(broker.bootstrap, topic, partitions)
    rng = random.Random(partitions)
    sent = [
        Message(partition=rng.randrange(partitions), key=b"%d" % n, value=rng.randbytes(n % 300), timestamp_ms=n + 1)
        for n in range(2000)
    ]
    CLIENTS[writer].produce(broker.bootstrap, topic, sent, idempotent=True)
    expected = as_stored(sent)
    assert len(expected) == partitions
    for reader in CLIENTS.values():
        assert reader.read(broker.bootstrap, topic, ends_of(expected)) == expected, reader.name


@pytest.mark.parametrize("writer", CLIENTS)
def test_a_batch_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(broker: HeadraceProcess, writer: str) -> None:
    topic = f"limit-{writer}"
    create_topic(broker.bootstrap, topic)
    value = random.Random(1).randbytes(DEFAULT_MAX_MESSAGE_BYTES - LONE_RECORD_OVERHEAD_BYTES)
    fitting, too_large = Message(value=value), Message(value=value + b"!")
    client = CLIENTS[writer]
    assert client.produce(broker.bootstrap, topic, [fitting], max_request_bytes=2_000_000) == [0]
    with pytest.raises(Failed) as refused:
        client.produce(broker.bootstrap, topic, [too_large], max_request_bytes=2_000_000)
    assert refused.value.code == MESSAGE_TOO_LARGE
    assert client.produce(broker.bootstrap, topic, [fitting], max_request_bytes=2_000_000) == [1]
    expected = as_stored([fitting, fitting])
    for reader in CLIENTS.values():
        assert reader.read(broker.bootstrap, topic, ends_of(expected)) == expected, reader.name
