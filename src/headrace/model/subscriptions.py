"""What consumers tell each other inside group messages: which topics a member wants, and which partitions it gets.

To the classic protocol these are opaque bytes: one member, the leader, reads all subscriptions and writes all
assignments. A coordinator reads them all the same, to know whose offsets are in use, to show a group, and to move a
group between the classic and the consumer protocol.

    subscription   version, topics, user data; from 1 owned partitions; from 2 generation id; from 3 rack
    assignment     version, partitions, user data; the same in every version

Both begin with a version. As Apache Kafka does, a newer version than we know is read as the newest that we know, and
bytes behind the last field are passed over: newer versions only add fields at the end. User data belongs to the
assignor of the client and is never looked into.

Must stay true: whatever the bytes are, decoding ends in a value or in `Invalid`, and takes no more memory than a
small multiple of them.
"""

from dataclasses import dataclass
from struct import Struct, pack, unpack_from
from typing import TypeAlias

from headrace.errors import Invalid

LAST_VERSION = 3
"""The newest version of both that is known here."""

MAX_ELEMENTS = 1 << 18
"""How many topics and partitions one value may name. An element of four bytes costs some fifty in memory."""

NO_GENERATION = -1

TopicPartitions: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""Partitions by topic, in the order in which they were written. A topic may be there twice."""

_INT16 = Struct(">h")
_INT32 = Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What one member wants, and what it holds.

    `owned` is what the member was consuming when it joined, as of `generation_id`; only cooperative and sticky
    assignors look at it. `user_data` and `rack` are `None` where the member sent none.
    """

    topics: tuple[str, ...] = ()
    user_data: bytes | None = None
    owned: TopicPartitions = ()
    generation_id: int = NO_GENERATION
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one member gets."""

    partitions: TopicPartitions = ()
    user_data: bytes | None = None


def decode_version(raw: bytes) -> int:
    """Return the version that a subscription or assignment is read as, from 0 to `LAST_VERSION`.

    An assignment is written in the version of its member's subscription. Raises `Invalid` if there is none.
    """
    return _Reader(raw, "subscription or assignment").version()


def decode_subscription(raw: bytes) -> Subscription:
    """Read a subscription. Raises `Invalid` for anything that is not one."""
    reader = _Reader(raw, "subscription")
    version = reader.version()
    return Subscription(
        topics=tuple(reader.string() for _ in range(reader.count("topics", least_bytes=2))),
        user_data=reader.nullable_bytes(),
        owned=reader.partitions() if version >= 1 else (),
        generation_id=reader.int32() if version >= 2 else NO_GENERATION,
        rack=reader.nullable_string() if version >= 3 else None,
    )


def decode_assignment(raw: bytes) -> Assignment:
    """Read an assignment. Raises `Invalid` for anything that is not one.

    No bytes at all are the empty assignment: a coordinator hands them to whom the leader has named nothing for.
    """
    if not raw:
        return Assignment()
    reader = _Reader(raw, "assignment")
    reader.version()
    return Assignment(partitions=reader.partitions(), user_data=reader.nullable_bytes())


def encode_subscription(value: Subscription, version: int) -> bytes:
    """Write a subscription; fields that the version does not have are left out."""
    parts = [_version(version), _INT32.pack(len(value.topics)), *map(_string, value.topics)]
    parts.append(_nullable_bytes(value.user_data))
    if version >= 1:
        parts.append(_partitions(value.owned))
    if version >= 2:
        parts.append(_INT32.pack(value.generation_id))
    if version >= 3:
        parts.append(_INT16.pack(-1) if value.rack is None else _string(value.rack))
    return b"".join(parts)


def encode_assignment(value: Assignment, version: int) -> bytes:
    """Write an assignment."""
    return b"".join((_version(version), _partitions(value.partitions), _nullable_bytes(value.user_data)))


def _version(version: int) -> bytes:
    assert 0 <= version <= LAST_VERSION, f"version {version} is not known here"
    return _INT16.pack(version)


def _string(text: str) -> bytes:
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def _nullable_bytes(raw: bytes | None) -> bytes:
    return _INT32.pack(-1) if raw is None else _INT32.pack(len(raw)) + raw


def _partitions(named: TopicPartitions) -> bytes:
    parts = [_INT32.pack(len(named))]
    for topic, partitions in named:
        parts += _string(topic), pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return b"".join(parts)


class _Reader:
    """Reads one value from its first byte on. Every length is compared with what is left before it is believed."""

    __slots__ = ("_elements_left", "_kind", "_place", "_raw")

    def __init__(self, raw: bytes, kind: str) -> None:
        self._raw = raw
        self._kind = kind
        self._place = 0
        self._elements_left = MAX_ELEMENTS

    def version(self) -> int:
        version = self._number(_INT16)
        if version < 0:
            raise Invalid(f"a {self._kind} has version {version}: the first one is 0")
        return min(version, LAST_VERSION)

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise self._broken("a string is null")
        return text

    def nullable_string(self) -> str | None:
        raw = self._sized(self._number(_INT16), "string")
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError as error:
            raise self._broken("a string is not UTF-8") from error

    def nullable_bytes(self) -> bytes | None:
        return self._sized(self.int32(), "run")

    def partitions(self) -> TopicPartitions:
        # The least is an empty name and an empty array.
        return tuple((self.string(), self._numbers()) for _ in range(self.count("topics", least_bytes=6)))

    def count(self, what: str, *, least_bytes: int) -> int:
        """Read how many elements follow, none of which can be shorter than `least_bytes`."""
        count = self.int32()
        if count < 0 or count * least_bytes > self._left_bytes:
            raise self._broken(f"it promises {count} {what} in {self._left_bytes} bytes")
        self._elements_left -= count
        if self._elements_left < 0:
            raise self._broken(f"it names more than {MAX_ELEMENTS} topics and partitions")
        return count

    def int32(self) -> int:
        return self._number(_INT32)

    def _numbers(self) -> tuple[int, ...]:
        count = self.count("partitions", least_bytes=_INT32.size)
        numbers: tuple[int, ...] = unpack_from(f">{count}i", self._raw, self._place)
        self._place += count * _INT32.size
        return numbers

    def _number(self, layout: Struct) -> int:
        if layout.size > self._left_bytes:
            raise self._broken(f"a number of {layout.size} bytes in {self._left_bytes}")
        number: int = layout.unpack_from(self._raw, self._place)[0]
        self._place += layout.size
        return number

    def _sized(self, size_bytes: int, what: str) -> bytes | None:
        """Return the next bytes, or `None` for the size of −1 that stands for null."""
        if size_bytes == -1:
            return None
        if not 0 <= size_bytes <= self._left_bytes:
            raise self._broken(f"a {what} of {size_bytes} bytes in {self._left_bytes}")
        start = self._place
        self._place += size_bytes
        return self._raw[start : self._place]

    @property
    def _left_bytes(self) -> int:
        return len(self._raw) - self._place

    def _broken(self, what: str) -> Invalid:
        return Invalid(f"a {self._kind} of {len(self._raw)} bytes is broken at byte {self._place}: {what}")
