"""Lists of offsets whose rows a rewrite leaves out, as objects that tasks read: too long for a task's message.

    offset i64 | offset i64 | … | CRC-32C of everything before it u32

Little-endian, ascending, each offset once. Reading checks all of it: a wrong list would lose records.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from struct import Struct
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from headrace.errors import Corrupt
from headrace.tables.arrow_runs import is_rising

_CRC = Struct("<I")
_OFFSET_BYTES: Final = 8


def pack_offsets(offsets: Iterable[int]) -> bytes:
    """Return offsets, which ascend, as the bytes of an object."""
    listed = pa.array(offsets, pa.int64())
    assert is_rising(listed), "offsets ascend"
    data = b"" if len(listed) == 0 else bytes(listed.buffers()[1])[: len(listed) * _OFFSET_BYTES]
    return data + _CRC.pack(crc32c(data))


def unpack_offsets(data: bytes | bytearray | memoryview, source: str) -> Any:
    """Return an object's offsets as an Arrow array. Raises `Corrupt`."""
    view = memoryview(data)
    body = view[: max(0, len(view) - _CRC.size)]
    if len(view) < _CRC.size or len(body) % _OFFSET_BYTES:
        raise Corrupt(f"{source} has {len(view)} bytes, which is no list of offsets")
    (written_crc,) = _CRC.unpack(view[len(body) :])
    found_crc = crc32c(body)
    if found_crc != written_crc:
        raise Corrupt(f"{source} has CRC-32C {found_crc:08x}, {written_crc:08x} was written")
    offsets = pa.Array.from_buffers(pa.int64(), len(body) // _OFFSET_BYTES, [None, pa.py_buffer(bytes(body))])
    if not is_rising(offsets):
        raise Corrupt(f"{source} does not list its offsets in order")
    return offsets


def without(rows: Any, dropped: Any, *, offset_column: str) -> Any:
    """Return a record batch, whose offsets ascend, without the rows whose offsets are listed."""
    if not len(dropped) or not rows.num_rows:
        return rows
    offsets = rows.column(offset_column)
    listed = memoryview(dropped.buffers()[1]).cast("q")
    first = bisect_left(listed, offsets[0].as_py())
    end = bisect_right(listed, offsets[-1].as_py())
    if first == end:
        return rows
    return rows.filter(pc.invert(pc.is_in(offsets, value_set=dropped.slice(first, end - first))))
