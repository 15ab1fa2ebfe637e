"""What goes in and what must come out again, whichever client carries it."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

CREATE_TIME = 0
LOG_APPEND_TIME = 1

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

CALL_LIMIT_SECONDS = 120.0
"""How long any one thing that a client does may take on a machine that is busy with something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One record as a producer hands it to its client."""

    partition: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 1_700_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One record as a consumer gets it."""

    offset: int
    message: Message
    timestamp_type: int = CREATE_TIME


class Failed(Exception):
    """A client was refused. `code` is Kafka's, or negative for one of the client's own."""

    def __init__(self, code: int, told: object) -> None:
        super().__init__(f"{told} (code {code})")
        self.code = code


class Client(Protocol):
    """A client library, reduced to what it has in common with the others."""

    name: str
    sends_null_headers: bool
    """Whether its producer takes a header without a value, as the protocol does."""

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        idempotent: bool = False,
        max_request_bytes: int = 1_048_588,
    ) -> list[int]:
        """Send all messages with acks=all and return their offsets, in order. Raises `Failed`."""
        ...

    def read(self, bootstrap: str, topic: str, ends: Mapping[int, int]) -> dict[int, list[Stored]]:
        """Return, for each partition, everything from the beginning up to its end offset (exclusive)."""
        ...


def assorted(partition: int, *, null_headers: bool, large_bytes: int = 300_000) -> list[Message]:
    """Return messages of every shape that a record can have, sizes from nothing to large."""
    no_value = None if null_headers else b""
    rng = random.Random(partition)
    times = (rng.randrange(1_600_000_000_000, 1_700_000_000_000) for _ in range(1_000_000))
    shapes = [
        Message(key=None, value=b""),
        Message(key=b"", value=None),
        Message(key=b"", value=b""),
        Message(key=b"k", value=None, headers=(("h", no_value),)),
        Message(key=None, value=b"v", headers=(("same", b"1"), ("same", b"2"), ("same", b"1"), ("", b""))),
        Message(key="schlüssel".encode(), value="wärt 🌊".encode(), headers=(("größe", "µ".encode()),)),
        Message(key=rng.randbytes(3), value=rng.randbytes(7), headers=(("null", no_value), ("null", b"\x00"))),
        Message(key=b"\x00" * 100, value=b"\xff" * 5000, headers=tuple((str(n), b"x" * n) for n in range(50))),
    ]
    sizes = [1, 2, 63, 64, 127, 128, 1000, 8191, 8192, 16_384, 65_535, large_bytes]
    shapes += [Message(key=b"%d" % size, value=rng.randbytes(size)) for size in sizes]
    shapes += [Message(key=b"wide" * 300, value=b"squeeze me " * (large_bytes // 11))]
    return [replace(shape, partition=partition, timestamp_ms=at) for shape, at in zip(shapes, times, strict=False)]


def as_stored(messages: Iterable[Message]) -> dict[int, list[Stored]]:
    """Return what a topic must hold that got exactly these messages."""
    stored: dict[int, list[Stored]] = {}
    for message in messages:
        partition = stored.setdefault(message.partition, [])
        partition.append(Stored(offset=len(partition), message=message))
    return stored


def ends_of(stored: Mapping[int, Sequence[Stored]]) -> dict[int, int]:
    """Return the end offset of each partition."""
    return {partition: rows[-1].offset + 1 for partition, rows in stored.items() if rows}


class Gathered:
    """Collects what is read until every partition has reached its end."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self.rows: dict[int, list[Stored]] = {partition: [] for partition in ends}
        self._ends = ends
        self._open = {partition for partition, end in ends.items() if end > 0}

    @property
    def is_complete(self) -> bool:
        return not self._open

    def add(self, row: Stored) -> None:
        """Take a row; what lies behind the end was not asked for."""
        partition = row.message.partition
        if row.offset < self._ends[partition]:
            self.rows[partition].append(row)
        if row.offset + 1 >= self._ends[partition]:
            self._open.discard(partition)

    def __str__(self) -> str:
        found = {partition: len(rows) for partition, rows in self.rows.items() if partition in self._open}
        return f"partitions that have not reached their end, and how many rows they have: {found}"


def stored_of(row: Any) -> Stored:
    """Return a row of aiokafka or of kafka-python, which share their ancestors and their names."""
    return Stored(
        offset=row.offset,
        message=Message(
            partition=row.partition,
            key=row.key,
            value=row.value,
            headers=tuple(row.headers),
            timestamp_ms=row.timestamp,
        ),
        timestamp_type=row.timestamp_type,
    )
