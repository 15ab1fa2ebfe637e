"""What no Kafka client sends costs its sender the connection, one log line and one metric, and others nothing."""

import json
import random
import socket
from collections.abc import Iterator
from struct import pack

import pytest

from tests.integration.wire.batches import batch, values_of
from tests.integration.wire.raw import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    RawClient,
    array,
    fetch_request,
    framed,
    produce_request,
    request,
    text,
    varint,
)
from tests.integration.wire.watching import (
    MIB,
    closing,
    closings,
    forget_peak,
    metric,
    metrics,
    mistakes,
    peak_memory_bytes,
    wait_until,
)
from tests.servers.headrace import HeadraceProcess, running_headrace

LARGEST_FRAME_BYTES = 100 * MIB
UNSUPPORTED_VERSION, INVALID_REQUEST = 35, 42
ENDED = "kafka_connections_ended_by_broker_total"
WRITE_TXN_MARKERS = 27
MANY = 1000

NASTY = ("line\nbreak\r\n\x1b[31mred\x1b]0;title\x07\0%s %n {0} ${jndi:x} \u202eltr\u2028\u2029\x85" * 400).encode()[
    :32_767
]
NASTY = NASTY.decode(errors="ignore").encode()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("data")) as running:
        yield running
        assert mistakes(running) == []


def assert_served(client: RawClient) -> None:
    """Any request will do: who answers one serves."""
    assert client.ask(API_VERSIONS, 0, b"").number(2) == 0


def assert_closed_alone(broker: HeadraceProcess, data: bytes, kind: str) -> str:
    """Send bytes that cost the connection; return the reason that the log tells. A bystander notices nothing."""
    with RawClient(broker.kafka_port) as bystander, RawClient(broker.kafka_port) as client:
        assert_served(bystander)
        before = metric(broker, ENDED, reason=kind)
        client.send(data)
        assert client.rest() == b""
        entry = closing(broker, client.name)
        assert entry["kind"] == kind
        assert metric(broker, ENDED, reason=kind) == before + 1
        assert_served(bystander)
        return str(entry["reason"])


@pytest.mark.parametrize("size", [0, 1, 9, -1, -(2**31), 2**31 - 1, LARGEST_FRAME_BYTES + 1])
def test_a_frame_of_impossible_size_closes_at_once_and_allocates_nothing(broker: HeadraceProcess, size: int) -> None:
    before = forget_peak(broker)
    reason = assert_closed_alone(broker, pack(">i", size), "size")
    assert str(size) in reason
    assert peak_memory_bytes(broker) < before + 32 * MIB


def test_a_frame_that_ends_inside_its_header_closes(broker: HeadraceProcess) -> None:
    header = pack(">hhih", API_VERSIONS, 0, 7, 5)
    assert_closed_alone(broker, framed(header), "garbage")
    assert_closed_alone(broker, framed(header + b"1234"), "garbage")
    assert_closed_alone(broker, framed(pack(">hhih", API_VERSIONS, 0, 7, -2)), "garbage")


def test_bytes_behind_a_request_within_its_frame_are_passed_over_as_by_apache_kafka(
    broker: HeadraceProcess,
) -> None:
    with RawClient(broker.kafka_port) as client:
        client.ask(METADATA, 1, array([]) + b"\0\xff more")
        assert_served(client)


@pytest.mark.parametrize(
    ("data", "looks"),
    [
        (b"GET / HTTP/1.1\r\nHost: broker:9092\r\n\r\n", "HTTP"),
        (b"POST /topics HTTP/1.1\r\n\r\n", "HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/2"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)), "TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH"),
        (b"AMQP\x00\x00\x09\x01", "AMQP"),
        (b"\0\0\0\x08\x04\xd2\x16/", "PostgreSQL"),
        (b"\x10\x1a\x00\x04MQTT\x04\x02\x00\x3c\x00\x0eclient", "MQTT"),
        (b"*1\r\n$4\r\nPING\r\n", "Redis"),
        (b"hello, is anybody there?\r\n", "text"),
        (bytes(range(128, 192)), "no known protocol"),
    ],
)
def test_another_protocol_is_recognised_and_closed(broker: HeadraceProcess, data: bytes, looks: str) -> None:
    assert looks in assert_closed_alone(broker, data, "size")


def test_random_bytes_are_closed_and_harm_nobody(broker: HeadraceProcess) -> None:
    chance = random.Random(4)
    with RawClient(broker.kafka_port) as bystander:
        for round_number in range(50):
            with RawClient(broker.kafka_port) as client:
                noise = chance.randbytes(chance.randrange(1, 5000))
                client.send(noise if round_number % 2 else framed(noise + bytes(10)))
                client.socket.shutdown(socket.SHUT_WR)
                client.rest()
        assert_served(bystander)


@pytest.mark.parametrize("api_key", [-1, 93, 999, 2**15 - 1, -(2**15), WRITE_TXN_MARKERS])
def test_an_api_that_is_not_served_closes(broker: HeadraceProcess, api_key: int) -> None:
    assert str(api_key) in assert_closed_alone(broker, request(api_key, 0, b""), "api")


@pytest.mark.parametrize("version", [-1, 99, 2**15 - 1, -(2**15)])
@pytest.mark.parametrize("api_key", [PRODUCE, FETCH, METADATA])
def test_a_version_that_is_not_served_closes(broker: HeadraceProcess, api_key: int, version: int) -> None:
    # A version above all known ones has a flexible header: the zero byte ends it.
    assert_closed_alone(broker, request(api_key, version, b"", tags=b"\0"), "version")


@pytest.mark.parametrize("version", [5, 99, 2**15 - 1, -1, -(2**15)])
@pytest.mark.parametrize("body", [b"", b"\xff" * 50])
def test_api_versions_in_an_unknown_version_is_answered_in_version_0_with_the_list(
    broker: HeadraceProcess, version: int, body: bytes
) -> None:
    with RawClient(broker.kafka_port) as client:
        client.send(request(API_VERSIONS, version, body, tags=b"\0" if version > 0 else b""))
        answer = client.answer()
        assert answer.number(2) == UNSUPPORTED_VERSION
        served = [(answer.number(2), answer.number(2), answer.number(2)) for _ in range(answer.number(4))]
        answer.end()
        assert {PRODUCE, FETCH, METADATA, API_VERSIONS} <= {key for key, _, _ in served}
        assert_served(client)


def test_a_request_that_comes_byte_by_byte_is_served(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        for byte in request(API_VERSIONS, 0, b""):
            client.send(bytes([byte]))
        assert client.answer().number(2) == 0


@pytest.mark.parametrize("client_id", [NASTY, b"\xff\xfe not text", b"x" * 32_767, b""])
def test_a_strange_client_id_changes_neither_log_lines_nor_metrics(broker: HeadraceProcess, client_id: bytes) -> None:
    labels = {line.rsplit(" ", 1)[0] for line in metrics(broker).splitlines()}
    refused = b"\x02" + bytes(range(16)) + varint(2) + b"t" + b"\0" + b"\0\0\0" + b"\0"
    with RawClient(broker.kafka_port) as client:
        client.send(request(API_VERSIONS, 0, b"", client=client_id))
        if client_id.startswith(b"\xff"):
            assert client.rest() == b""
            assert closing(broker, client.name)["kind"] == "garbage"
        else:
            assert client.answer().number(2) == 0
            # Asking by id in version 10 is refused, and that is logged with the client's name.
            client.send(request(METADATA, 10, refused, client=client_id, tags=b"\0"))
            client.answer(tags=b"\0")
            name = client.name
            wait_until(
                lambda: any("a request was refused" in line and name in line for line in broker.log), "refused"
            )
        client.send(framed(pack(">hhih", METADATA, 1, 7, len(client_id)) + client_id + pack(">i", -7)))
    for line in broker.log[1:]:
        entry = json.loads(line)
        assert {"at", "level", "event"} <= entry.keys()
        assert len(line) < 8192 and line.isprintable()
    fresh = {line.rsplit(" ", 1)[0] for line in metrics(broker).splitlines()} - labels
    assert not any("red" in line or "xxx" in line for line in fresh)
    assert len(fresh) < 50


def test_a_hundred_pipelined_requests_are_answered_in_order_after_a_half_close(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        client.create_topic("pipelined")
        data = bytearray()
        for number in range(25):
            data += request(API_VERSIONS, 0, b"", correlation_id=4 * number)
            data += produce_request("pipelined", {0: batch([b"%d" % number])}, correlation_id=4 * number + 1)
            data += fetch_request("pipelined", 0, 0, max_wait_ms=5, min_bytes=1 << 20, correlation_id=4 * number + 2)
            data += request(METADATA, 1, array([text("pipelined")]), correlation_id=4 * number + 3)
        client.send(bytes(data))
        client.socket.shutdown(socket.SHUT_WR)
        for number in range(100):
            client.answer(correlation_id=number)
        assert client.rest() == b""
    with RawClient(broker.kafka_port) as client:
        values = values_of(client.fetch("pipelined", 0, 0).records)
        assert values == [b"%d" % number for number in range(25)]
    wait_until(lambda: metric(broker, "kafka_connections") == 0, "no connection is left")
    wait_until(lambda: metric(broker, "kafka_request_memory_bytes") == 0, "all memory is given back")


def test_more_requests_than_may_be_in_flight_are_all_answered_in_order(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        client.create_topic("flood")
        client.send(
            b"".join(produce_request("flood", {0: batch([b"x"])}, correlation_id=number) for number in range(MANY))
        )
        offsets = [client.produced(correlation_id=number)[0].base_offset for number in range(MANY)]
        assert offsets == list(range(MANY))


def test_a_client_that_vanishes_inside_a_frame_leaves_nothing_behind(broker: HeadraceProcess) -> None:
    for size in (100, 100_000, 20 * MIB):
        with RawClient(broker.kafka_port) as client:
            client.send(pack(">ihhi", size, PRODUCE, 8, 7) + bytes(50))
            wait_until(lambda: metric(broker, "kafka_request_memory_bytes") > 0, "the frame is being received")
    with RawClient(broker.kafka_port) as client:
        client.send(pack(">i", 50)[:2])
    wait_until(lambda: metric(broker, "kafka_connections") == 0, "no connection is left")
    wait_until(lambda: metric(broker, "kafka_request_memory_bytes") == 0, "all memory is given back")
    wait_until(lambda: metric(broker, "buffers_leased_bytes") == 0, "all buffers came back")


def test_garbage_behind_good_requests_closes_after_one_log_line(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        client.send(request(API_VERSIONS, 0, b"") * 5 + pack(">i", -5) + b"more" * 1000)
        client.rest()
        closing(broker, client.name)
        with RawClient(broker.kafka_port) as other:
            assert_served(other)
        assert len(closings(broker, client.name)) == 1
