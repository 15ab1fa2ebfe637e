# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The loops that touch single records: bytes to columns, columns to bytes, keys to partitions, and a walk that looks.

`_columns_py.py` is the twin in plain Python: same names, same arguments, same answers; change both together. The
functions raise nothing about the data. They answer with a fault code and the row it was met in, and `kernel.py`
turns that into an error.

Must stay true: no byte outside a buffer is read or written, whatever the bytes say. Each length is compared with what
is left before it is used, and every write with the room there is. Buffers are held for the whole call, so that the GIL
can be released and nobody can resize them meanwhile.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

# The codes are named and explained in `kernel.py` (class Fault).
cdef enum:
    OK = 0
    VARINT = 1
    PAST_END = 2
    RECORD_LENGTH = 3
    RECORD_END = 4
    OFFSET_DELTA = 5
    FIELD_LENGTH = 6
    HEADER_COUNT = 7
    HEADER_KEY = 8
    TRAILING = 9
    COUNT = 10
    COLUMN_SIZE = 11
    COLUMN_OFFSETS = 12
    ROW_ORDER = 13
    ROW_SIZE = 14
    NO_ROOM = 15

# The order of the buffers is that of `kernel.py` (class Part).
cdef enum:
    OFFSET = 0
    TIMESTAMP = 1
    ATTRIBUTES = 2
    PRODUCER_ID = 3
    PRODUCER_EPOCH = 4
    SEQUENCE = 5
    KEY_OFFSETS = 6
    KEY_DATA = 7
    KEY_VALIDITY = 8
    VALUE_OFFSETS = 9
    VALUE_DATA = 10
    VALUE_VALIDITY = 11
    HEADER_OFFSETS = 12
    HEADER_KEY_OFFSETS = 13
    HEADER_KEY_DATA = 14
    HEADER_VALUE_OFFSETS = 15
    HEADER_VALUE_DATA = 16
    HEADER_VALUE_VALIDITY = 17
    BUFFERS = 18

cdef enum:
    # One byte each of length, attributes, timestamp, offset, key length, value length and header count.
    MIN_RECORD_BYTES = 7
    MIN_HEADER_BYTES = 2
    LOG_APPEND_TIME = 0x08
    # What rows of one batch must share: neither the codec nor the delete horizon is a property of its records.
    KIND_MASK = 0xFFB8
    MAX_INT32 = 0x7FFFFFFF


cdef struct Span:
    const uint8_t* data
    Py_ssize_t size


cdef struct Field:
    Py_ssize_t start
    int32_t size


cdef struct Cursor:
    int64_t rows
    int64_t key_bytes
    int64_t value_bytes
    int64_t headers
    int64_t header_key_bytes
    int64_t header_value_bytes
    int64_t null_keys
    int64_t null_values
    int64_t null_header_values


cdef inline int read_varint(const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, int32_t* value) noexcept nogil:
    cdef Py_ssize_t at = position[0]
    cdef uint32_t raw
    cdef uint32_t byte
    cdef int shift = 7
    if at >= end:
        return PAST_END
    raw = data[at]
    at += 1
    if raw >= 0x80:
        raw &= 0x7F
        while True:
            if at >= end:
                return PAST_END
            byte = data[at]
            at += 1
            if shift == 28 and byte > 0x0F:
                return VARINT
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
    position[0] = at
    value[0] = <int32_t> ((raw >> 1) ^ (0 - (raw & 1)))
    return OK


cdef inline int read_varlong(const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, int64_t* value) noexcept nogil:
    cdef Py_ssize_t at = position[0]
    cdef uint64_t raw
    cdef uint64_t byte
    cdef int shift = 7
    if at >= end:
        return PAST_END
    raw = data[at]
    at += 1
    if raw >= 0x80:
        raw &= 0x7F
        while True:
            if at >= end:
                return PAST_END
            byte = data[at]
            at += 1
            if shift == 63 and byte > 0x01:
                return VARINT
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
    position[0] = at
    value[0] = <int64_t> ((raw >> 1) ^ (0 - (raw & 1)))
    return OK


cdef inline int read_field(const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, Field* field) noexcept nogil:
    """Find a nullable byte string: size −1 is null, everything below it a lie."""
    cdef int code = read_varint(data, position, end, &field.size)
    if code != OK:
        return code
    if field.size < -1 or field.size > end - position[0]:
        return FIELD_LENGTH
    field.start = position[0]
    if field.size > 0:
        position[0] += field.size
    return OK


cdef inline int read_header(
    const uint8_t* data, Py_ssize_t* position, Py_ssize_t end, Field* key, Field* value
) noexcept nogil:
    cdef int code = read_field(data, position, end, key)
    if code == FIELD_LENGTH or (code == OK and key.size < 0):
        return HEADER_KEY
    if code != OK:
        return code
    return read_field(data, position, end, value)


cdef struct Head:
    Py_ssize_t end
    int64_t timestamp_delta
    int32_t offset_delta
    Field key
    Field value
    int32_t headers


cdef inline int read_head(
    const uint8_t* data,
    Py_ssize_t* position,
    Py_ssize_t size,
    int64_t row,
    int64_t previous_delta,
    int32_t last_offset_delta,
    bint dense,
    Head* head,
) noexcept nogil:
    """Read a record up to its headers."""
    cdef int32_t length
    cdef int code = read_varint(data, position, size, &length)
    if code != OK:
        return code
    if length < 0 or length > size - position[0]:
        return RECORD_LENGTH
    head.end = position[0] + length
    if position[0] >= head.end:
        return PAST_END
    position[0] += 1
    code = read_varlong(data, position, head.end, &head.timestamp_delta)
    if code != OK:
        return code
    code = read_varint(data, position, head.end, &head.offset_delta)
    if code != OK:
        return code
    if head.offset_delta <= previous_delta or head.offset_delta > last_offset_delta:
        return OFFSET_DELTA
    if dense and head.offset_delta != row:
        return OFFSET_DELTA
    code = read_field(data, position, head.end, &head.key)
    if code != OK:
        return code
    code = read_field(data, position, head.end, &head.value)
    if code != OK:
        return code
    code = read_varint(data, position, head.end, &head.headers)
    if code != OK:
        return code
    if head.headers < 0 or head.headers > (head.end - position[0]) // MIN_HEADER_BYTES:
        return HEADER_COUNT
    return OK


cdef struct Walk:
    Cursor totals
    int64_t min_timestamp
    int64_t max_timestamp
    int32_t max_timestamp_delta


cdef int walk(
    const uint8_t* data,
    Py_ssize_t size,
    int64_t count,
    int32_t last_offset_delta,
    int64_t base_timestamp,
    bint dense,
    Walk* seen,
) noexcept nogil:
    cdef Cursor* totals = &seen.totals
    cdef Py_ssize_t position = 0
    cdef int64_t previous_delta = -1
    cdef int64_t timestamp
    cdef int32_t index
    cdef Head head
    cdef Field key
    cdef Field value
    cdef int code
    if count < 0 or count > size // MIN_RECORD_BYTES:
        return COUNT
    while totals.rows < count:
        code = read_head(data, &position, size, totals.rows, previous_delta, last_offset_delta, dense, &head)
        if code != OK:
            return code
        for index in range(head.headers):
            code = read_header(data, &position, head.end, &key, &value)
            if code != OK:
                return code
            totals.header_key_bytes += key.size
            if value.size >= 0:
                totals.header_value_bytes += value.size
        if position != head.end:
            return RECORD_END
        previous_delta = head.offset_delta
        # Wraps like Java's long: −1 and Long.MAX in one batch have a delta that does not fit, and still come out right.
        timestamp = <int64_t> (<uint64_t> base_timestamp + <uint64_t> head.timestamp_delta)
        if totals.rows == 0 or timestamp < seen.min_timestamp:
            seen.min_timestamp = timestamp
        if totals.rows == 0 or timestamp > seen.max_timestamp:
            seen.max_timestamp = timestamp
            seen.max_timestamp_delta = head.offset_delta
        if head.key.size >= 0:
            totals.key_bytes += head.key.size
        if head.value.size >= 0:
            totals.value_bytes += head.value.size
        totals.headers += head.headers
        totals.rows += 1
    return OK if position == size else TRAILING


def walk_records(body, count, last_offset_delta, base_timestamp, dense):
    """Check every record and say what the batch holds.

    Answer (fault, row, key bytes, value bytes, headers, header key bytes, header value bytes, min timestamp,
    max timestamp, offset delta of the max). `dense` demands the offset deltas 0, 1, 2… that a producer must send.
    """
    cdef Py_buffer view
    cdef Walk seen
    cdef int64_t c_count = count
    cdef int32_t c_last = last_offset_delta
    cdef int64_t c_base = base_timestamp
    cdef bint c_dense = dense
    cdef int code
    seen.totals = Cursor(0, 0, 0, 0, 0, 0, 0, 0, 0)
    seen.min_timestamp = seen.max_timestamp = -1
    seen.max_timestamp_delta = -1
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            code = walk(<const uint8_t*> view.buf, view.len, c_count, c_last, c_base, c_dense, &seen)
    finally:
        PyBuffer_Release(&view)
    return (
        code,
        seen.totals.rows,
        seen.totals.key_bytes,
        seen.totals.value_bytes,
        seen.totals.headers,
        seen.totals.header_key_bytes,
        seen.totals.header_value_bytes,
        seen.min_timestamp,
        seen.max_timestamp,
        seen.max_timestamp_delta,
    )


cdef inline void set_bit(uint8_t* bits, int64_t index, bint is_set) noexcept nogil:
    # The buffer may be recycled: what lies behind the index is cleared on the way.
    cdef int bit = index & 7
    bits[index >> 3] = <uint8_t> ((bits[index >> 3] & ((1 << bit) - 1)) | (is_set << bit))


cdef struct Batch:
    int64_t count
    int64_t base_offset
    int32_t last_offset_delta
    int64_t base_timestamp
    int64_t max_timestamp
    int16_t attributes
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence


cdef inline int put_headers(
    const uint8_t* data, Py_ssize_t* position, Head* head, Py_buffer* columns, int64_t header_room, Cursor* cursor
) noexcept nogil:
    cdef uint8_t* key_data = <uint8_t*> columns[HEADER_KEY_DATA].buf
    cdef uint8_t* value_data = <uint8_t*> columns[HEADER_VALUE_DATA].buf
    cdef Field key
    cdef Field value
    cdef int32_t index
    cdef int code
    if head.headers > header_room - cursor.headers:
        return NO_ROOM
    for index in range(head.headers):
        code = read_header(data, position, head.end, &key, &value)
        if code != OK:
            return code
        if key.size > columns[HEADER_KEY_DATA].len - cursor.header_key_bytes:
            return NO_ROOM
        memcpy(key_data + cursor.header_key_bytes, data + key.start, key.size)
        cursor.header_key_bytes += key.size
        if value.size > columns[HEADER_VALUE_DATA].len - cursor.header_value_bytes:
            return NO_ROOM
        if value.size > 0:
            memcpy(value_data + cursor.header_value_bytes, data + value.start, value.size)
            cursor.header_value_bytes += value.size
        cursor.null_header_values += value.size < 0
        set_bit(<uint8_t*> columns[HEADER_VALUE_VALIDITY].buf, cursor.headers, value.size >= 0)
        cursor.headers += 1
        (<int32_t*> columns[HEADER_KEY_OFFSETS].buf)[cursor.headers] = <int32_t> cursor.header_key_bytes
        (<int32_t*> columns[HEADER_VALUE_OFFSETS].buf)[cursor.headers] = <int32_t> cursor.header_value_bytes
    return OK


cdef int64_t room_for_rows(Py_buffer* columns) noexcept nogil:
    cdef int64_t room = columns[OFFSET].len // 8
    room = min(room, columns[TIMESTAMP].len // 8)
    room = min(room, columns[ATTRIBUTES].len // 2)
    room = min(room, columns[PRODUCER_ID].len // 8)
    room = min(room, columns[PRODUCER_EPOCH].len // 2)
    room = min(room, columns[SEQUENCE].len // 4)
    room = min(room, columns[KEY_OFFSETS].len // 4 - 1)
    room = min(room, columns[VALUE_OFFSETS].len // 4 - 1)
    room = min(room, columns[HEADER_OFFSETS].len // 4 - 1)
    room = min(room, columns[KEY_VALIDITY].len * 8)
    return min(room, columns[VALUE_VALIDITY].len * 8)


cdef int64_t room_for_headers(Py_buffer* columns) noexcept nogil:
    cdef int64_t room = columns[HEADER_KEY_OFFSETS].len // 4 - 1
    room = min(room, columns[HEADER_VALUE_OFFSETS].len // 4 - 1)
    return min(room, columns[HEADER_VALUE_VALIDITY].len * 8)


cdef int decode(
    const uint8_t* data, Py_ssize_t size, Batch* batch, Py_buffer* columns, Cursor* cursor, int64_t* row
) noexcept nogil:
    cdef int64_t* offsets = <int64_t*> columns[OFFSET].buf
    cdef int64_t* timestamps = <int64_t*> columns[TIMESTAMP].buf
    cdef int16_t* attributes = <int16_t*> columns[ATTRIBUTES].buf
    cdef int64_t* producer_ids = <int64_t*> columns[PRODUCER_ID].buf
    cdef int16_t* producer_epochs = <int16_t*> columns[PRODUCER_EPOCH].buf
    cdef int32_t* sequences = <int32_t*> columns[SEQUENCE].buf
    cdef int32_t* key_offsets = <int32_t*> columns[KEY_OFFSETS].buf
    cdef int32_t* value_offsets = <int32_t*> columns[VALUE_OFFSETS].buf
    cdef int32_t* header_offsets = <int32_t*> columns[HEADER_OFFSETS].buf
    cdef uint8_t* key_data = <uint8_t*> columns[KEY_DATA].buf
    cdef uint8_t* value_data = <uint8_t*> columns[VALUE_DATA].buf
    cdef uint8_t* key_bits = <uint8_t*> columns[KEY_VALIDITY].buf
    cdef uint8_t* value_bits = <uint8_t*> columns[VALUE_VALIDITY].buf
    cdef int64_t key_room = columns[KEY_DATA].len
    cdef int64_t value_room = columns[VALUE_DATA].len
    cdef int64_t header_room = room_for_headers(columns)
    cdef int64_t at = cursor.rows
    cdef int64_t previous_delta = -1
    cdef Py_ssize_t position = 0
    cdef bint is_append_time = (batch.attributes & LOG_APPEND_TIME) != 0
    cdef Head head
    cdef int code
    if batch.count < 0 or batch.count > size // MIN_RECORD_BYTES:
        return COUNT
    if batch.count > room_for_rows(columns) - at or at < 0:
        return NO_ROOM
    while row[0] < batch.count:
        code = read_head(data, &position, size, row[0], previous_delta, batch.last_offset_delta, False, &head)
        if code != OK:
            return code
        previous_delta = head.offset_delta
        if head.key.size > key_room - cursor.key_bytes or head.value.size > value_room - cursor.value_bytes:
            return NO_ROOM
        if head.key.size > 0:
            memcpy(key_data + cursor.key_bytes, data + head.key.start, head.key.size)
            cursor.key_bytes += head.key.size
        if head.value.size > 0:
            memcpy(value_data + cursor.value_bytes, data + head.value.start, head.value.size)
            cursor.value_bytes += head.value.size
        if head.headers > 0:
            code = put_headers(data, &position, &head, columns, header_room, cursor)
            if code != OK:
                return code
        if position != head.end:
            return RECORD_END
        cursor.null_keys += head.key.size < 0
        cursor.null_values += head.value.size < 0
        set_bit(key_bits, at, head.key.size >= 0)
        set_bit(value_bits, at, head.value.size >= 0)
        offsets[at] = batch.base_offset + head.offset_delta
        if is_append_time:
            timestamps[at] = batch.max_timestamp
        else:
            timestamps[at] = <int64_t> (<uint64_t> batch.base_timestamp + <uint64_t> head.timestamp_delta)
        attributes[at] = batch.attributes
        producer_ids[at] = batch.producer_id
        producer_epochs[at] = batch.producer_epoch
        sequences[at] = batch.base_sequence
        if batch.base_sequence >= 0:
            sequences[at] = <int32_t> ((<uint32_t> batch.base_sequence + <uint32_t> head.offset_delta) & MAX_INT32)
        at += 1
        row[0] += 1
        key_offsets[at] = <int32_t> cursor.key_bytes
        value_offsets[at] = <int32_t> cursor.value_bytes
        header_offsets[at] = <int32_t> cursor.headers
    cursor.rows = at
    return OK if position == size else TRAILING


def decode_records(body, batch, buffers, cursor):
    """Append the records of one batch to the columns.

    `batch` is (count, base offset, last offset delta, base timestamp, max timestamp, attributes, producer id, producer
    epoch, base sequence); `buffers` are writable, in the order of `Part`, offset buffers begun with their 0;
    `cursor` says how much of them is used. Answer (fault, row, new cursor). After a fault the buffers behind the old
    cursor hold rubbish; the old cursor stays good. The caller keeps data buffers below 2 GiB and the offsets in range.
    """
    cdef Py_buffer view
    cdef Py_buffer columns[BUFFERS]
    cdef Cursor used
    cdef Batch facts
    cdef int64_t row = 0
    cdef int held = 0
    cdef int code
    (facts.count, facts.base_offset, facts.last_offset_delta, facts.base_timestamp, facts.max_timestamp,
     facts.attributes, facts.producer_id, facts.producer_epoch, facts.base_sequence) = batch
    (used.rows, used.key_bytes, used.value_bytes, used.headers, used.header_key_bytes, used.header_value_bytes,
     used.null_keys, used.null_values, used.null_header_values) = cursor
    if min(cursor) < 0:
        raise ValueError("a cursor counts up from zero")
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        for held in range(BUFFERS):
            PyObject_GetBuffer(buffers[held], &columns[held], PyBUF_WRITABLE)
        held = BUFFERS
        with nogil:
            code = decode(<const uint8_t*> view.buf, view.len, &facts, columns, &used, &row)
    finally:
        while held > 0:
            held -= 1
            PyBuffer_Release(&columns[held])
        PyBuffer_Release(&view)
    return (
        code,
        row,
        (
            used.rows,
            used.key_bytes,
            used.value_bytes,
            used.headers,
            used.header_key_bytes,
            used.header_value_bytes,
            used.null_keys,
            used.null_values,
            used.null_header_values,
        ),
    )


cdef inline int64_t load64(const Span* column, int64_t index) noexcept nogil:
    cdef int64_t value
    memcpy(&value, column.data + index * 8, 8)
    return value


cdef inline int32_t load32(const Span* column, int64_t index) noexcept nogil:
    cdef int32_t value
    memcpy(&value, column.data + index * 4, 4)
    return value


cdef inline int16_t load16(const Span* column, int64_t index) noexcept nogil:
    cdef int16_t value
    memcpy(&value, column.data + index * 2, 2)
    return value


cdef inline int locate(
    const Span* offsets, const Span* data, const Span* validity, int64_t index, Field* field
) noexcept nogil:
    """Find one value of a binary column; an empty validity means that nothing is null."""
    cdef int32_t start
    cdef int32_t end
    if validity.size and not (validity.data[index >> 3] >> (index & 7)) & 1:
        field.start = 0
        field.size = -1
        return OK
    start = load32(offsets, index)
    end = load32(offsets, index + 1)
    if start < 0 or end < start or end > data.size:
        return COLUMN_OFFSETS
    field.start = start
    field.size = end - start
    return OK


cdef inline int varint_size(int32_t value) noexcept nogil:
    cdef uint32_t raw = (<uint32_t> value << 1) ^ <uint32_t> (value >> 31)
    cdef int size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


cdef inline int varlong_size(int64_t value) noexcept nogil:
    cdef uint64_t raw = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    cdef int size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


cdef inline uint8_t* put_varlong(uint8_t* out, int64_t value) noexcept nogil:
    """Write a varint of either width: the encodings of a 32-bit and a 64-bit value are the same bytes."""
    cdef uint64_t raw = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    while raw >= 0x80:
        out[0] = <uint8_t> (raw | 0x80)
        out += 1
        raw >>= 7
    out[0] = <uint8_t> raw
    return out + 1


cdef inline uint8_t* put_field(uint8_t* out, const Span* data, Field* field) noexcept nogil:
    out = put_varlong(out, field.size)
    if field.size > 0:
        memcpy(out, data.data + field.start, field.size)
        out += field.size
    return out


cdef inline int64_t field_size(Field* field) noexcept nogil:
    return varint_size(field.size) + (field.size if field.size > 0 else 0)


cdef int locate_header(Span* columns, int64_t index, Field* key, Field* value) noexcept nogil:
    cdef Span never_null
    cdef int code
    never_null.data = NULL
    never_null.size = 0
    code = locate(&columns[HEADER_KEY_OFFSETS], &columns[HEADER_KEY_DATA], &never_null, index, key)
    if code != OK:
        return code
    return locate(
        &columns[HEADER_VALUE_OFFSETS],
        &columns[HEADER_VALUE_DATA],
        &columns[HEADER_VALUE_VALIDITY],
        index,
        value,
    )


cdef int64_t whole_rows(Span* columns) noexcept nogil:
    cdef int64_t rows = columns[OFFSET].size // 8
    rows = min(rows, columns[TIMESTAMP].size // 8)
    rows = min(rows, columns[ATTRIBUTES].size // 2)
    rows = min(rows, columns[PRODUCER_ID].size // 8)
    rows = min(rows, columns[PRODUCER_EPOCH].size // 2)
    rows = min(rows, columns[SEQUENCE].size // 4)
    rows = min(rows, columns[KEY_OFFSETS].size // 4 - 1)
    rows = min(rows, columns[VALUE_OFFSETS].size // 4 - 1)
    rows = min(rows, columns[HEADER_OFFSETS].size // 4 - 1)
    if columns[KEY_VALIDITY].size:
        rows = min(rows, columns[KEY_VALIDITY].size * 8)
    if columns[VALUE_VALIDITY].size:
        rows = min(rows, columns[VALUE_VALIDITY].size * 8)
    return rows


cdef int64_t whole_headers(Span* columns) noexcept nogil:
    cdef int64_t headers = columns[HEADER_KEY_OFFSETS].size // 4 - 1
    headers = min(headers, columns[HEADER_VALUE_OFFSETS].size // 4 - 1)
    if columns[HEADER_VALUE_VALIDITY].size:
        headers = min(headers, columns[HEADER_VALUE_VALIDITY].size * 8)
    return headers


cdef struct Row:
    int64_t timestamp_delta
    int32_t offset_delta
    Field key
    Field value
    int32_t first_header
    int32_t headers
    int64_t size


cdef int measure_row(Span* columns, int64_t index, int64_t header_count, Row* row) noexcept nogil:
    """Find the fields of a row and the size of its record without the leading length."""
    cdef Field key
    cdef Field value
    cdef int32_t header
    cdef int32_t end
    cdef int code = locate(&columns[KEY_OFFSETS], &columns[KEY_DATA], &columns[KEY_VALIDITY], index, &row.key)
    if code != OK:
        return code
    code = locate(&columns[VALUE_OFFSETS], &columns[VALUE_DATA], &columns[VALUE_VALIDITY], index, &row.value)
    if code != OK:
        return code
    row.first_header = load32(&columns[HEADER_OFFSETS], index)
    end = load32(&columns[HEADER_OFFSETS], index + 1)
    if row.first_header < 0 or end < row.first_header or end > header_count:
        return COLUMN_OFFSETS
    row.headers = end - row.first_header
    row.size = 1 + varlong_size(row.timestamp_delta) + varint_size(row.offset_delta) + varint_size(row.headers)
    row.size += field_size(&row.key) + field_size(&row.value)
    for header in range(row.first_header, end):
        code = locate_header(columns, header, &key, &value)
        if code != OK:
            return code
        row.size += field_size(&key) + field_size(&value)
    return OK if row.size <= MAX_INT32 else ROW_SIZE


cdef int put_row(Span* columns, Row* row, uint8_t* out, uint8_t* end) noexcept nogil:
    """Write a measured row. Header offsets are read anew, so they are judged anew: another thread may own the columns."""
    cdef Field key
    cdef Field value
    cdef int32_t header
    cdef int code
    out = put_varlong(out, row.size)
    out[0] = 0
    out = put_varlong(out + 1, row.timestamp_delta)
    out = put_varlong(out, row.offset_delta)
    out = put_field(out, &columns[KEY_DATA], &row.key)
    out = put_field(out, &columns[VALUE_DATA], &row.value)
    out = put_varlong(out, row.headers)
    for header in range(row.first_header, row.first_header + row.headers):
        code = locate_header(columns, header, &key, &value)
        if code != OK:
            return code
        if field_size(&key) + field_size(&value) > end - out:
            return COLUMN_OFFSETS
        out = put_field(out, &columns[HEADER_KEY_DATA], &key)
        out = put_field(out, &columns[HEADER_VALUE_DATA], &value)
    return OK


cdef inline bint same_batch(Span* columns, int64_t first, int64_t row, int64_t delta) noexcept nogil:
    """Whether a row can follow the first one in the same batch, `delta` offsets behind it."""
    cdef int kind = load16(&columns[ATTRIBUTES], first) & KIND_MASK
    cdef int32_t sequence = load32(&columns[SEQUENCE], first)
    if (load16(&columns[ATTRIBUTES], row) & KIND_MASK) != kind:
        return False
    if load64(&columns[PRODUCER_ID], row) != load64(&columns[PRODUCER_ID], first):
        return False
    if load16(&columns[PRODUCER_EPOCH], row) != load16(&columns[PRODUCER_EPOCH], first):
        return False
    if sequence >= 0:
        sequence = <int32_t> ((<uint32_t> sequence + <uint32_t> delta) & MAX_INT32)
    if load32(&columns[SEQUENCE], row) != sequence:
        return False
    if kind & LOG_APPEND_TIME:
        return load64(&columns[TIMESTAMP], row) == load64(&columns[TIMESTAMP], first)
    return True


cdef struct Progress:
    int64_t row
    Py_ssize_t end
    int64_t max_timestamp


cdef int encode(
    Span* columns,
    int64_t end_row,
    int64_t base_offset,
    uint8_t* out,
    Py_ssize_t out_size,
    Py_ssize_t max_bytes,
    Progress* done,
) noexcept nogil:
    cdef int64_t first = done.row
    cdef int64_t header_count = whole_headers(columns)
    cdef Py_ssize_t start = done.end
    cdef int64_t base_timestamp
    cdef int64_t offset
    cdef int64_t previous
    cdef int64_t timestamp
    cdef int64_t size
    cdef Row row
    cdef int code
    if first < 0 or end_row > whole_rows(columns) or header_count < 0:
        return COLUMN_SIZE
    if first >= end_row:
        return OK
    base_timestamp = load64(&columns[TIMESTAMP], first)
    previous = base_offset - 1
    while done.row < end_row:
        offset = load64(&columns[OFFSET], done.row)
        if offset <= previous:
            return ROW_ORDER
        # Unsigned, because two offsets may lie further apart than a signed number can say.
        if <uint64_t> offset - <uint64_t> base_offset > MAX_INT32:
            return OK if done.row > first else ROW_ORDER
        if done.row > first and not same_batch(
            columns, first, done.row, offset - load64(&columns[OFFSET], first)
        ):
            return OK
        timestamp = load64(&columns[TIMESTAMP], done.row)
        row.timestamp_delta = <int64_t> (<uint64_t> timestamp - <uint64_t> base_timestamp)
        row.offset_delta = <int32_t> (offset - base_offset)
        code = measure_row(columns, done.row, header_count, &row)
        if code != OK:
            return code
        size = varint_size(<int32_t> row.size) + row.size
        if done.row > first and size > max_bytes - (done.end - start):
            return OK
        if size > out_size - done.end:
            return NO_ROOM
        code = put_row(columns, &row, out + done.end, out + done.end + size)
        if code != OK:
            return code
        done.end += size
        if done.row == first or timestamp > done.max_timestamp:
            done.max_timestamp = timestamp
        previous = offset
        done.row += 1
    return OK


def encode_records(buffers, first_row, end_row, base_offset, out, start_byte, max_bytes):
    """Write rows from `first_row` on as the records of one batch, into `out` from `start_byte` on.

    Stop at `end_row`, before `max_bytes` are passed (one record is always written), and before a row that cannot share
    the batch. Answer (fault, row, end byte, max timestamp): without a fault `row` is the first that was not written,
    with one the row at fault.
    """
    cdef Py_buffer views[BUFFERS]
    cdef Span columns[BUFFERS]
    cdef Py_buffer target
    cdef Progress done
    cdef int64_t c_end_row = end_row
    cdef int64_t c_base_offset = base_offset
    cdef Py_ssize_t c_max_bytes = max_bytes
    cdef int held = 0
    cdef int code
    done.row = first_row
    done.end = start_byte
    done.max_timestamp = -1
    if start_byte < 0 or c_base_offset < 0:
        raise ValueError("positions and offsets count up from zero")
    PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
    try:
        for held in range(BUFFERS):
            PyObject_GetBuffer(buffers[held], &views[held], PyBUF_SIMPLE)
            columns[held].data = <const uint8_t*> views[held].buf
            columns[held].size = views[held].len
        held = BUFFERS
        with nogil:
            code = encode(
                columns, c_end_row, c_base_offset, <uint8_t*> target.buf, target.len, c_max_bytes, &done
            )
    finally:
        while held > 0:
            held -= 1
            PyBuffer_Release(&views[held])
        PyBuffer_Release(&target)
    return code, done.row, done.end, done.max_timestamp


cdef inline uint32_t murmur2(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Hash a key as Kafka's Java clients do, so that it lands where theirs do."""
    cdef uint32_t mixer = 0x5BD1E995
    cdef uint32_t hashed = <uint32_t> 0x9747B28C ^ <uint32_t> size
    cdef uint32_t word
    cdef Py_ssize_t at = 0
    while size - at >= 4:
        word = data[at] | (<uint32_t> data[at + 1] << 8)
        word |= (<uint32_t> data[at + 2] << 16) | (<uint32_t> data[at + 3] << 24)
        word *= mixer
        word ^= word >> 24
        word *= mixer
        hashed *= mixer
        hashed ^= word
        at += 4
    if size - at == 3:
        hashed ^= <uint32_t> data[at + 2] << 16
    if size - at >= 2:
        hashed ^= <uint32_t> data[at + 1] << 8
    if size - at >= 1:
        hashed ^= data[at]
        hashed *= mixer
    hashed ^= hashed >> 13
    hashed *= mixer
    return hashed ^ (hashed >> 15)


def place_keys(offsets, data, validity, partition_count, out):
    """Write the partition of every key into `out`, int32 each, −1 where there is no key; `out` says how many rows.

    Answer (fault, row): without a fault `row` is how many were written, with one the row at fault.
    """
    cdef Py_buffer views[4]
    cdef Span columns[3]
    cdef Field key
    cdef int32_t* placed
    cdef uint32_t count = partition_count
    cdef int64_t rows
    cdef int64_t row = 0
    cdef int held = 0
    cdef int code = OK
    if partition_count < 1:
        raise ValueError("a topic has at least one partition")
    PyObject_GetBuffer(out, &views[3], PyBUF_WRITABLE)
    try:
        for held, buffer in enumerate((offsets, data, validity)):
            PyObject_GetBuffer(buffer, &views[held], PyBUF_SIMPLE)
            columns[held].data = <const uint8_t*> views[held].buf
            columns[held].size = views[held].len
        held = 3
        placed = <int32_t*> views[3].buf
        rows = views[3].len // 4
        with nogil:
            if columns[0].size // 4 - 1 < rows or (columns[2].size and columns[2].size * 8 < rows):
                code = COLUMN_SIZE
            while code == OK and row < rows:
                code = locate(&columns[0], &columns[1], &columns[2], row, &key)
                if code == OK:
                    if key.size < 0:
                        placed[row] = -1
                    else:
                        placed[row] = (murmur2(columns[1].data + key.start, key.size) & MAX_INT32) % count
                    row += 1
    finally:
        while held > 0:
            held -= 1
            PyBuffer_Release(&views[held])
        PyBuffer_Release(&views[3])
    return code, row
