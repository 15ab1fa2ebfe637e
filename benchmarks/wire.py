"""How long it takes to read and write the messages that matter most, beside kio and kafka-python.

All three read the same bytes and write the same message, warm, in one run. Each figure is the best of several rounds,
because the machine is shared and only the best round tells what the code can do.
"""

import importlib
import importlib.util
import io
import warnings
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from headrace.wire.compiler import reader, write_message, writer
from headrace.wire.headers import encode_request, encode_response, parse_request
from headrace.wire.messages import (
    Buffer,
    FetchRequest,
    FetchResponse,
    Message,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)

NAME = "wire"

ROUNDS = 100
# Shorter than the time slices of a busy machine, so that some rounds are left alone.
ROUND_SECONDS = 0.001
PARTITIONS = 10
RECORDS_BYTES = 100_000
METADATA_PARTITIONS = 100
SIZE_BYTES = 4
PRODUCE, FETCH, METADATA = 0, 1, 3
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = 11, 12, 12
TOPIC_ID = bytes(range(16))

Row = tuple[str, float, str, float | None]


def run() -> list[Row]:
    """Measure and return (what, figure, unit, target)."""
    rows: list[Row] = []
    rows += _reading("parse Produce, 10 × 100 KB", PRODUCE, PRODUCE_VERSION, "ProduceRequest", _produce(), 15.0)
    rows += _writing("write ProduceResponse, 10", PRODUCE, PRODUCE_VERSION, "ProduceResponse", _produced(), 5.0)
    rows += _writing("write MetadataResponse, 100", METADATA, METADATA_VERSION, "MetadataResponse", _metadata(), 60.0)
    rows += _reading("parse Fetch, 10", FETCH, FETCH_VERSION, "FetchRequest", _fetch(), None)
    rows += _writing("write FetchResponse, 10 × 100 KB", FETCH, FETCH_VERSION, "FetchResponse", _fetched(), None)
    frame = memoryview(encode_request(PRODUCE, PRODUCE_VERSION, 1, "rdkafka", _produce()))[SIZE_BYTES:]
    rows.append(("frame to header and Produce", _best_us(partial(parse_request, frame)), "µs", None))
    answer = partial(encode_response, PRODUCE, PRODUCE_VERSION, 1, _produced())
    rows.append(("ProduceResponse to frame", _best_us(answer), "µs", None))
    rows.append(("compile Metadata v12, once", _compile_us("MetadataResponse", METADATA_VERSION), "µs", None))
    return rows


def main() -> None:
    """Print the figures."""
    for what, figure, unit, target in run():
        aim = "" if target is None else f"  (target {target:g})"
        print(f"{what:<50} {figure:>10.2f} {unit}{aim}")


def _reading(what: str, key: int, version: int, name: str, message: Message, target: float | None) -> list[Row]:
    data = write_message(name, version, message)
    read, view = reader(name, version), memoryview(data)
    rows: list[Row] = [(what, _best_us(lambda: read(view)), "µs", target)]
    theirs = _kio_class(key, version, name)
    if theirs is not None:
        kio_read = importlib.import_module("kio.serial").entity_reader(theirs)
        rows.append((f"{what} (kio)", _best_us(lambda: kio_read(data, 0)), "µs", None))
    kafka = _kafka_python_class(name)
    rows.append((f"{what} (kafka-python)", _best_us(lambda: kafka.decode(data, version=version)), "µs", None))
    return rows


def _writing(what: str, key: int, version: int, name: str, message: Message, target: float | None) -> list[Row]:
    write = writer(name, version)

    def ours() -> None:
        out: list[Buffer] = []
        cuts: list[int] = []
        write(message, out, cuts)
        if not cuts:
            b"".join(out)

    rows: list[Row] = [(what, _best_us(ours), "µs", target)]
    data = write_message(name, version, message)
    theirs = _kio_class(key, version, name)
    if theirs is not None:
        serial = importlib.import_module("kio.serial")
        parsed, _ = serial.entity_reader(theirs)(data, 0)
        kio_write = serial.entity_writer(theirs)
        rows.append((f"{what} (kio)", _best_us(lambda: kio_write(io.BytesIO(), parsed)), "µs", None))
    decoded = _kafka_python_class(name).decode(data, version=version)
    rows.append((f"{what} (kafka-python)", _best_us(decoded.encode), "µs", None))
    return rows


def _kio_class(key: int, version: int, name: str) -> Any:
    if importlib.util.find_spec("kio") is None:
        return None
    index = importlib.import_module("kio.index")
    load = index.load_request_schema if name.endswith("Request") else index.load_response_schema
    return load(key, version)


def _kafka_python_class(name: str) -> Any:
    homes = {"Produce": "producer.produce", "Fetch": "consumer.fetch", "Metadata": "metadata.metadata"}
    api = name.removesuffix("Request").removesuffix("Response")
    with warnings.catch_warnings():
        # It reads its definitions in a way that Python means to drop.
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(importlib.import_module(f"kafka.protocol.{homes[api]}"), name)


def _compile_us(name: str, version: int) -> float:
    def compile_both() -> None:
        reader.__wrapped__(name, version)
        writer.__wrapped__(name, version)

    return _best_us(compile_both)


def _produce() -> ProduceRequest:
    data = bytes(RECORDS_BYTES)
    partitions = [ProduceRequest.PartitionProduceData(index=index, records=data) for index in range(PARTITIONS)]
    topic = ProduceRequest.TopicProduceData(name="orders", partition_data=partitions)
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def _produced() -> ProduceResponse:
    partitions = [
        ProduceResponse.PartitionProduceResponse(index=index, base_offset=10**9 + index, log_start_offset=0)
        for index in range(PARTITIONS)
    ]
    topic = ProduceResponse.TopicProduceResponse(name="orders", partition_responses=partitions)
    return ProduceResponse(responses=[topic])


def _metadata() -> MetadataResponse:
    brokers = [
        MetadataResponse.MetadataResponseBroker(node_id=node, host=f"broker-{node}.example", port=9092)
        for node in range(3)
    ]
    partitions = [
        MetadataResponse.MetadataResponsePartition(
            partition_index=index, leader_id=index % 3, replica_nodes=[index % 3], isr_nodes=[index % 3]
        )
        for index in range(METADATA_PARTITIONS)
    ]
    topic = MetadataResponse.MetadataResponseTopic(name="orders", topic_id=TOPIC_ID, partitions=partitions)
    return MetadataResponse(brokers=brokers, cluster_id="headrace", controller_id=0, topics=[topic])


def _fetch() -> FetchRequest:
    partitions = [
        FetchRequest.FetchPartition(partition=index, fetch_offset=10**9, partition_max_bytes=1 << 20)
        for index in range(PARTITIONS)
    ]
    topic = FetchRequest.FetchTopic(topic="orders", partitions=partitions)
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, topics=[topic])


def _fetched() -> FetchResponse:
    data = memoryview(bytes(RECORDS_BYTES))
    partitions = [
        FetchResponse.PartitionData(
            partition_index=index, high_watermark=10**9, last_stable_offset=10**9, log_start_offset=0, records=data
        )
        for index in range(PARTITIONS)
    ]
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="orders", partitions=partitions)])


def _best_us(work: Callable[[], object]) -> float:
    work()
    begun = perf_counter()
    work()
    repeats = max(1, int(ROUND_SECONDS / max(perf_counter() - begun, 1e-7)))
    best = float("inf")
    for _ in range(ROUNDS):
        begun = perf_counter()
        for _ in range(repeats):
            work()
        best = min(best, (perf_counter() - begun) / repeats)
    return best * 1e6


if __name__ == "__main__":
    main()
