"""Damage to requests, as a fuzzer does it: from a seed, so that every run can be had again."""

import random
from collections.abc import Callable, Sequence
from struct import pack, pack_into, unpack_from

from crc32c import crc32c

from headrace.handlers.table import TABLE
from headrace.wire.headers import encode_request
from headrace.wire.messages import (
    CreateTopicsRequest,
    FetchRequest,
    InitProducerIdRequest,
    Message,
    ProduceRequest,
)
from headrace.wire.schema import apis
from tests.integration.wire.batches import batch, old_message
from tests.integration.wire.lengths import lengths_of
from tests.integration.wire.raw import CREATE_TOPICS, FETCH, PRODUCE
from tests.integration.wire.templates import SIZE_BYTES, templates

CLIENT = "fuzz"
INIT_PRODUCER_ID = 22
_NEW_TOPIC = CreateTopicsRequest.CreatableTopic(
    name="made",
    num_partitions=2,
    replication_factor=1,
    configs=[CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="1000")],
)
CORRELATION_AT = 4
BODY_AT = 8
CRC_AT, CHECKED_FROM = 17, 21

SHARE_OF_VALUES = 0.8
SHARE_OF_TEXTS = 0.2
SHARE_OF_HEADERS = 0.1
SHARE_OF_MENDED = 0.5

NUMBERS = (0, 1, -1, -2, 127, 128, 255, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
VARINTS = (
    b"\0",
    b"\x01",
    b"\x7f",
    b"\xff\x01",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\x80" * 9 + b"\x01",
)


def seeds(topic: str, topic_id: bytes, *, partitions: int) -> list[bytes]:
    """Return sound requests without their sizes: every API and version, and more of what carries records."""
    # Nearly every change to the bytes of a letter beyond ASCII ends as "no text", before it reaches a handler.
    found = [
        template.payload.replace("ü".encode(), b"uu").replace("é".encode(), b"ee")
        for seed in (11, 12)
        for template in templates(seed=seed)
    ]
    records = [
        batch([b"a", None, b"ccc"]),
        batch([b"x" * 300], producer=(1, 0, 0)),
        batch([b"y"], key=None, attributes=1, body=b"\x1f\x8b no gzip"),
    ]
    for version in range(TABLE[PRODUCE].first_version, TABLE[PRODUCE].last_version + 1):
        data = records[version % len(records)] if version > 2 else old_message(b"old", magic=version % 2)
        found.append(_produce(version, topic, topic_id, data, partitions))
    for version in range(TABLE[FETCH].first_version, TABLE[FETCH].last_version + 1):
        found.append(_fetch(version, topic, topic_id, partitions))
    for version in range(TABLE[INIT_PRODUCER_ID].first_version, TABLE[INIT_PRODUCER_ID].last_version + 1):
        found.append(_payload(INIT_PRODUCER_ID, version, InitProducerIdRequest(transactional_id=None)))
    # What random requests ask for is refused: these make topics, with whatever name is left of this one.
    for version in range(TABLE[CREATE_TOPICS].first_version, TABLE[CREATE_TOPICS].last_version + 1):
        found.append(_payload(CREATE_TOPICS, version, CreateTopicsRequest(topics=[_NEW_TOPIC], timeout_ms=1000)))
    return found


def _produce(version: int, topic: str, topic_id: bytes, data: bytes, partitions: int) -> bytes:
    by_id = version >= 13
    message = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                **({"topic_id": topic_id} if by_id else {"name": topic}),
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=index, records=memoryview(data))
                    for index in range(partitions)
                ],
            )
        ],
    )
    return _payload(PRODUCE, version, message)


def _fetch(version: int, topic: str, topic_id: bytes, partitions: int) -> bytes:
    by_id = version >= 13
    message = FetchRequest(
        max_wait_ms=1,
        min_bytes=1,
        max_bytes=100_000 if version >= 3 else 2**31 - 1,
        topics=[
            FetchRequest.FetchTopic(
                **({"topic_id": topic_id} if by_id else {"topic": topic}),
                partitions=[
                    FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=10_000)
                    for index in range(partitions)
                ],
            )
        ],
    )
    return _payload(FETCH, version, message)


def _payload(api_key: int, version: int, message: Message) -> bytes:
    return encode_request(api_key, version, 7, CLIENT, message)[SIZE_BYTES:]


class Mutator:
    """Makes damaged requests out of sound ones."""

    def __init__(self, sound: Sequence[bytes], seed: int) -> None:
        self._sound = sound
        self._places = [_Places(payload) for payload in sound]
        self._chance = random.Random(seed)
        self._ways: tuple[Callable[[bytearray, int], None], ...] = (
            self._flip,
            self._number,
            self._varint,
            self._delete,
            self._insert,
            self._repeat,
            self._cut,
            self._splice,
        )

    def frame(self, correlation_id: int) -> bytes:
        """Return one whole frame, which bears this id unless it is too short for any."""
        chance = self._chance
        which = chance.randrange(len(self._sound))
        data = bytearray(self._sound[which])
        if chance.random() < SHARE_OF_VALUES:
            self._damage_values(data, self._places[which])
        else:
            # Damage in the header ends at the door, so there is less of that.
            first = 0 if chance.random() < SHARE_OF_HEADERS else BODY_AT
            for _ in range(chance.choice((1, 1, 2, 3))):
                chance.choice(self._ways)(data, chance.randrange(min(first, len(data)), len(data) + 1))
        if chance.random() < SHARE_OF_MENDED:
            _mend_batches(data)
        if len(data) >= BODY_AT:
            pack_into(">i", data, CORRELATION_AT, correlation_id)
        return pack(">i", len(data)) + data

    def _damage_values(self, data: bytearray, places: "_Places") -> None:
        """Change values and leave lengths alone: such a request can be read, and reaches its handler."""
        chance = self._chance
        for _ in range(chance.choice((1, 1, 2, 4))):
            if places.texts and chance.random() < SHARE_OF_TEXTS:
                at = chance.choice(places.texts)
                data[at] ^= 1 << chance.randrange(7)  # it stays ASCII
            elif places.numbers:
                at, size = chance.choice(places.numbers), chance.choice((1, 2, 4, 8))
                if chance.random() < 0.5 or at + size - 1 not in places.all_numbers:
                    self._flip(data, at)
                else:
                    self._overwrite(data, at, size)

    def _overwrite(self, data: bytearray, at: int, size: int) -> None:
        number = self._chance.choice(NUMBERS) & (1 << 8 * size) - 1
        data[at : at + size] = number.to_bytes(size, "big")

    def _flip(self, data: bytearray, at: int) -> None:
        if at < len(data):
            data[at] ^= 1 << self._chance.randrange(8)

    def _number(self, data: bytearray, at: int) -> None:
        self._overwrite(data, at, self._chance.choice((1, 2, 4, 8)))

    def _varint(self, data: bytearray, at: int) -> None:
        data[at : at + 1] = self._chance.choice(VARINTS)

    def _delete(self, data: bytearray, at: int) -> None:
        del data[at : at + self._chance.randrange(1, 20)]

    def _insert(self, data: bytearray, at: int) -> None:
        data[at:at] = self._chance.randbytes(self._chance.randrange(1, 20))

    def _repeat(self, data: bytearray, at: int) -> None:
        data[at:at] = data[at : at + self._chance.randrange(1, 100)] * self._chance.randrange(1, 4)

    def _cut(self, data: bytearray, at: int) -> None:
        del data[at:]

    def _splice(self, data: bytearray, at: int) -> None:
        other = self._chance.choice(self._sound)
        data[at:] = other[self._chance.randrange(len(other)) :]


class _Places:
    """Where in a request texts stand, and where everything else that is no length."""

    def __init__(self, payload: bytes) -> None:
        api_key, version = unpack_from(">hh", payload)
        lengths = lengths_of(apis()[api_key], version, payload)
        taken = {at for one in lengths for at in range(one.start_byte, one.end_byte)}
        strings = [one for one in lengths if one.kind == "string"]
        self.texts = [at for one in strings for at in range(one.end_byte, one.end_byte + one.content_bytes)]
        taken.update(self.texts)
        self.numbers = [at for at in range(BODY_AT, len(payload)) if at not in taken]
        self.all_numbers = frozenset(self.numbers)


def _mend_batches(data: bytearray) -> None:
    """Give what looks like a batch a right CRC, so that damage inside is not stopped by it."""
    at = data.find(b"\xff\xff\xff\xff\x02")
    start = at - 12
    if at < 12:
        return
    size = int.from_bytes(data[start + 8 : start + 12], "big", signed=True) + 12
    if CHECKED_FROM < size <= len(data) - start:
        pack_into(">I", data, start + CRC_AT, crc32c(bytes(data[start + CHECKED_FROM : start + size])))
