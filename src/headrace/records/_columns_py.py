"""The twin of `_columns.pyx` in plain Python: same names, same arguments, same answers; change both together.

It serves where no compiler was at hand, and it is the second opinion that the tests hold the compiled one to. It is
written to be read beside it: every check stands in the same order, so that both meet the same fault first.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import pack_into, unpack_from
from typing import Final, NamedTuple

Buffer = bytes | bytearray | memoryview
Field = bytes | None
Header = tuple[bytes, Field]

OK: Final = 0
VARINT: Final = 1
PAST_END: Final = 2
RECORD_LENGTH: Final = 3
RECORD_END: Final = 4
OFFSET_DELTA: Final = 5
FIELD_LENGTH: Final = 6
HEADER_COUNT: Final = 7
HEADER_KEY: Final = 8
TRAILING: Final = 9
COUNT: Final = 10
COLUMN_SIZE: Final = 11
COLUMN_OFFSETS: Final = 12
ROW_ORDER: Final = 13
ROW_SIZE: Final = 14
NO_ROOM: Final = 15

MIN_RECORD_BYTES: Final = 7
MIN_HEADER_BYTES: Final = 2
LOG_APPEND_TIME: Final = 0x08
KIND_MASK: Final = 0xFFB8
MAX_INT32: Final = 0x7FFFFFFF


class _Fault(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


class _Record(NamedTuple):
    timestamp_delta: int
    offset_delta: int
    key: Field
    value: Field
    headers: list[Header]


def _wrapped(value: int) -> int:
    """Bring a number into 64 bits as Java's long does: the sum of base and delta may leave them and come back."""
    return (value + 2**63) % 2**64 - 2**63


def _read_varint(
    data: bytes, position: int, end: int, last_shift: int = 28, last_byte: int = 0x0F
) -> tuple[int, int]:
    if position < end and data[position] < 0x80:
        # Most numbers are one byte long.
        return (data[position] >> 1) ^ -(data[position] & 1), position + 1
    raw = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        if shift == last_shift and byte > last_byte:
            raise _Fault(VARINT)
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
    raise _Fault(PAST_END)


def _read_varlong(data: bytes, position: int, end: int) -> tuple[int, int]:
    return _read_varint(data, position, end, 63, 0x01)


def _read_field(
    data: bytes, position: int, end: int, fault: int = FIELD_LENGTH, least: int = -1
) -> tuple[Field, int]:
    size, position = _read_varint(data, position, end)
    if size < least or size > end - position:
        raise _Fault(fault)
    if size < 0:
        return None, position
    return data[position : position + size], position + size


def _read_record(
    data: bytes, position: int, row: int, previous_delta: int, last_offset_delta: int, dense: bool
) -> tuple[_Record, int]:
    length, position = _read_varint(data, position, len(data))
    if length < 0 or length > len(data) - position:
        raise _Fault(RECORD_LENGTH)
    end = position + length
    if position >= end:
        raise _Fault(PAST_END)
    timestamp_delta, position = _read_varlong(data, position + 1, end)
    offset_delta, position = _read_varint(data, position, end)
    if offset_delta <= previous_delta or offset_delta > last_offset_delta or (dense and offset_delta != row):
        raise _Fault(OFFSET_DELTA)
    key, position = _read_field(data, position, end)
    value, position = _read_field(data, position, end)
    header_count, position = _read_varint(data, position, end)
    if header_count < 0 or header_count > (end - position) // MIN_HEADER_BYTES:
        raise _Fault(HEADER_COUNT)
    headers: list[Header] = []
    for _ in range(header_count):
        header_key, position = _read_field(data, position, end, HEADER_KEY, 0)
        header_value, position = _read_field(data, position, end)
        headers.append((header_key or b"", header_value))
    if position != end:
        raise _Fault(RECORD_END)
    return _Record(timestamp_delta, offset_delta, key, value, headers), position


def _read_records(data: bytes, count: int, last_offset_delta: int, dense: bool) -> Iterator[_Record]:
    if count < 0 or count > len(data) // MIN_RECORD_BYTES:
        raise _Fault(COUNT)
    position = 0
    previous_delta = -1
    for row in range(count):
        record, position = _read_record(data, position, row, previous_delta, last_offset_delta, dense)
        previous_delta = record.offset_delta
        yield record
    if position != len(data):
        raise _Fault(TRAILING)


def walk_records(
    body: Buffer, count: int, last_offset_delta: int, base_timestamp: int, dense: bool
) -> tuple[int, int, int, int, int, int, int, int, int, int]:
    """Check every record and say what the batch holds; see the compiled twin for the answer's fields."""
    rows = key_bytes = value_bytes = headers = header_key_bytes = header_value_bytes = 0
    low = high = high_delta = -1
    code = OK
    try:
        for record in _read_records(bytes(body), count, last_offset_delta, dense):
            timestamp = _wrapped(base_timestamp + record.timestamp_delta)
            if rows == 0 or timestamp < low:
                low = timestamp
            if rows == 0 or timestamp > high:
                high, high_delta = timestamp, record.offset_delta
            key_bytes += len(record.key or b"")
            value_bytes += len(record.value or b"")
            headers += len(record.headers)
            header_key_bytes += sum(len(key) for key, _ in record.headers)
            header_value_bytes += sum(len(value or b"") for _, value in record.headers)
            rows += 1
    except _Fault as fault:
        code = fault.code
    return code, rows, key_bytes, value_bytes, headers, header_key_bytes, header_value_bytes, low, high, high_delta


def _set_bits(bits: bytearray, start: int, values: Sequence[Field]) -> int:
    """Mark which values are there; return how many are not."""
    if not values:
        return 0
    first = start >> 3
    # The buffer may be recycled: what lies behind the start is cleared on the way.
    marks = bits[first] & ((1 << (start & 7)) - 1)
    digits = "".join("0" if value is None else "1" for value in reversed(values))
    marks |= int(digits, 2) << (start & 7)
    last = (start + len(values) - 1) >> 3
    bits[first : last + 1] = marks.to_bytes(last + 1 - first, "little")
    return values.count(None)


def _put_fields(offsets: bytearray, data: bytearray, start: int, used_bytes: int, values: Sequence[Field]) -> int:
    """Append byte strings to a binary column; return the bytes it has then."""
    joined = b"".join(value for value in values if value)
    if used_bytes + len(joined) > len(data):
        raise _Fault(NO_ROOM)
    ends = list(accumulate((len(value or b"") for value in values), initial=used_bytes))
    data[used_bytes : ends[-1]] = joined
    pack_into(f"={len(ends)}i", offsets, 4 * start, *ends)
    return ends[-1]


def _check_room(buffers: Sequence[bytearray], rows: int, headers: int) -> None:
    """See that the columns of fixed width can take so many rows and headers in all."""
    widths = (8, 8, 2, 8, 2, 4)
    is_small = any(len(buffer) < rows * width for buffer, width in zip(buffers, widths, strict=False))
    is_small = is_small or any(len(buffers[index]) < 4 * (rows + 1) for index in (6, 9, 12))
    is_small = is_small or any(8 * len(buffers[index]) < rows for index in (8, 11))
    is_small = is_small or any(len(buffers[index]) < 4 * (headers + 1) for index in (13, 15))
    if is_small or 8 * len(buffers[17]) < headers:
        raise _Fault(NO_ROOM)


def decode_records(
    body: Buffer, batch: tuple[int, ...], buffers: Sequence[bytearray], cursor: tuple[int, ...]
) -> tuple[int, int, tuple[int, ...]]:
    """Append the records of one batch to the columns; see the compiled twin for arguments and answer."""
    if min(cursor) < 0:
        raise ValueError("a cursor counts up from zero")
    records: list[_Record] = []
    try:
        records.extend(_read_records(bytes(body), batch[0], batch[2], False))
        return OK, len(records), _put_columns(records, batch, buffers, cursor)
    except _Fault as fault:
        return fault.code, len(records), cursor


def _put_columns(
    records: list[_Record], batch: tuple[int, ...], buffers: Sequence[bytearray], cursor: tuple[int, ...]
) -> tuple[int, ...]:
    count, base_offset, _, base_timestamp, max_timestamp, attributes, producer_id, producer_epoch, base_sequence = (
        batch
    )
    rows, key_bytes, value_bytes, header_rows, header_key_bytes, header_value_bytes, *nulls = cursor
    headers = [header for record in records for header in record.headers]
    _check_room(buffers, rows + count, header_rows + len(headers))
    deltas = [record.offset_delta for record in records]
    if attributes & LOG_APPEND_TIME:
        timestamps = [max_timestamp] * count
    else:
        timestamps = [_wrapped(base_timestamp + record.timestamp_delta) for record in records]
    if base_sequence >= 0:
        sequences = [(base_sequence + delta) & MAX_INT32 for delta in deltas]
    else:
        sequences = [base_sequence] * count
    pack_into(f"={count}q", buffers[0], 8 * rows, *(base_offset + delta for delta in deltas))
    pack_into(f"={count}q", buffers[1], 8 * rows, *timestamps)
    pack_into(f"={count}h", buffers[2], 2 * rows, *[attributes] * count)
    pack_into(f"={count}q", buffers[3], 8 * rows, *[producer_id] * count)
    pack_into(f"={count}h", buffers[4], 2 * rows, *[producer_epoch] * count)
    pack_into(f"={count}i", buffers[5], 4 * rows, *sequences)
    keys = [record.key for record in records]
    values = [record.value for record in records]
    header_keys = [key for key, _ in headers]
    header_values = [value for _, value in headers]
    ends = list(accumulate((len(record.headers) for record in records), initial=header_rows))
    pack_into(f"={count + 1}i", buffers[12], 4 * rows, *ends)
    return (
        rows + count,
        _put_fields(buffers[6], buffers[7], rows, key_bytes, keys),
        _put_fields(buffers[9], buffers[10], rows, value_bytes, values),
        ends[-1],
        _put_fields(buffers[13], buffers[14], header_rows, header_key_bytes, header_keys),
        _put_fields(buffers[15], buffers[16], header_rows, header_value_bytes, header_values),
        nulls[0] + _set_bits(buffers[8], rows, keys),
        nulls[1] + _set_bits(buffers[11], rows, values),
        nulls[2] + _set_bits(buffers[17], header_rows, header_values),
    )


def _load(buffer: Buffer, kind: str, width: int, index: int) -> int:
    value: int = unpack_from(f"={kind}", buffer, width * index)[0]
    return value


def _varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _locate(offsets: Buffer, data: Buffer, validity: Buffer, index: int) -> Field:
    if len(validity) and not validity[index >> 3] >> (index & 7) & 1:
        return None
    start, end = unpack_from("=2i", offsets, 4 * index)
    if start < 0 or end < start or end > len(data):
        raise _Fault(COLUMN_OFFSETS)
    return bytes(data[start:end])


def _field(value: Field) -> bytes:
    return b"\x01" if value is None else _varint(len(value)) + value


def _whole_rows(buffers: Sequence[Buffer]) -> int:
    widths = (8, 8, 2, 8, 2, 4)
    sizes = [len(buffer) // width for buffer, width in zip(buffers, widths, strict=False)]
    sizes += [len(buffers[index]) // 4 - 1 for index in (6, 9, 12)]
    sizes += [8 * len(buffers[index]) for index in (8, 11) if len(buffers[index])]
    return min(sizes)


def _whole_headers(buffers: Sequence[Buffer]) -> int:
    headers = min(len(buffers[13]) // 4 - 1, len(buffers[15]) // 4 - 1)
    return min(headers, 8 * len(buffers[17])) if len(buffers[17]) else headers


def _row_bytes(
    buffers: Sequence[Buffer], row: int, header_count: int, timestamp_delta: int, offset_delta: int
) -> bytes:
    key = _locate(buffers[6], buffers[7], buffers[8], row)
    value = _locate(buffers[9], buffers[10], buffers[11], row)
    first, end = unpack_from("=2i", buffers[12], 4 * row)
    if first < 0 or end < first or end > header_count:
        raise _Fault(COLUMN_OFFSETS)
    parts = [
        b"\x00",
        _varint(timestamp_delta),
        _varint(offset_delta),
        _field(key),
        _field(value),
        _varint(end - first),
    ]
    for header in range(first, end):
        parts.append(_field(_locate(buffers[13], buffers[14], b"", header)))
        parts.append(_field(_locate(buffers[15], buffers[16], buffers[17], header)))
    record = b"".join(parts)
    if len(record) > MAX_INT32:
        raise _Fault(ROW_SIZE)
    return _varint(len(record)) + record


def _same_batch(buffers: Sequence[Buffer], first: int, row: int, delta: int) -> bool:
    kind = _load(buffers[2], "h", 2, first) & KIND_MASK
    sequence = _load(buffers[5], "i", 4, first)
    if sequence >= 0:
        sequence = (sequence + delta) & MAX_INT32
    if (
        _load(buffers[2], "h", 2, row) & KIND_MASK != kind
        or _load(buffers[3], "q", 8, row) != _load(buffers[3], "q", 8, first)
        or _load(buffers[4], "h", 2, row) != _load(buffers[4], "h", 2, first)
        or _load(buffers[5], "i", 4, row) != sequence
    ):
        return False
    return not kind & LOG_APPEND_TIME or _load(buffers[1], "q", 8, row) == _load(buffers[1], "q", 8, first)


def encode_records(
    buffers: Sequence[Buffer],
    first_row: int,
    end_row: int,
    base_offset: int,
    out: bytearray,
    start_byte: int,
    max_bytes: int,
) -> tuple[int, int, int, int]:
    """Write rows as the records of one batch; see the compiled twin for arguments and answer."""
    if start_byte < 0 or base_offset < 0:
        raise ValueError("positions and offsets count up from zero")
    header_count = _whole_headers(buffers)
    if first_row < 0 or end_row > _whole_rows(buffers) or header_count < 0:
        return COLUMN_SIZE, first_row, start_byte, -1
    row, end, high = first_row, start_byte, -1
    previous = base_offset - 1
    while row < end_row:
        offset = _load(buffers[0], "q", 8, row)
        if offset <= previous:
            return ROW_ORDER, row, end, high
        if offset - base_offset > MAX_INT32:
            return (OK if row > first_row else ROW_ORDER), row, end, high
        if row > first_row and not _same_batch(
            buffers, first_row, row, offset - _load(buffers[0], "q", 8, first_row)
        ):
            break
        timestamp = _load(buffers[1], "q", 8, row)
        delta = _wrapped(timestamp - _load(buffers[1], "q", 8, first_row))
        try:
            record = _row_bytes(buffers, row, header_count, delta, offset - base_offset)
        except _Fault as fault:
            return fault.code, row, end, high
        if row > first_row and len(record) > max_bytes - (end - start_byte):
            break
        if len(record) > len(out) - end:
            return NO_ROOM, row, end, high
        out[end : end + len(record)] = record
        end += len(record)
        high = timestamp if row == first_row else max(high, timestamp)
        previous = offset
        row += 1
    return OK, row, end, high


def _murmur2(data: bytes) -> int:
    mask, mixer = 0xFFFFFFFF, 0x5BD1E995
    hashed = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for word in unpack_from(f"<{whole // 4}I", data):
        word = word * mixer & mask
        word = (word ^ word >> 24) * mixer & mask
        hashed = (hashed * mixer & mask) ^ word
    if whole < len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * mixer & mask
    hashed = (hashed ^ hashed >> 13) * mixer & mask
    return hashed ^ hashed >> 15


def place_keys(
    offsets: Buffer, data: Buffer, validity: Buffer, partition_count: int, out: bytearray
) -> tuple[int, int]:
    """Write the partition of every key; see the compiled twin for arguments and answer."""
    if partition_count < 1:
        raise ValueError("a topic has at least one partition")
    rows = len(out) // 4
    if len(offsets) // 4 - 1 < rows or (len(validity) and len(validity) * 8 < rows):
        return COLUMN_SIZE, 0
    for row in range(rows):
        try:
            key = _locate(offsets, data, validity, row)
        except _Fault as fault:
            return fault.code, row
        placed = -1 if key is None else (_murmur2(key) & MAX_INT32) % partition_count
        pack_into("=i", out, 4 * row, placed)
    return OK, rows
