"""Connections to a broker that carry Kafka frames, and the way from a group's name to its coordinator."""

import asyncio
import contextlib
import itertools
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from headrace.model.error_codes import ErrorCode
from headrace.wire.headers import SIZE_BYTES, encode_request, parse_response
from headrace.wire.messages import FindCoordinatorRequest, Message, MetadataRequest, MetadataResponse

CLIENT_ID = "groups-beside-kafka"
METADATA_KEY, METADATA_VERSION = 3, 12
FIND_COORDINATOR_KEY, FIND_COORDINATOR_VERSION = 10, 4
LOOK_UP_LIMIT_SECONDS = 60.0
LOOK_UP_PAUSE_SECONDS = 0.1

Address = tuple[str, int]

_SIZE = struct.Struct(">i")
_NOT_YET = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


class Connection(asyncio.Protocol):
    """One connection. Requests may be pipelined; a broker answers them in order."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._correlation_ids = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= SIZE_BYTES:
            (size,) = _SIZE.unpack_from(self._received)
            if len(self._received) < SIZE_BYTES + size:
                return
            frame = bytes(self._received[SIZE_BYTES : SIZE_BYTES + size])
            del self._received[: SIZE_BYTES + size]
            correlation_id, answer = self._waiting.popleft()
            if _SIZE.unpack_from(frame)[0] != correlation_id:
                answer.set_exception(ConnectionError("an answer came out of order"))
            elif not answer.done():
                answer.set_result(frame)

    def connection_lost(self, error: Exception | None) -> None:
        while self._waiting:
            _, answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(ConnectionError(f"the broker closed the connection: {error}"))
        if not self._lost.done():
            self._lost.set_result(None)

    async def ask(self, api_key: int, version: int, request: Message) -> Any:
        """Send a request and return its answer."""
        frame = await self.exchange(
            lambda correlation_id: encode_request(api_key, version, correlation_id, CLIENT_ID, request)
        )
        return parse_response(api_key, version, memoryview(frame))[1]

    def exchange(self, encode: Callable[[int], bytes]) -> "asyncio.Future[bytes]":
        """Send the frame that `encode` makes of a correlation id; the future has the answer without its size."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("the connection is closed")
        correlation_id = next(self._correlation_ids)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting.append((correlation_id, answer))
        self._transport.write(encode(correlation_id))
        return answer

    async def close(self) -> None:
        """Close it and wait until it is."""
        if self._transport is not None:
            self._transport.close()
            await self._lost


async def connect(address: Address) -> Connection:
    """Open a connection."""
    _, connection = await asyncio.get_running_loop().create_connection(Connection, *address)
    return connection


class Network:
    """What clients know of the cluster: one connection for questions, and the coordinators they led to."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = (host, int(port))
        self._questions: Connection | None = None
        self._coordinators: dict[str, Address] = {}

    async def open(self) -> None:
        """Connect to the broker that was named."""
        self._questions = await connect(self._address)

    async def close(self) -> None:
        """Close the connection for questions."""
        if self._questions is not None:
            await self._questions.close()

    async def topic(self, name: str) -> tuple[bytes, int]:
        """Return the topic's id and how many partitions it has, as soon as the broker knows it."""
        assert self._questions is not None
        request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
        async with asyncio.timeout(LOOK_UP_LIMIT_SECONDS):
            while True:
                answer: MetadataResponse = await self._questions.ask(METADATA_KEY, METADATA_VERSION, request)
                (topic,) = answer.topics
                if topic.error_code == ErrorCode.NONE and topic.partitions:
                    return topic.topic_id, len(topic.partitions)
                await asyncio.sleep(LOOK_UP_PAUSE_SECONDS)

    async def find_coordinator(self, group_id: str) -> Address:
        """Ask who coordinates the group, until somebody does, and remember it."""
        assert self._questions is not None
        request = FindCoordinatorRequest(coordinator_keys=[group_id])
        async with asyncio.timeout(LOOK_UP_LIMIT_SECONDS):
            while True:
                answer = await self._questions.ask(FIND_COORDINATOR_KEY, FIND_COORDINATOR_VERSION, request)
                (found,) = answer.coordinators
                if found.error_code == ErrorCode.NONE:
                    self._coordinators[group_id] = (found.host, found.port)
                    return found.host, found.port
                if found.error_code not in _NOT_YET:
                    raise ConnectionError(f"no coordinator for {group_id}: error {found.error_code}")
                await asyncio.sleep(LOOK_UP_PAUSE_SECONDS)

    async def connect_to_coordinator(self, group_id: str) -> Connection:
        """Open a connection to the group's coordinator, as last heard."""
        address = self._coordinators.get(group_id) or await self.find_coordinator(group_id)
        return await connect(address)


@contextlib.asynccontextmanager
async def open_network(bootstrap: str) -> AsyncIterator[Network]:
    """Open the network and close it in the end."""
    network = Network(bootstrap)
    await network.open()
    try:
        yield network
    finally:
        await network.close()
