"""A Kafka client of a few dozen lines that knows nothing of our codec: frames are packed by hand, byte by byte.

So a mistake that reader and writer of the codec share cannot hide here, and requests can be as wrong as they like.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct, pack

TIMEOUT_SECONDS = 120.0
"""No test measures time: this only ends one that would wait for ever."""

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18
CREATE_TOPICS, DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS = 19, 20, 44

_SIZE = Struct(">i")
_TOPIC_RESOURCE = 2
_SET = 0


def framed(payload: bytes) -> bytes:
    """Put the size in front of a request."""
    return _SIZE.pack(len(payload)) + payload


def request(
    api_key: int, version: int, body: bytes, *, correlation_id: int = 7, client: bytes = b"raw", tags: bytes = b""
) -> bytes:
    """Return a whole frame. `tags` is what a flexible header ends with: one zero byte."""
    return framed(pack(">hhih", api_key, version, correlation_id, len(client)) + client + tags + body)


def text(value: str | bytes) -> bytes:
    """Return a string in the old encoding."""
    data = value.encode() if isinstance(value, str) else value
    return pack(">h", len(data)) + data


def array(items: Sequence[bytes]) -> bytes:
    """Return an array in the old encoding."""
    return pack(">i", len(items)) + b"".join(items)


def varint(value: int) -> bytes:
    """Return an unsigned varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


class Cursor:
    """Reads an answer from its beginning on."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size_bytes: int) -> bytes:
        taken = self.data[self.position : self.position + size_bytes]
        assert len(taken) == size_bytes, "the answer ends too early"
        self.position += size_bytes
        return taken

    def number(self, size_bytes: int) -> int:
        return int.from_bytes(self.take(size_bytes), "big", signed=True)

    def text(self) -> str | None:
        size_bytes = self.number(2)
        return None if size_bytes < 0 else self.take(size_bytes).decode()

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def end(self) -> None:
        """Nothing may stand behind what was read."""
        assert self.position == len(self.data), f"{len(self.data) - self.position} bytes are left of the answer"


@dataclass(frozen=True, slots=True)
class Produced:
    """What one partition of a Produce answer says."""

    code: int
    base_offset: int
    message: str | None = None


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """What one partition of a Fetch answer says."""

    code: int
    high_watermark: int
    records: bytes


class RawClient:
    """One connection."""

    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pushed_back = b""

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def name(self) -> str:
        """How the broker's log names this connection."""
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, size_bytes: int) -> bytes:
        """Return exactly so many bytes; raise `ConnectionError` if the broker has closed before."""
        parts = bytearray(self._pushed_back[:size_bytes])
        self._pushed_back = self._pushed_back[size_bytes:]
        while len(parts) < size_bytes:
            part = self.socket.recv(min(size_bytes - len(parts), 1 << 20))
            if not part:
                raise ConnectionError("the broker has closed the connection")
            parts += part
        return bytes(parts)

    def push_back(self, data: bytes) -> None:
        """Let these bytes be received next."""
        self._pushed_back = data + self._pushed_back

    def receive_frame(self) -> bytes:
        """Return the next answer without its size."""
        (size_bytes,) = _SIZE.unpack(self.receive(_SIZE.size))
        return self.receive(size_bytes)

    def answer(self, *, correlation_id: int = 7, tags: bytes = b"") -> Cursor:
        """Return the next answer, behind its header, which must bear this id."""
        cursor = Cursor(self.receive_frame())
        assert cursor.number(4) == correlation_id
        assert cursor.take(len(tags)) == tags
        return cursor

    def rest(self) -> bytes:
        """Return what still comes until the broker closes, in whatever way it does."""
        parts = bytearray()
        try:
            while part := self.socket.recv(1 << 16):
                parts += part
        except ConnectionError:
            pass
        return bytes(parts)

    def send_request(self, api_key: int, version: int, body: bytes) -> None:
        """Send a request in the old encoding."""
        self.send(request(api_key, version, body))

    def ask(self, api_key: int, version: int, body: bytes) -> Cursor:
        """Send a request in the old encoding and return its answer."""
        self.send_request(api_key, version, body)
        return self.answer()

    # The few requests that most tests need

    def create_topic(self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic that was not there."""
        assert self.try_create(new_topic(name, partitions=partitions, configs=configs)) == [(name, 0)]

    def try_create(self, *topics: bytes, validate_only: bool = False) -> list[tuple[str | None, int]]:
        """Send CreateTopics v4; return names and codes."""
        answer = self.ask(CREATE_TOPICS, 4, array(topics) + pack(">i?", 60_000, validate_only))
        answer.take(4)
        results = []
        for _ in range(answer.number(4)):
            results.append((answer.text(), answer.number(2)))
            answer.text()
        answer.end()
        return results

    def set_config(self, topic: str, name: str, value: str) -> int:
        """Set one config of a topic; return the code."""
        configs = array([text(name) + pack(">b", _SET) + text(value)])
        body = array([pack(">b", _TOPIC_RESOURCE) + text(topic) + configs]) + b"\0"
        answer = self.ask(INCREMENTAL_ALTER_CONFIGS, 0, body)
        answer.take(8)
        return answer.number(2)

    def produce(
        self, topic: str | bytes, records: Mapping[int, bytes | None], *, version: int = 8, acks: int = -1
    ) -> dict[int, Produced]:
        """Send record batches by partition; return what each partition answers."""
        self.send(produce_request(topic, records, version=version, acks=acks))
        return self.produced(version)

    def produced(self, version: int = 8, *, correlation_id: int = 7) -> dict[int, Produced]:
        """Read the answer to a Produce request for one topic."""
        answer = self.answer(correlation_id=correlation_id)
        assert answer.number(4) == 1
        answer.text()
        results = {}
        for _ in range(answer.number(4)):
            index, code, offset = answer.number(4), answer.number(2), answer.number(8)
            answer.take(8 * ((version >= 2) + (version >= 5)))
            message = None
            if version >= 8:
                for _ in range(answer.number(4)):
                    answer.take(4)
                    answer.text()
                message = answer.text()
            results[index] = Produced(code, offset, message)
        return results

    def fetch(self, topic: str, partition: int, offset: int, **limits: int) -> FetchedPartition:
        """Fetch one partition with version 4."""
        self.send(fetch_request(topic, partition, offset, **limits))
        return self.fetched()

    def fetched(self) -> FetchedPartition:
        """Read the answer to a Fetch v4 of one partition."""
        answer = self.answer()
        answer.take(4)
        assert answer.number(4) == 1
        answer.text()
        assert answer.number(4) == 1
        answer.take(4)
        code, high_watermark, _last_stable = answer.number(2), answer.number(8), answer.number(8)
        aborted = answer.number(4)
        assert aborted <= 0
        records = answer.take(max(answer.number(4), 0))
        answer.end()
        return FetchedPartition(code, high_watermark, records)

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """Return where a partition ends now."""
        asked = pack(">i", -1) + array([text(topic) + array([pack(">iq", partition, -1)])])
        answer = self.ask(LIST_OFFSETS, 1, asked)
        assert answer.number(4) == 1
        answer.text()
        assert answer.number(4) == 1
        answer.take(4)
        assert answer.number(2) == 0
        answer.take(8)
        return answer.number(8)


def new_topic(
    name: str | bytes, *, partitions: int = 1, factor: int = 1, configs: Mapping[str, str] | None = None
) -> bytes:
    """Return one topic of a CreateTopics request of the old encoding."""
    settings = [text(key) + text(value) for key, value in (configs or {}).items()]
    return text(name) + pack(">ih", partitions, factor) + array([]) + array(settings)


def produce_request(
    topic: str | bytes,
    records: Mapping[int, bytes | None],
    *,
    version: int = 8,
    acks: int = -1,
    correlation_id: int = 7,
) -> bytes:
    """Return a Produce request of the old encoding (0–8)."""
    data = [
        pack(">ii", index, -1 if batch is None else len(batch)) + (batch or b"") for index, batch in records.items()
    ]
    body = (pack(">h", -1) if version >= 3 else b"") + pack(">hi", acks, 60_000)
    return request(PRODUCE, version, body + array([text(topic) + array(data)]), correlation_id=correlation_id)


def fetch_request(
    topic: str,
    partition: int,
    offset: int,
    *,
    max_bytes: int = 1 << 26,
    partition_max_bytes: int = 1 << 26,
    min_bytes: int = 0,
    max_wait_ms: int = 0,
    correlation_id: int = 7,
) -> bytes:
    """Return a Fetch request of version 4."""
    body = pack(">iiiib", -1, max_wait_ms, min_bytes, max_bytes, 0)
    wanted = array([pack(">iqi", partition, offset, partition_max_bytes)])
    return request(FETCH, 4, body + array([text(topic) + wanted]), correlation_id=correlation_id)


def list_offsets_request(topic: str, timestamps: Sequence[int], *, version: int = 11) -> bytes:
    """Return a flexible ListOffsets request (6–11) for a time per partition, from partition 0 on."""
    wanted = b"".join(pack(">iiqb", index, -1, time_ms, 0) for index, time_ms in enumerate(timestamps))
    topics = varint(2) + varint(len(topic) + 1) + topic.encode() + varint(len(timestamps) + 1) + wanted + b"\0"
    body = pack(">ib", -1, 0) + topics + (pack(">i", 60_000) if version >= 10 else b"") + b"\0"
    return request(LIST_OFFSETS, version, body, tags=b"\0")


def listed_offsets(client: RawClient) -> list[tuple[int, int, int]]:
    """Read the answer to it: code, timestamp and offset of each partition, in order."""
    answer = client.answer(tags=b"\0")
    answer.take(4)
    assert answer.varint() == 2
    answer.take(answer.varint() - 1)
    results = {}
    for _ in range(answer.varint() - 1):
        index = answer.number(4)
        results[index] = answer.number(2), answer.number(8), answer.number(8)
        answer.take(5)
    answer.take(2)
    answer.end()
    return [results[index] for index in sorted(results)]
