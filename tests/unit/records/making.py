"""Batches for the tests: written by hand, field by field, so that any of them can lie."""

from dataclasses import dataclass, field
from struct import pack

from headrace.records.batch import CODEC_MASK, HEADER, HEADER_BYTES, LENGTH_END, Codec
from headrace.records.codecs import compress
from headrace.records.stamping import stamp_crc


def varint(value: int) -> bytes:
    """Write a zigzag varint."""
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def nullable(value: bytes | None) -> bytes:
    """Write a byte string with its length before it."""
    return varint(-1) if value is None else varint(len(value)) + value


def record(
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    key: bytes | None = None,
    value: bytes | None = b"v",
    headers: tuple[tuple[bytes, bytes | None], ...] = (),
) -> bytes:
    """Write one record."""
    content = b"\x00" + varint(timestamp_delta) + varint(offset_delta) + nullable(key) + nullable(value)
    content += varint(len(headers)) + b"".join(varint(len(key)) + key + nullable(value) for key, value in headers)
    return varint(len(content)) + content


@dataclass(kw_only=True)
class Batch:
    """A batch whose header says what the test wants it to say."""

    body: bytes = field(default_factory=record)
    base_offset: int = 0
    leader_epoch: int = 0
    magic: int = 2
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp_ms: int = 1000
    max_timestamp_ms: int = 1000
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    record_count: int = 1
    length_error: int = 0

    def build(self) -> memoryview:
        """Return the bytes, with the right CRC."""
        number = self.attributes & CODEC_MASK
        body = bytes(compress(Codec(number), self.body)) if self.body and number in list(Codec) else self.body
        batch = bytearray(
            HEADER.pack(
                self.base_offset,
                HEADER_BYTES - LENGTH_END + len(body) + self.length_error,
                self.leader_epoch,
                self.magic,
                0,
                self.attributes,
                self.last_offset_delta,
                self.base_timestamp_ms,
                self.max_timestamp_ms,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.record_count,
            )
            + body
        )
        stamp_crc(memoryview(batch))
        return memoryview(batch)


def marker(*, commit: bool) -> bytes:
    """Write the record of a transaction marker: version and type as key, version and coordinator epoch as value."""
    return record(key=pack(">hh", 0, int(commit)), value=pack(">hi", 0, 7))
