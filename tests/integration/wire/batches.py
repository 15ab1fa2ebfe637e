"""Record batches of format 2 and old messages, built by hand, as right or as wrong as a test wants them."""

import gzip
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct, pack

from crc32c import crc32c

HEADER = Struct(">qiibIhiqqqhii")
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def zigzag(value: int) -> bytes:
    """Return a signed varint."""
    value = value << 1 ^ value >> 63
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def record(index: int, value: bytes | None, *, key: bytes | None = b"key", offset_delta: int | None = None) -> bytes:
    """Return one record without headers."""
    body = b"\0" + zigzag(0) + zigzag(index if offset_delta is None else offset_delta)
    for part in (key, value):
        body += zigzag(-1) if part is None else zigzag(len(part)) + part
    body += zigzag(0)
    return zigzag(len(body)) + body


def batch(
    values: Sequence[bytes | None] = (b"value",),
    *,
    key: bytes | None = b"key",
    body: bytes | None = None,
    attributes: int = 0,
    magic: int = 2,
    producer: tuple[int, int, int] = (-1, -1, -1),
    count: int | None = None,
    last_delta: int | None = None,
    length: int | None = None,
    crc: int | None = None,
    timestamp_ms: int | None = None,
) -> bytes:
    """Return a batch of these values. Every field can be given a wrong value, which the CRC then covers."""
    if body is None:
        body = b"".join(record(index, value, key=key) for index, value in enumerate(values))
    count = len(values) if count is None else count
    now_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    last_delta = count - 1 if last_delta is None else last_delta
    checked = pack(">hiqqqhii", attributes, last_delta, now_ms, now_ms, *producer, count) + body
    crc = crc32c(checked) if crc is None else crc
    return pack(">qiibI", 0, len(checked) + 9 if length is None else length, -1, magic, crc) + checked


def old_message(value: bytes, *, magic: int, attributes: int = 0) -> bytes:
    """Return a message of format 0 or 1 with a right CRC."""
    content = pack(">bb", magic, attributes) + (pack(">q", 1_000) if magic else b"")
    content += pack(">i", 3) + b"key" + pack(">i", len(value)) + value
    return pack(">qiI", 0, len(content) + 4, zlib.crc32(content)) + content


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch out of a Fetch answer."""

    base_offset: int
    count: int
    attributes: int
    body: bytes


def read_batches(data: bytes) -> Iterator[ReadBatch]:
    """Yield the whole batches of an answer; every one must be sound to its last bit."""
    position = 0
    while len(data) - position >= HEADER.size:
        base, length, _, magic, crc, attributes, last_delta, *_, count = HEADER.unpack_from(data, position)
        end = position + 12 + length
        if end > len(data):
            return
        assert magic == 2 and count == last_delta + 1
        assert crc32c(data[position + 21 : end]) == crc, f"the batch at offset {base} is damaged"
        yield ReadBatch(base, count, attributes, data[position + HEADER.size : end])
        position = end


def values_of(data: bytes) -> list[bytes | None]:
    """Return the values in the uncompressed or gzipped batches of an answer, in order."""
    values: list[bytes | None] = []
    for one in read_batches(data):
        body = gzip.decompress(one.body) if one.attributes & 7 == GZIP else one.body
        assert one.attributes & 7 in (0, GZIP)
        position = 0
        for _ in range(one.count):
            size, position = _signed(body, position)
            inner = position + 1
            position += size
            for _ in range(2):
                _, inner = _signed(body, inner)
            key_size, inner = _signed(body, inner)
            value_size, inner = _signed(body, inner + max(key_size, 0))
            values.append(None if value_size < 0 else body[inner : inner + value_size])
    return values


def _signed(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value >> 1 ^ -(value & 1), position
