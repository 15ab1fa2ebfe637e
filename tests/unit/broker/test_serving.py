"""A whole broker in this process, over real files and sockets: how it starts, serves, fails and ends."""

import asyncio
import io
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import serving
from headrace.broker.serving import Addresses, Broker, serve
from headrace.broker.storage import assemble_runtime
from headrace.cluster.membership import Membership
from headrace.errors import Invalid, Unusable
from headrace.gc.folding import Folder
from headrace.http_api.server import HttpServer
from headrace.model.error_codes import ErrorCode
from headrace.produce.writer import LogWriter
from headrace.server.listener import KafkaServer
from headrace.settings import load_settings
from headrace.testing.batches import make_batch
from headrace.wire.headers import encode_request, parse_response
from headrace.wire.messages import ApiVersionsRequest, CreateTopicsRequest, Message, ProduceRequest

PATIENCE_S = 60
PRODUCE, API_VERSIONS, CREATE_TOPICS = 0, 18, 19


@pytest.fixture(autouse=True)
def restored_root_logger() -> Iterator[None]:
    """Give the test process its own log handlers back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(level)


class Kit:
    """One broker over a directory; it may be started several times, one after another."""

    def __init__(self, path: Path, *pairs: str) -> None:
        self.written = io.StringIO()
        self.stopping = asyncio.Event()
        self.addresses: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
        free = {"listeners": "127.0.0.1:0", "http.listen": "127.0.0.1:0", "logging.format": "json"}
        told = {"data.dir": str(path), **free, **dict(pair.split("=", 1) for pair in pairs)}
        self._pairs = [f"{key}={value}" for key, value in told.items()]

    async def serve(self) -> None:
        configuration = load_settings(pairs=self._pairs)
        runtime = assemble_runtime(configuration.tree, environment={}, log_to=self.written)
        await serve(configuration, runtime, stopping=self.stopping, ready=self.addresses.set_result)

    @asynccontextmanager
    async def serving(self) -> "AsyncIterator[Client]":
        """Serve, give a client, and end it all in good order."""
        running = asyncio.create_task(self.serve())
        both: list[asyncio.Future[Any]] = [running, self.addresses]
        await asyncio.wait(both, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        client = await self.client()
        try:
            yield client
        finally:
            client.writer.close()
            self.stopping.set()
            await asyncio.wait_for(running, PATIENCE_S)

    async def client(self) -> "Client":
        kafka = self.addresses.result().kafka
        return Client(*await asyncio.open_connection(kafka.host, kafka.port))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.written.getvalue().splitlines()]


class Client:
    """A socket that speaks Kafka."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, api_key: int, version: int, request: Message, *, correlation_id: int = 1) -> None:
        self.writer.write(encode_request(api_key, version, correlation_id, "test", request))

    async def receive(self, api_key: int, version: int) -> Any:
        size = int.from_bytes(await asyncio.wait_for(self.reader.readexactly(4), PATIENCE_S), "big")
        frame = await asyncio.wait_for(self.reader.readexactly(size), PATIENCE_S)
        return parse_response(api_key, version, memoryview(frame))[1]

    async def ask(self, api_key: int, version: int, request: Message) -> Any:
        self.send(api_key, version, request)
        return await self.receive(api_key, version)

    async def create_topic(self, name: str) -> None:
        topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        answer = await self.ask(CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        assert answer.topics[0].error_code == 0, answer


def produce(*values: bytes, producer: int = -1, sequence: int = -1) -> ProduceRequest:
    epoch = -1 if producer < 0 else 0
    batch = make_batch(values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(batch))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def partition_of(answer: Any) -> Any:
    return answer.responses[0].partition_responses[0]


async def test_broker_serves_ends_and_serves_again_with_everything_still_there(tmp_path: Path) -> None:
    first = Kit(tmp_path)
    async with first.serving() as client:
        answer = await client.ask(API_VERSIONS, 3, ApiVersionsRequest())
        assert PRODUCE in [api.api_key for api in answer.api_keys]
        await client.create_topic("t")
        assert (
            partition_of(await client.ask(PRODUCE, 9, produce(b"a", b"b", producer=5, sequence=0))).base_offset == 0
        )
    kafka = first.addresses.result().kafka
    with pytest.raises(OSError):
        await asyncio.open_connection(kafka.host, kafka.port)
    second = Kit(tmp_path)
    async with second.serving() as client:
        again = partition_of(await client.ask(PRODUCE, 9, produce(b"a", b"b", producer=5, sequence=0)))
        assert (again.error_code, again.base_offset) == (0, 0), "a retry is known after a restart"
        assert partition_of(await client.ask(PRODUCE, 9, produce(b"c", producer=5, sequence=2))).base_offset == 2
    assert not [line for line in first.lines() + second.lines() if line["level"] in ("warning", "error")]


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    async with kit.serving() as client:
        await client.create_topic("t")
        for sequence in range(20):
            client.send(PRODUCE, 9, produce(b"x", producer=5, sequence=sequence))
        offsets = [partition_of(await client.receive(PRODUCE, 9)).base_offset for _ in range(20)]
        assert offsets == list(range(20))


async def test_what_is_under_way_is_answered_before_the_broker_ends(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    async with kit.serving() as client:
        await client.create_topic("t")
        client.send(PRODUCE, 9, produce(b"x"))
        # Once the second answer is there, the requests behind it have arrived, too.
        client.send(API_VERSIONS, 3, ApiVersionsRequest())
        assert partition_of(await client.receive(PRODUCE, 9)).base_offset == 0
        await client.receive(API_VERSIONS, 3)
        other = await kit.client()
        other.send(PRODUCE, 9, produce(b"y"))
        await other.writer.drain()
        kit.stopping.set()
        rest = await asyncio.wait_for(other.reader.read(), PATIENCE_S)
        if rest:
            answer = partition_of(parse_response(PRODUCE, 9, memoryview(rest)[4:])[1])
            assert answer.error_code in (0, ErrorCode.KAFKA_STORAGE_ERROR), (
                "answered, or refused so that it is retried"
            )
        assert await asyncio.wait_for(client.reader.read(), PATIENCE_S) == b""
        other.writer.close()


async def test_service_that_fails_ends_the_broker_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Folder) -> None:
        raise Unusable("the folder found the disk on fire")

    monkeypatch.setattr(Folder, "tick", fail)
    kit = Kit(tmp_path)
    with pytest.raises(Unusable, match="on fire"):
        await asyncio.wait_for(kit.serve(), PATIENCE_S)
    (error,) = [line for line in kit.lines() if line["level"] == "error"]
    assert error["service"] == "folder" and "on fire" in error["error"]


async def test_broker_that_is_told_to_stop_while_it_starts_ends_without_having_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.Event()

    async def wait_for_a_predecessor(*_: object, **__: object) -> Membership:
        waiting.set()
        await asyncio.Event().wait()
        raise AssertionError("never")

    monkeypatch.setattr(Membership, "join", wait_for_a_predecessor)
    kit = Kit(tmp_path)
    running = asyncio.create_task(kit.serve())
    await asyncio.wait_for(waiting.wait(), PATIENCE_S)
    kit.stopping.set()
    await asyncio.wait_for(running, PATIENCE_S)
    assert not kit.addresses.done()
    monkeypatch.undo()
    async with Kit(tmp_path).serving() as client:
        await client.ask(API_VERSIONS, 3, ApiVersionsRequest())


@pytest.mark.parametrize("key", ["listeners", "http.listen"])
async def test_address_that_is_taken_is_told_and_nothing_is_left_behind(tmp_path: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Unusable, match="cannot listen"):
        await asyncio.wait_for(Kit(tmp_path, f"{key}=127.0.0.1:{taken.getsockname()[1]}").serve(), PATIENCE_S)
    async with Kit(tmp_path).serving() as client:
        await client.ask(API_VERSIONS, 3, ApiVersionsRequest())


async def test_second_process_with_the_same_node_id_is_refused(tmp_path: Path) -> None:
    async with Kit(tmp_path).serving():
        with pytest.raises(Invalid):
            await asyncio.wait_for(Kit(tmp_path).serve(), PATIENCE_S)


async def test_every_step_of_the_end_is_taken_though_others_fail_and_the_first_failure_is_what_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    drain, close, stop_http = KafkaServer.drain, LogWriter.close, HttpServer.stop

    async def fail_to_drain(self: KafkaServer, limit_s: float) -> None:
        taken.append("drain")
        await drain(self, limit_s)
        raise OSError("drain failed")

    async def note_close(self: LogWriter) -> None:
        taken.append("close")
        await close(self)

    async def note_stop(self: HttpServer) -> None:
        taken.append("http")
        await stop_http(self)

    async def fail(self: Folder) -> None:
        raise Unusable("what failed first")

    monkeypatch.setattr(KafkaServer, "drain", fail_to_drain)
    monkeypatch.setattr(LogWriter, "close", note_close)
    monkeypatch.setattr(HttpServer, "stop", note_stop)
    monkeypatch.setattr(Folder, "tick", fail)
    kit = Kit(tmp_path)
    with pytest.raises(Unusable, match="what failed first"):
        await asyncio.wait_for(kit.serve(), PATIENCE_S)
    assert taken == ["drain", "close", "http"]
    assert "drain failed" in kit.written.getvalue()


async def test_failure_to_stop_is_told_where_nothing_else_had_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Broker.stop

    async def fail(self: Broker) -> None:
        await stop(self)
        raise Unusable("could not stop")

    monkeypatch.setattr(Broker, "stop", fail)
    with pytest.raises(Unusable, match="could not stop"):
        async with Kit(tmp_path).serving():
            pass


async def test_side_port_tells_whether_the_broker_is_ready(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    async with kit.serving():
        http = kit.addresses.result().http
        reader, writer = await asyncio.open_connection(http.host, http.port)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200")


async def test_the_web_server_is_not_loaded_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded_by: list[threading.Thread] = []
    monkeypatch.setattr(serving, "load_http", lambda: loaded_by.append(threading.current_thread()))
    async with Kit(tmp_path).serving():
        pass
    assert len(loaded_by) == 1 and loaded_by[0] is not threading.current_thread()
