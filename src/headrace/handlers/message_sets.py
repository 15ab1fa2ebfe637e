"""Convert the message sets of old clients (magic 0 and 1) to record batches, and back.

A client of the time before Kafka 0.11 sends message sets in Produce 0 to 2 and expects them in Fetch 0 to 3. They are
turned into batches of format 2 here, before anything else sees them, and nothing past the edge knows that they exist.

Must stay true:
- Every length is compared with the bytes that are there before it is used, and every CRC is checked before the
  content is believed: the new bytes get a new CRC, which must not vouch for damage.
- Memory stays within a small multiple of the input plus `max_open_bytes`, however small the messages are. That is
  why rows are collected as columns: as Python objects they would take ten times their size on the wire.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final
from zlib import crc32

from headrace.model.batches import NO_TIMESTAMP_MS
from headrace.records.batch import CODEC_MASK, LOG_APPEND_TIME_BIT, MAX_INT32, BatchView, Codec, iter_batches
from headrace.records.codecs import decompress
from headrace.records.columns import ColumnBuilder, Columns
from headrace.records.encoder import BatchEncoder
from headrace.records.problems import InvalidBatch, Problem
from headrace.records.record import Record, records_of

LAST_OLD_CODEC: Final = Codec.LZ4
"""Zstandard came after these formats."""

LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
LZ4_CONTENT_SIZE_BIT: Final = 0x08
LZ4_DICTIONARY_BIT: Final = 0x01

_FRAME = Struct(">qi")
"""Offset, and how many bytes follow."""
_HEADS: Final = (Struct(">Ibb"), Struct(">Ibbq"))
"""By magic: CRC, magic, attributes, and since magic 1 the timestamp."""
_LENGTH = Struct(">i")
_CRC = Struct(">I")
_MAGIC_AT = _FRAME.size + 4
_MIN_BYTES: Final = tuple(_FRAME.size + head.size + 2 * _LENGTH.size for head in _HEADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    magic: int
    attributes: int
    timestamp_ms: int
    key: memoryview | None
    value: memoryview | None


def batches_from_message_set(data: memoryview, *, max_open_bytes: int) -> bytes:
    """Return the one batch that holds all messages a client sent, at offsets 0, 1, 2…, without a producer.

    It is compressed as the last wrapper was. Messages of magic 1 keep their timestamps, those of magic 0 have none,
    as after Kafka's own conversion. The offsets that clients write, and a LogAppendTime bit, mean nothing.
    `max_open_bytes` limits what all wrappers together become. Raise `InvalidBatch`.
    """
    rows = _Rows()
    codec = Codec.NONE
    # All keys and values together must fit into the 32-bit offsets of a column.
    room_bytes = max(0, min(max_open_bytes, MAX_INT32 - len(data)))
    for message in _messages(data):
        own_codec = _codec_of(message)
        if own_codec is Codec.NONE:
            rows.append(message)
            continue
        codec = own_codec
        opened = _open(message, codec, room_bytes)
        room_bytes -= len(opened)
        for inner in _messages(opened):
            _check_inner(message, inner)
            rows.append(inner)
    if rows.count == 0:
        raise InvalidBatch(Problem.COUNT, "the message set is empty; send at least one message")
    return bytes(BatchEncoder(codec=codec, max_batch_bytes=MAX_INT32).encode(rows.columns()))


def message_set_from_batches(
    data: memoryview, *, start_offset: int, magic: int, max_bytes: int | None, max_open_bytes: int
) -> bytes:
    """Return the records from `start_offset` on as single messages with their own offsets.

    They are never compressed, whatever the batches were: every old client reads that. Headers, control batches and,
    in magic 0, timestamps have no place in these formats and are left out. The set ends before the message that would
    take it past `max_bytes`, but the first message is always there. Raise `InvalidBatch` for damaged batches.

    Nothing may be left: batches of markers, or emptied by compaction. A client would then ask for the same offset
    for ever, so whoever gets an empty set for batches must read on behind them and convert again.
    """
    assert magic in (0, 1), "only magic 0 and 1 are message sets"
    out = bytearray()
    for view in iter_batches(data):
        # Checked before it is skipped: a flipped bit must not turn records into a marker.
        view.check()
        if view.end_offset <= start_offset or view.is_control:
            continue
        attributes = LOG_APPEND_TIME_BIT if magic == 1 and view.is_log_append_time else 0
        for record in _records(view, max_open_bytes):
            if record.offset < start_offset:
                continue
            size_bytes = _MIN_BYTES[magic] + len(record.key or b"") + len(record.value or b"")
            if out and max_bytes is not None and len(out) + size_bytes > max_bytes:
                return bytes(out)
            _write(out, record, magic=magic, attributes=attributes, size_bytes=size_bytes)
    return bytes(out)


class _BinaryColumn:
    """Keys or values, collected in the layout that the encoder takes."""

    __slots__ = ("_data", "_ends", "_validity", "null_count")

    def __init__(self) -> None:
        self._ends = array("i", [0])
        self._data = bytearray()
        self._validity = bytearray()
        self.null_count = 0

    def append(self, value: memoryview | None) -> None:
        row = len(self._ends) - 1
        if row & 7 == 0:
            self._validity.append(0)
        if value is None:
            self.null_count += 1
        else:
            self._validity[row >> 3] |= 1 << (row & 7)
            self._data += value
        self._ends.append(len(self._data))

    def buffers(self) -> tuple[memoryview, memoryview, memoryview]:
        validity = self._validity if self.null_count else b""
        return memoryview(self._ends).cast("B"), memoryview(self._data), memoryview(validity)


class _Rows:
    """Messages, collected as columns."""

    __slots__ = ("_keys", "_timestamps_ms", "_values")

    def __init__(self) -> None:
        self._timestamps_ms = array("q")
        self._keys = _BinaryColumn()
        self._values = _BinaryColumn()

    @property
    def count(self) -> int:
        return len(self._timestamps_ms)

    def append(self, message: _Message) -> None:
        if message.timestamp_ms < NO_TIMESTAMP_MS:
            raise InvalidBatch(
                Problem.TIMESTAMP, f"message {self.count} has the timestamp {message.timestamp_ms}; -1 means none"
            )
        self._timestamps_ms.append(message.timestamp_ms)
        self._keys.append(message.key)
        self._values.append(message.value)

    def columns(self) -> Columns:
        count = self.count
        no_header_ends = (memoryview(bytes(4)), memoryview(b""))
        return Columns(
            row_count=count,
            header_count=0,
            null_key_count=self._keys.null_count,
            null_value_count=self._values.null_count,
            start_offset=0,
            end_offset=count,
            buffers=(
                memoryview(array("q", range(count))).cast("B"),
                memoryview(self._timestamps_ms).cast("B"),
                memoryview(bytes(2 * count)),
                # Producer id, epoch and sequence are -1 each.
                memoryview(b"\xff" * (8 * count)),
                memoryview(b"\xff" * (2 * count)),
                memoryview(b"\xff" * (4 * count)),
                *self._keys.buffers(),
                *self._values.buffers(),
                memoryview(bytes(4 * (count + 1))),
                *no_header_ends,
                *no_header_ends,
                memoryview(b""),
            ),
        )


def _messages(data: memoryview) -> Iterator[_Message]:
    start_byte = 0
    while start_byte < len(data):
        end_byte = _end_of(data, start_byte)
        yield _read(data[start_byte:end_byte], start_byte)
        start_byte = end_byte


def _end_of(data: memoryview, start_byte: int) -> int:
    """Find where a message ends; raise `InvalidBatch` unless all of it is there and it is of a format we know."""
    remaining_bytes = len(data) - start_byte
    if remaining_bytes < _FRAME.size:
        raise InvalidBatch(Problem.TRUNCATED, f"{remaining_bytes} bytes at byte {start_byte} are no message")
    size_bytes: int = _FRAME.unpack_from(data, start_byte)[1] + _FRAME.size
    if size_bytes > remaining_bytes:
        raise InvalidBatch(
            Problem.TRUNCATED,
            f"the message at byte {start_byte} says it has {size_bytes} bytes, {remaining_bytes} are there",
        )
    if size_bytes > _MAGIC_AT and data[start_byte + _MAGIC_AT] > 1:
        raise InvalidBatch(
            Problem.MAGIC,
            f"the message at byte {start_byte} is of format {data[start_byte + _MAGIC_AT]}; a message set has 0 or 1",
        )
    if size_bytes <= _MAGIC_AT or size_bytes < _MIN_BYTES[data[start_byte + _MAGIC_AT]]:
        raise InvalidBatch(
            Problem.LENGTH, f"the message at byte {start_byte} has {size_bytes} bytes, too few for any message"
        )
    return start_byte + size_bytes


def _read(data: memoryview, start_byte: int) -> _Message:
    """Read one whole message; `start_byte` is for the errors."""
    magic = data[_MAGIC_AT]
    head = _HEADS[magic]
    crc, _, attributes, *timestamp_ms = head.unpack_from(data, _FRAME.size)
    computed = crc32(data[_MAGIC_AT:])
    if computed != crc:
        raise InvalidBatch(
            Problem.CHECKSUM,
            f"the message at byte {start_byte} has CRC-32 {computed:08x}, its header says {crc:08x}",
        )
    key, key_end_byte = _read_bytes(data, _FRAME.size + head.size, start_byte)
    value, end_byte = _read_bytes(data, key_end_byte, start_byte)
    if end_byte != len(data):
        raise InvalidBatch(
            Problem.RECORD, f"the message at byte {start_byte} has {len(data) - end_byte} bytes behind its value"
        )
    return _Message(
        magic=magic,
        attributes=attributes,
        timestamp_ms=timestamp_ms[0] if timestamp_ms else NO_TIMESTAMP_MS,
        key=key,
        value=value,
    )


def _read_bytes(data: memoryview, position: int, start_byte: int) -> tuple[memoryview | None, int]:
    """Read a nullable byte string; return it and where it ends."""
    remaining_bytes = len(data) - position - _LENGTH.size
    size_bytes = _LENGTH.unpack_from(data, position)[0] if remaining_bytes >= 0 else remaining_bytes
    if not -1 <= size_bytes <= remaining_bytes:
        raise InvalidBatch(
            Problem.RECORD, f"the message at byte {start_byte} has a key or a value that does not fit into it"
        )
    position += _LENGTH.size
    if size_bytes == -1:
        return None, position
    return data[position : position + size_bytes], position + size_bytes


def _codec_of(message: _Message) -> Codec:
    number = message.attributes & CODEC_MASK
    if number > LAST_OLD_CODEC:
        raise InvalidBatch(
            Problem.CODEC, f"compression codec {number} does not exist in message sets; 0 to {LAST_OLD_CODEC:d} do"
        )
    return Codec(number)


def _open(wrapper: _Message, codec: Codec, room_bytes: int) -> memoryview:
    """Return the message set within a wrapper."""
    if wrapper.value is None:
        raise InvalidBatch(Problem.RECORD, "a compressed message has no value, so it holds no messages")
    packed = wrapper.value
    if codec is Codec.LZ4 and wrapper.magic == 0:
        packed = _with_true_lz4_checksum(packed)
    opened = memoryview(decompress(codec, packed, max_output_bytes=room_bytes))
    if not opened:
        raise InvalidBatch(Problem.RECORD, "a compressed message holds no messages")
    return opened


def _check_inner(wrapper: _Message, inner: _Message) -> None:
    if inner.magic != wrapper.magic:
        raise InvalidBatch(
            Problem.MAGIC, f"a compressed message of format {wrapper.magic} holds one of format {inner.magic}"
        )
    if inner.attributes & CODEC_MASK:
        raise InvalidBatch(Problem.RECORD, "a compressed message holds another compressed message")


def _with_true_lz4_checksum(frame: memoryview) -> memoryview:
    """Mend the header checksum of an LZ4 frame in magic 0.

    Clients of that time counted the frame's magic number in (KAFKA-3160), so Kafka does not look at it there. Our
    library does, so it gets the true one. What is no frame is left alone, for the library to refuse.
    """
    if len(frame) < len(LZ4_MAGIC) + 1 or bytes(frame[:4]) != LZ4_MAGIC:
        return frame
    flags = frame[4]
    checksum_at = 6 + (8 if flags & LZ4_CONTENT_SIZE_BIT else 0) + (4 if flags & LZ4_DICTIONARY_BIT else 0)
    if len(frame) <= checksum_at:
        return frame
    checksum = _xxh32_of_short(frame[4:checksum_at]) >> 8 & 0xFF
    if frame[checksum_at] == checksum:
        return frame
    mended = bytearray(frame)
    mended[checksum_at] = checksum
    return memoryview(mended)


def _xxh32_of_short(data: memoryview) -> int:
    """Compute the XXH32 hash, with seed 0, of fewer than 16 bytes: longer inputs begin with other rounds."""
    assert len(data) < 16, "a frame descriptor is short"
    mask = 0xFFFFFFFF
    state = 0x165667B1 + len(data)
    words_end = len(data) & ~3
    for at in range(0, words_end, 4):
        state = state + int.from_bytes(data[at : at + 4], "little") * 0xC2B2AE3D & mask
        state = (state << 17 | state >> 15) * 0x27D4EB2F & mask
    for byte in data[words_end:]:
        state = state + byte * 0x165667B1 & mask
        state = (state << 11 | state >> 21) * 0x9E3779B1 & mask
    state = (state ^ state >> 15) * 0x85EBCA77 & mask
    state = (state ^ state >> 13) * 0xC2B2AE3D & mask
    return state ^ state >> 16


def _records(view: BatchView, max_open_bytes: int) -> Iterator[Record]:
    builder = ColumnBuilder(max_open_bytes=max_open_bytes)
    builder.append(view)
    return records_of(builder.columns())


def _write(out: bytearray, record: Record, *, magic: int, attributes: int, size_bytes: int) -> None:
    """Append one message."""
    start_byte = len(out)
    timestamp_ms = (record.timestamp_ms,) if magic == 1 else ()
    out += _FRAME.pack(record.offset, size_bytes - _FRAME.size)
    out += _HEADS[magic].pack(0, magic, attributes, *timestamp_ms)
    for part in (record.key, record.value):
        out += _LENGTH.pack(-1 if part is None else len(part))
        out += part or b""
    # The view must be gone before the bytearray can grow again.
    with memoryview(out) as written:
        crc = crc32(written[start_byte + _MAGIC_AT :])
    _CRC.pack_into(out, start_byte + _FRAME.size, crc)
