"""Turn record batches into columns.

The columns are plain buffers in Arrow's layout, so that pyarrow can take them without a copy (`arrow.py`) and the
core needs no pyarrow. A `ColumnBuilder` keeps its buffers from one use to the next: a warm loop touches no fresh
memory.

Must stay true:
- What a batch claims is never allocated, only what was walked and found to be there.
- A batch that fails leaves the builder as it was.
- A buffer that somebody can still see is never written again: `clear` lets go of it and takes a fresh one.
"""

from dataclasses import dataclass
from typing import Final

from headrace.errors import HeadraceError
from headrace.records.batch import HEADER_BYTES, MAX_INT32, BatchView, Codec
from headrace.records.codecs import decompress
from headrace.records.kernel import IMPLEMENTATION, KERNEL, Fault, Kernel, Part, explain

__all__ = ["IMPLEMENTATION", "BuilderFull", "ColumnBuilder", "Columns", "Walked", "walk"]

MAX_OPEN_BYTES: Final = 64 * 1024 * 1024
"""What a batch may become when it is opened, unless the caller says otherwise."""

_NO_ROWS: Final = (0,) * 9


class BuilderFull(HeadraceError):
    """The builder's 32-bit offsets are used up: take its columns, clear it, append the batch again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Records as columns. `buffers` is indexed by `Part`; a validity without bytes means that nothing is null.

    Half-open, `start_offset` to `end_offset` is what the batches covered, gaps and empty batches included.
    """

    row_count: int
    header_count: int
    null_key_count: int = 0
    null_value_count: int = 0
    null_header_value_count: int = 0
    start_offset: int
    end_offset: int
    buffers: tuple[memoryview, ...]

    @property
    def offset(self) -> memoryview:
        """The log offset of each record, as int64."""
        return self.buffers[Part.OFFSET].cast("q")

    @property
    def timestamp_ms(self) -> memoryview:
        """The time of each record, as int64: the append time where the batch says so."""
        return self.buffers[Part.TIMESTAMP_MS].cast("q")

    @property
    def attributes(self) -> memoryview:
        """The attributes of each record's batch, as int16."""
        return self.buffers[Part.ATTRIBUTES].cast("h")

    @property
    def producer_id(self) -> memoryview:
        """The producer of each record, as int64; −1 for none."""
        return self.buffers[Part.PRODUCER_ID].cast("q")

    @property
    def producer_epoch(self) -> memoryview:
        """The producer's epoch, as int16; −1 for none."""
        return self.buffers[Part.PRODUCER_EPOCH].cast("h")

    @property
    def sequence(self) -> memoryview:
        """The producer's number for each record, as int32; −1 for none."""
        return self.buffers[Part.SEQUENCE].cast("i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """What a look at every record tells. Timestamps are the records' own; −1 all three where there is no record."""

    min_timestamp_ms: int
    max_timestamp_ms: int
    max_timestamp_offset_delta: int


def walk(view: BatchView, *, dense: bool, max_open_bytes: int = MAX_OPEN_BYTES, kernel: Kernel = KERNEL) -> Walked:
    """Check every record of a batch without copying it; raise `InvalidBatch`.

    `dense` demands what a producer must send: offset deltas 0, 1, 2… without a gap. The CRC is the caller's to check.
    """
    view.check_header()
    body = _open(view, max_open_bytes)
    code, row, *_, low, high, high_delta = kernel.walk_records(
        body, view.record_count, view.last_offset_delta, view.base_timestamp_ms, dense
    )
    if code:
        raise explain(code, row, _name(view))
    return Walked(min_timestamp_ms=low, max_timestamp_ms=high, max_timestamp_offset_delta=high_delta)


class ColumnBuilder:
    """Collects batches into columns, in buffers that are used again after `clear`."""

    __slots__ = ("_buffers", "_cursor", "_end_offset", "_kernel", "_max_open_bytes", "_start_offset")

    def __init__(self, *, max_open_bytes: int = MAX_OPEN_BYTES, kernel: Kernel = KERNEL) -> None:
        self._max_open_bytes = max_open_bytes
        self._kernel = kernel
        self._buffers = [bytearray(4) for _ in Part]
        self._cursor: tuple[int, ...] = _NO_ROWS
        self._start_offset: int | None = None
        self._end_offset = 0

    @property
    def row_count(self) -> int:
        """How many records are in the columns."""
        return self._cursor[0]

    @property
    def data_bytes(self) -> int:
        """How many bytes of keys, values and headers are in the columns."""
        return self._cursor[1] + self._cursor[2] + self._cursor[4] + self._cursor[5]

    @property
    def capacity_bytes(self) -> int:
        """How much memory the builder holds on to, used or not."""
        return sum(len(buffer) for buffer in self._buffers)

    def append(self, view: BatchView) -> None:
        """Add the records of a batch, control batches included. The CRC is the caller's to check.

        Raise `InvalidBatch`, or `BuilderFull` when the columns would pass 2 GiB; the builder is unchanged then.
        """
        view.check_header()
        body = _open(view, self._max_open_bytes)
        facts = (
            view.record_count,
            view.base_offset,
            view.last_offset_delta,
            view.base_timestamp_ms,
            view.max_timestamp_ms,
            view.attributes,
            view.producer_id,
            view.producer_epoch,
            view.base_sequence,
        )
        code, row, cursor = self._kernel.decode_records(body, facts, self._buffers, self._cursor)
        if code == Fault.NO_ROOM:
            self._make_room(view, body)
            code, row, cursor = self._kernel.decode_records(body, facts, self._buffers, self._cursor)
        if code:
            raise explain(code, row, _name(view))
        self._cursor = cursor
        if self._start_offset is None:
            self._start_offset = view.base_offset
        self._end_offset = view.end_offset

    def columns(self) -> Columns:
        """Return what was collected, without a copy.

        The views stay good after `clear`; as long as they live, though, the next use of the builder pays for fresh
        memory. A loop that wants its buffers back drops the columns first.
        """
        rows, key_bytes, value_bytes, headers, header_key_bytes, header_value_bytes, *nulls = self._cursor
        sizes = _sizes(rows, key_bytes, value_bytes, headers, header_key_bytes, header_value_bytes)
        validities = (Part.KEY_VALIDITY, Part.VALUE_VALIDITY, Part.HEADER_VALUE_VALIDITY)
        for part, null_count in zip(validities, nulls, strict=True):
            if null_count == 0:
                sizes[part] = 0
        return Columns(
            row_count=rows,
            header_count=headers,
            null_key_count=nulls[0],
            null_value_count=nulls[1],
            null_header_value_count=nulls[2],
            start_offset=self._start_offset or 0,
            end_offset=self._end_offset,
            buffers=tuple(
                memoryview(buffer)[:size].toreadonly() for buffer, size in zip(self._buffers, sizes, strict=True)
            ),
        )

    def clear(self) -> None:
        """Forget the records and keep the buffers, except those that somebody still looks at."""
        for index, buffer in enumerate(self._buffers):
            if is_seen(buffer):
                self._buffers[index] = bytearray(len(buffer))
        self._cursor = _NO_ROWS
        self._start_offset = None
        self._end_offset = 0

    def _make_room(self, view: BatchView, body: bytes | memoryview) -> None:
        """Measure the batch, which also finds its faults, and grow the buffers it does not fit into."""
        code, row, *totals = self._kernel.walk_records(
            body, view.record_count, view.last_offset_delta, view.base_timestamp_ms, False
        )
        if code:
            raise explain(code, row, _name(view))
        needed = [used + more for used, more in zip(self._cursor[:6], (row, *totals[:5]), strict=True)]
        if max(needed) > MAX_INT32:
            raise BuilderFull(f"{self.row_count} rows of {self.data_bytes} bytes leave no room for {_name(view)}")
        used_sizes = _sizes(*self._cursor[:6])
        # The kernel believes that what fits into the buffers fits into 32-bit offsets: no buffer grows past them.
        most_sizes = _sizes(*[MAX_INT32] * 6)
        for index, size in enumerate(_sizes(*needed)):
            old = self._buffers[index]
            if len(old) < size:
                grown = bytearray(max(size, min(2 * used_sizes[index], most_sizes[index])))
                grown[: used_sizes[index]] = memoryview(old)[: used_sizes[index]]
                self._buffers[index] = grown


def is_seen(buffer: bytearray) -> bool:
    """Whether any view of the buffer is alive. A bytearray refuses to change its length while there is one."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False


def _sizes(
    rows: int, key_bytes: int, value_bytes: int, headers: int, header_key_bytes: int, header_value_bytes: int
) -> list[int]:
    """Return how many bytes each part has, in the order of `Part`."""
    row_bits = (rows + 7) // 8
    row_ends = 4 * (rows + 1)
    header_ends = 4 * (headers + 1)
    keys = [row_ends, key_bytes, row_bits]
    values = [row_ends, value_bytes, row_bits]
    header_values = [header_ends, header_value_bytes, (headers + 7) // 8]
    fixed = [8 * rows, 8 * rows, 2 * rows, 8 * rows, 2 * rows, 4 * rows]
    return [*fixed, *keys, *values, row_ends, header_ends, header_key_bytes, *header_values]


def _open(view: BatchView, max_open_bytes: int) -> bytes | memoryview:
    # A batch that compaction has emptied keeps its codec bits and has no body to open.
    if view.record_count == 0 and view.size_bytes == HEADER_BYTES:
        return b""
    if view.codec is Codec.NONE:
        return view.body
    return decompress(view.codec, view.body, max_output_bytes=max_open_bytes)


def _name(view: BatchView) -> str:
    return f"the batch at offset {view.base_offset}"
