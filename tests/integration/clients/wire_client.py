"""Kafka's protocol without a client library: to speak with one certain broker, and to say one certain thing twice."""

import socket
import struct
from types import TracebackType
from typing import Any

from headrace.testing.batches import read_batches
from headrace.wire.headers import encode_request, parse_response
from headrace.wire.messages import (
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)
from tests.integration.clients.messages import CALL_LIMIT_SECONDS

PRODUCE, PRODUCE_VERSION = 0, 9
FETCH, FETCH_VERSION = 1, 12
METADATA, METADATA_VERSION = 3, 12
INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION = 22, 4


class WireClient:
    """One connection to one broker. Errors of the connection are raised as `OSError`."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), CALL_LIMIT_SECONDS)
        self._stream = self._socket.makefile("rb")
        self._correlation_id = 0

    def __enter__(self) -> "WireClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, api_key: int, version: int, request: Any) -> None:
        """Send a request; its answer is the next that `receive` returns."""
        self._correlation_id += 1
        self._socket.sendall(encode_request(api_key, version, self._correlation_id, "wire", request))

    def receive(self, api_key: int, version: int) -> Any:
        """Return the next answer."""
        (size,) = struct.unpack(">i", self._read(4))
        _, response = parse_response(api_key, version, memoryview(self._read(size)))
        return response

    def ask(self, api_key: int, version: int, request: Any) -> Any:
        """Send a request and return its answer."""
        self.send(api_key, version, request)
        return self.receive(api_key, version)

    def metadata(self, *topics: str) -> MetadataResponse:
        """Ask for the brokers and some topics; none is created."""
        asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        response: MetadataResponse = self.ask(METADATA, METADATA_VERSION, request)
        return response

    def node_ids(self) -> set[int]:
        """Return which brokers live, as this one sees it."""
        return {broker.node_id for broker in self.metadata().brokers}

    def producer_id(self) -> int:
        """Return a fresh producer id."""
        request = InitProducerIdRequest(transactional_id=None, producer_id=-1, producer_epoch=-1)
        response = self.ask(INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, request)
        assert response.error_code == 0
        return int(response.producer_id)

    def produce(self, topic: str, batch: bytes, partition: int = 0) -> ProduceResponse.PartitionProduceResponse:
        """Append one batch and return the answer."""
        self.send(PRODUCE, PRODUCE_VERSION, produce_request(topic, batch, partition))
        return self.produced()

    def produced(self) -> ProduceResponse.PartitionProduceResponse:
        """Return the next answer, which is that of a produce request."""
        response: ProduceResponse = self.receive(PRODUCE, PRODUCE_VERSION)
        return response.responses[0].partition_responses[0]

    def fetch(
        self, topic: str, partition: int = 0, *, offset: int = 0, max_wait_ms: int = 0
    ) -> FetchResponse.PartitionData:
        """Read from one offset on."""
        response: FetchResponse = self.ask(
            FETCH, FETCH_VERSION, fetch_request(topic, partition, offset=offset, max_wait_ms=max_wait_ms)
        )
        return response.responses[0].partitions[0]

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """Return all values of a partition.

        An answer with records may stop at what the broker knows; only an empty one says that there are no more.
        """
        values: list[bytes | None] = []
        while True:
            data = self.fetch(topic, partition, offset=len(values))
            assert data.error_code == 0
            if not data.records:
                return values
            assert isinstance(data.records, memoryview)
            values += [record.value for record in read_batches(data.records)]

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionResetError("the broker closed the connection")
        return data


def produce_request(topic: str, batch: bytes, partition: int = 0) -> ProduceRequest:
    """Return a request with one batch, acks=all."""
    data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
    topic_data = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=int(CALL_LIMIT_SECONDS * 1000), topic_data=[topic_data])


def fetch_request(topic: str, partition: int = 0, *, offset: int = 0, max_wait_ms: int = 0) -> FetchRequest:
    """Return a request for one partition, outside any session."""
    wanted = FetchRequest.FetchPartition(
        partition=partition,
        fetch_offset=offset,
        current_leader_epoch=-1,
        last_fetched_epoch=-1,
        partition_max_bytes=10_000_000,
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=10_000_000,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
    )
