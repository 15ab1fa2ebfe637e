"""Look at a record batch (format 2) where it lies.

A `BatchView` is a window on bytes that somebody else owns: the socket's buffer, a WAL chunk, a cache. Making one
checks the frame (the stated length against the bytes there are, before anything else is believed) and unpacks the
header once. The checks come in two strengths:

- `check()` is for any batch, stored ones too: compaction leaves gaps and empty batches, and those are legal.
- `check_produced()` is for what a client sends, and adds the rules that Kafka's own broker holds producers to.

Must stay true: no field is used before the frame is known to lie within the buffer, and nothing is copied.
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct

from crc32c import crc32c

from headrace.model.batches import BatchSummary
from headrace.model.ids import ProducerId
from headrace.records.problems import InvalidBatch, Problem

HEADER = Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and max timestamp, producer id
and epoch, base sequence, record count."""

HEADER_BYTES = HEADER.size
LENGTH_END = 12
"""The length field counts the bytes behind itself: a batch has `LENGTH_END` more."""

MAGIC_AT = 16
CRC_AT = 17
CHECKED_FROM = 21
"""The CRC covers everything from the attributes on; what lies before it may be stamped without a new CRC."""

CODEC_AT = 22
"""The low byte of the attributes."""

MAGIC = 2
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
"""Set by a cleaner, never by a producer: the base timestamp then says when tombstones may go."""

_FRAME = Struct(">qiib")


class Codec(IntEnum):
    """How the body of a batch is compressed: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_LAST_CODEC = max(Codec)


class BatchView:
    """One batch, read in place. `data` is exactly its bytes; every other field comes from its header.

    The header is unpacked once: after stamping, make a new view.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp_ms",
        "crc",
        "data",
        "last_offset_delta",
        "leader_epoch",
        "max_timestamp_ms",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
    )

    def __init__(self, buffer: memoryview, start_byte: int = 0) -> None:
        """Open the batch that begins at `start_byte`; raise `InvalidBatch` if no whole one lies there."""
        remaining_bytes = len(buffer) - start_byte
        if remaining_bytes < HEADER_BYTES:
            raise _frame_error(buffer, start_byte)
        (
            self.base_offset,
            length,
            self.leader_epoch,
            magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = HEADER.unpack_from(buffer, start_byte)
        self.size_bytes: int = length + LENGTH_END
        if not HEADER_BYTES <= self.size_bytes <= remaining_bytes or magic != MAGIC:
            raise _frame_error(buffer, start_byte)
        self.data = buffer[start_byte : start_byte + self.size_bytes]

    @property
    def body(self) -> memoryview:
        """The records, compressed as the codec says."""
        return self.data[HEADER_BYTES:]

    @property
    def codec(self) -> Codec:
        """The codec of the body; raise `InvalidBatch` for one that does not exist."""
        number = self.attributes & CODEC_MASK
        if number > _LAST_CODEC:
            raise _codec_error(self)
        return Codec(number)

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records bear the batch's max timestamp instead of their own."""
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether this is a marker that a broker wrote and no consumer sees."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def last_offset(self) -> int:
        """The last offset the batch covers; after compaction no record need be there."""
        return int(self.base_offset) + int(self.last_offset_delta)

    @property
    def end_offset(self) -> int:
        """The offset behind the batch."""
        return self.last_offset + 1

    def check_crc(self) -> None:
        """Raise `InvalidBatch` if the bytes are not those the CRC was made from."""
        computed = crc32c(self.data[CHECKED_FROM:])
        if computed != self.crc:
            raise InvalidBatch(
                Problem.CHECKSUM,
                f"batch of {self.size_bytes} bytes has CRC-32C {computed:08x}, its header says {self.crc:08x}",
            )

    def check(self) -> None:
        """Check what holds for every batch, stored ones with gaps included; raise `InvalidBatch`."""
        self.check_crc()
        self.check_header()

    def check_header(self) -> None:
        """Check all that `check` does except the CRC."""
        if self.attributes & CODEC_MASK > _LAST_CODEC:
            raise _codec_error(self)
        if not 0 <= self.record_count <= self.last_offset_delta + 1 or self.last_offset_delta < 0:
            raise _count_error(self)
        if self.base_offset > MAX_INT64 - 1 - self.last_offset_delta:
            raise InvalidBatch(Problem.COUNT, f"base offset {self.base_offset} leaves no room for the batch")

    def check_produced(self) -> None:
        """Check what a client may send; raise `InvalidBatch`.

        A max timestamp below the base timestamp passes: some clients state the last record's time as the maximum.
        Whoever needs the true one walks the records (`columns.walk`).
        """
        self.check()
        if self.record_count != self.last_offset_delta + 1 or self.record_count == 0:
            raise _count_error(self)
        if self.attributes & (CONTROL_BIT | DELETE_HORIZON_BIT):
            raise InvalidBatch(
                Problem.ATTRIBUTES, f"attributes {self.attributes:#06x}: clients do not write control batches"
            )
        if self.attributes & LOG_APPEND_TIME_BIT:
            raise InvalidBatch(Problem.TIMESTAMP, "a producer sends CreateTime; LogAppendTime is the broker's to set")
        if self.producer_id != -1 or self.attributes & TRANSACTIONAL_BIT:
            self._check_producer()

    def _check_producer(self) -> None:
        if self.producer_id < 0 or self.producer_epoch < 0 or self.base_sequence < 0:
            raise InvalidBatch(
                Problem.PRODUCER,
                f"producer {self.producer_id}, epoch {self.producer_epoch}, sequence {self.base_sequence}"
                f"{', transactional' if self.is_transactional else ''}: all three must be 0 or above",
            )

    def summary(self) -> BatchSummary:
        """Return what the log needs to know, detached from the bytes."""
        return BatchSummary(
            size_bytes=self.size_bytes,
            record_count=self.record_count,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            producer_id=ProducerId(self.producer_id),
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            is_transactional=bool(self.attributes & TRANSACTIONAL_BIT),
            is_control=bool(self.attributes & CONTROL_BIT),
        )


def iter_batches(buffer: memoryview) -> Iterator[BatchView]:
    """Yield the batches that lie back to back in the buffer; raise `InvalidBatch` at the first that is not whole."""
    start_byte = 0
    while start_byte < len(buffer):
        view = BatchView(buffer, start_byte)
        yield view
        start_byte += view.size_bytes


def _frame_error(buffer: memoryview, start_byte: int) -> InvalidBatch:
    """Say why no batch begins here: length against bytes first, then the format, then what a length may be."""
    remaining_bytes = len(buffer) - start_byte
    if remaining_bytes < _FRAME.size:
        return InvalidBatch(Problem.TRUNCATED, f"{remaining_bytes} bytes are too few for a record batch")
    _, length, _, magic = _FRAME.unpack_from(buffer, start_byte)
    if length + LENGTH_END > remaining_bytes:
        return InvalidBatch(
            Problem.TRUNCATED, f"batch says it has {length + LENGTH_END} bytes, {remaining_bytes} are there"
        )
    if magic != MAGIC:
        return InvalidBatch(
            Problem.MAGIC, f"message format {magic} is not supported; send record batches of format 2"
        )
    return InvalidBatch(
        Problem.LENGTH, f"batch says it has {length + LENGTH_END} bytes, its header alone needs {HEADER_BYTES}"
    )


def _count_error(view: BatchView) -> InvalidBatch:
    return InvalidBatch(
        Problem.COUNT, f"{view.record_count} records do not match a last offset delta of {view.last_offset_delta}"
    )


def _codec_error(view: BatchView) -> InvalidBatch:
    number = view.attributes & CODEC_MASK
    return InvalidBatch(Problem.CODEC, f"compression codec {number} does not exist; 0 to {_LAST_CODEC:d} do")
