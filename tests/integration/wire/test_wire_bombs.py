"""Compressed bodies that explode, lie or are broken, on topics of every kind.

Wherever a batch is opened (on its way in, for another compression, compaction by key, old readers, look-ups by time),
what comes out is bounded by decompression.max.bytes, and whoever sent it hears why it was refused.
"""

import zlib
from collections.abc import Iterator
from struct import pack

import cramjam
import lz4.frame
import pytest
import zstandard

from tests.integration.wire.batches import GZIP, LZ4, SNAPPY, ZSTD, batch, old_message, record, values_of
from tests.integration.wire.raw import (
    FETCH,
    Produced,
    RawClient,
    array,
    list_offsets_request,
    listed_offsets,
    text,
    varint,
)
from tests.integration.wire.watching import MIB, forget_peak, mistakes, peak_memory_bytes
from tests.servers.headrace import HeadraceProcess, running_headrace

NONE, CORRUPT_MESSAGE, TOO_LARGE, UNSUPPORTED_COMPRESSION, INVALID_RECORD = 0, 2, 10, 76, 87
LIMIT_BYTES = 8 * MIB
BOMB_BYTES = 160 * MIB
"""What a bomb becomes, if it is let."""

MAX_GROWTH_BYTES = 12 * LIMIT_BYTES
"""An output and its copy while it is joined or compressed again, for each thread: the allocator keeps them. A single
bomb that went off would take more."""

OPENING = {
    "plain": {},
    "gzip": {"compression.type": "gzip"},
    "uncompressed": {"compression.type": "uncompressed"},
    "compact": {"cleanup.policy": "compact"},
    "young": {"message.timestamp.before.max.ms": "86400000"},
}


def gzipped(size_bytes: int) -> bytes:
    stream = zlib.compressobj(9, wbits=31)
    parts = [stream.compress(bytes(MIB)) for _ in range(size_bytes // MIB)]
    return b"".join((*parts, stream.flush()))


def xerial(*blocks: bytes) -> bytes:
    return b"\x82SNAPPY\0" + pack(">ii", 1, 1) + b"".join(pack(">i", len(block)) + block for block in blocks)


def zstd_stream(size_bytes: int) -> bytes:
    """Return a frame that does not say how much it holds."""
    stream = zstandard.ZstdCompressor().compressobj()
    parts = [stream.compress(bytes(MIB)) for _ in range(size_bytes // MIB)]
    return b"".join((*parts, stream.flush()))


def zstd_claiming(size_bytes: int) -> bytes:
    """Return a frame with one empty block that claims to hold so many bytes (single segment, 8-byte size)."""
    return b"\x28\xb5\x2f\xfd\xe0" + size_bytes.to_bytes(8, "little") + b"\x01\0\0"


def zstd_window(exponent: int) -> bytes:
    """Return a frame that wants a window of 2^(10 + exponent) bytes for its one empty block."""
    return b"\x28\xb5\x2f\xfd\0" + bytes([exponent << 3]) + b"\x01\0\0"


SOUND = record(0, b"value") + record(1, b"other")
LZ4_SOUND = lz4.frame.compress(SOUND, content_checksum=True)
SNAPPY_SOUND = bytes(cramjam.snappy.compress_raw(SOUND))
SNAPPY_BOMB_BLOCK = bytes(cramjam.snappy.compress_raw(bytes(LIMIT_BYTES // 2)))

BOMBS = {
    "gzip": (GZIP, gzipped(BOMB_BYTES), TOO_LARGE),
    "gzip in many members": (GZIP, gzipped(LIMIT_BYTES // 4) * 8, TOO_LARGE),
    "snappy in blocks": (SNAPPY, xerial(*[SNAPPY_BOMB_BLOCK] * 2, SNAPPY_SOUND), TOO_LARGE),
    "snappy that claims 2^32-1": (SNAPPY, varint(2**32 - 1) + SNAPPY_SOUND[1:], TOO_LARGE),
    "snappy blocks that claim 2^32-1 each": (SNAPPY, xerial(*[varint(2**32 - 1) + b"\0"] * 50), TOO_LARGE),
    "lz4": (LZ4, lz4.frame.compress(bytes(BOMB_BYTES)), TOO_LARGE),
    "zstd": (ZSTD, zstandard.compress(bytes(BOMB_BYTES)), TOO_LARGE),
    "zstd without a size": (ZSTD, zstd_stream(BOMB_BYTES), TOO_LARGE),
    "zstd that declares 2^62": (ZSTD, zstd_claiming(2**62), TOO_LARGE),
}
BROKEN = {
    "gzip that is cut off": (GZIP, zlib.compress(SOUND, wbits=31)[:-9], CORRUPT_MESSAGE),
    "gzip with a wrong check": (GZIP, zlib.compress(SOUND, wbits=31)[:-8] + bytes(8), CORRUPT_MESSAGE),
    "gzip and rubbish": (GZIP, zlib.compress(SOUND, wbits=31) + b"rubbish", CORRUPT_MESSAGE),
    "fifty thousand empty gzip members": (GZIP, zlib.compress(b"", wbits=31) * 50_000, CORRUPT_MESSAGE),
    "no gzip at all": (GZIP, SOUND, CORRUPT_MESSAGE),
    "snappy that is cut off": (SNAPPY, SNAPPY_SOUND[:-3], CORRUPT_MESSAGE),
    "a snappy block longer than the body": (SNAPPY, xerial(SNAPPY_SOUND)[:-1], CORRUPT_MESSAGE),
    "a snappy block of negative length": (SNAPPY, xerial() + pack(">i", -5) + b"12345", CORRUPT_MESSAGE),
    "no snappy at all": (SNAPPY, b"\xff" * 50, CORRUPT_MESSAGE),
    "lz4 with a bad checksum": (LZ4, LZ4_SOUND[:-1] + bytes([LZ4_SOUND[-1] ^ 1]), CORRUPT_MESSAGE),
    "lz4 with a bad header checksum": (
        LZ4,
        LZ4_SOUND[:6] + bytes([LZ4_SOUND[6] ^ 1]) + LZ4_SOUND[7:],
        CORRUPT_MESSAGE,
    ),
    "lz4 that is cut off": (LZ4, LZ4_SOUND[:-6], CORRUPT_MESSAGE),
    "no lz4 at all": (LZ4, SOUND, CORRUPT_MESSAGE),
    "zstd that is cut off": (ZSTD, zstandard.compress(SOUND)[:-2], CORRUPT_MESSAGE),
    # This number means "damaged" to the library, and is so.
    "zstd that declares 2^64-2": (ZSTD, zstd_claiming(2**64 - 2), CORRUPT_MESSAGE),
    "zstd that declares too little": (ZSTD, zstd_claiming(1), CORRUPT_MESSAGE),
    "zstd with a window of 2^41": (ZSTD, zstd_window(31), CORRUPT_MESSAGE),
    "no zstd at all": (ZSTD, SOUND, CORRUPT_MESSAGE),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    settings = {"decompression.max.bytes": str(LIMIT_BYTES)}
    with running_headrace(tmp_path_factory.mktemp("data"), settings=settings) as running:
        yield running
        assert mistakes(running) == []


@pytest.mark.parametrize("kind", OPENING)
def test_bombs_and_broken_bodies_are_refused_in_bounded_memory_and_neighbours_are_unharmed(
    broker: HeadraceProcess, kind: str
) -> None:
    with RawClient(broker.kafka_port) as client:
        client.create_topic(kind, partitions=2, configs=OPENING[kind])
        before = forget_peak(broker)
        found = {}
        for number, (name, (codec, body, _)) in enumerate((BOMBS | BROKEN).items()):
            sent = {0: batch(body=body, attributes=codec, count=2), 1: batch([b"%d" % number])}
            answers = client.produce(kind, sent)
            found[name] = answers[0].code
            assert answers[0].message, f"{name}: nobody says why"
            assert answers[1] == Produced(NONE, number), name
        assert found == {name: code for name, (_, _, code) in (BOMBS | BROKEN).items()}
        assert peak_memory_bytes(broker) < before + MAX_GROWTH_BYTES
        assert client.end_offset(kind, 0) == 0
        values = values_of(client.fetch(kind, 1, 0).records)
        assert values == [b"%d" % number for number in range(len(found))]


@pytest.mark.parametrize("kind", OPENING)
def test_what_opens_to_exactly_the_limit_is_taken(broker: HeadraceProcess, kind: str) -> None:
    def body_of(size_bytes: int) -> bytes:
        shorter = record(0, bytes(size_bytes - 50))
        return record(0, bytes(2 * size_bytes - 50 - len(shorter)))

    topic = f"{kind}-limit"
    with RawClient(broker.kafka_port) as client:
        client.create_topic(topic, configs=OPENING[kind] | {"max.message.bytes": str(2 * LIMIT_BYTES)})
        for size_bytes, code in ((LIMIT_BYTES, NONE), (LIMIT_BYTES + 1, TOO_LARGE)):
            body = body_of(size_bytes)
            assert len(body) == size_bytes
            packed = batch(body=zstandard.compress(body), attributes=ZSTD, count=1)
            assert client.produce(topic, {0: packed})[0].code == code


def test_a_bomb_that_was_stored_unopened_harms_neither_old_readers_nor_look_ups_by_time(
    broker: HeadraceProcess,
) -> None:
    with RawClient(broker.kafka_port) as client:
        client.create_topic("stored", partitions=len(BOMBS) + 1, configs={"headrace.compressed.check": "header"})
        for partition, (codec, body, _) in enumerate(BOMBS.values()):
            answers = client.produce("stored", {partition: batch(body=body, attributes=codec, count=2)})
            assert answers[partition].code == NONE
        assert client.produce("stored", {len(BOMBS): batch([b"sound"])})[len(BOMBS)].code == NONE
        before = forget_peak(broker)
        wanted = array([pack(">iqi", partition, 0, MIB) for partition in range(len(BOMBS) + 1)])
        answer = client.ask(FETCH, 3, pack(">iiii", -1, 0, 0, 50 * MIB) + array([text("stored") + wanted]))
        answer.take(8)
        assert (answer.text(), answer.number(4)) == ("stored", len(BOMBS) + 1)
        for partition in range(len(BOMBS) + 1):
            assert answer.number(4) == partition
            assert answer.number(2) == (CORRUPT_MESSAGE if partition < len(BOMBS) else NONE)
            answer.take(8)
            records = answer.take(answer.number(4))
            assert (b"sound" in records) == (partition == len(BOMBS))
        for timestamp in (1, -3):
            client.send(list_offsets_request("stored", [timestamp] * (len(BOMBS) + 1)))
            assert [(code, offset) for code, _, offset in listed_offsets(client)] == [(NONE, 0)] * (len(BOMBS) + 1)
        assert peak_memory_bytes(broker) < before + MAX_GROWTH_BYTES
        assert client.fetch("stored", 0, 0).code == NONE


def test_bombs_in_old_message_sets_are_refused_in_bounded_memory(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        client.create_topic("old")
        before = forget_peak(broker)
        for magic in (0, 1):
            for codec, body, _ in BOMBS.values():
                answer = client.produce("old", {0: old_message(body, magic=magic, attributes=codec)}, version=2)
                # These formats do not know zstd.
                assert answer[0].code == (UNSUPPORTED_COMPRESSION if codec == ZSTD else TOO_LARGE)
        nested = old_message(zlib.compress(old_message(b"x", magic=1), wbits=31), magic=1, attributes=GZIP)
        for _ in range(3):
            nested = old_message(zlib.compress(nested, wbits=31), magic=1, attributes=GZIP)
        assert client.produce("old", {0: nested}, version=2)[0].code == INVALID_RECORD
        assert peak_memory_bytes(broker) < before + MAX_GROWTH_BYTES
        assert client.end_offset("old") == 0
