"""Choose who touches single records: the compiled extension, or its twin in plain Python.

Both give the same answers; `IMPLEMENTATION` says which one is in use. `HEADRACE_PURE_PYTHON=1` forces the twin.
"""

import os
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, Protocol

from headrace.records import _columns_py
from headrace.records.problems import InvalidBatch, Problem

Buffer = bytes | bytearray | memoryview


class Part(IntEnum):
    """The buffers that make up the columns, in the order in which both kernels take them.

    Numbers are in the machine's byte order, as Arrow has them; validity is a bit per row, least significant first.
    """

    OFFSET = 0  # int64
    TIMESTAMP_MS = 1  # int64
    ATTRIBUTES = 2  # int16, the batch's
    PRODUCER_ID = 3  # int64
    PRODUCER_EPOCH = 4  # int16
    SEQUENCE = 5  # int32
    KEY_OFFSETS = 6  # int32, one more than rows
    KEY_DATA = 7
    KEY_VALIDITY = 8
    VALUE_OFFSETS = 9
    VALUE_DATA = 10
    VALUE_VALIDITY = 11
    HEADER_OFFSETS = 12  # int32, one more than rows: which headers belong to a row
    HEADER_KEY_OFFSETS = 13
    HEADER_KEY_DATA = 14
    HEADER_VALUE_OFFSETS = 15
    HEADER_VALUE_DATA = 16
    HEADER_VALUE_VALIDITY = 17


class Fault(IntEnum):
    """What a kernel answers when it stops."""

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


_EXPLANATIONS: Final = {
    Fault.VARINT: (Problem.RECORD, "a number has more bits than its type"),
    Fault.PAST_END: (Problem.RECORD, "it goes on behind its end"),
    Fault.RECORD_LENGTH: (Problem.RECORD, "its length does not fit into the batch"),
    Fault.RECORD_END: (Problem.RECORD, "it has bytes behind its last header"),
    Fault.OFFSET_DELTA: (Problem.RECORD, "its offset is not behind the one before and within the batch"),
    Fault.FIELD_LENGTH: (Problem.RECORD, "the length of a field does not fit into the record"),
    Fault.HEADER_COUNT: (Problem.RECORD, "its header count does not fit into the record"),
    Fault.HEADER_KEY: (Problem.RECORD, "a header has no key, or one that does not fit into the record"),
    Fault.TRAILING: (Problem.COUNT, "bytes follow behind the last one that was counted"),
    Fault.COUNT: (Problem.COUNT, "the batch has too few bytes for the records it counts"),
    Fault.COLUMN_SIZE: (Problem.COLUMNS, "a column has fewer rows than the others"),
    Fault.COLUMN_OFFSETS: (Problem.COLUMNS, "its offsets point outside the column's data"),
    Fault.ROW_ORDER: (Problem.COLUMNS, "its offset is not behind the one before"),
    Fault.ROW_SIZE: (Problem.COLUMNS, "it is too large for any record"),
}


def explain(code: int, row: int, where: str) -> InvalidBatch:
    """Turn a kernel's fault into the error to raise."""
    problem, reason = _EXPLANATIONS[Fault(code)]
    return InvalidBatch(problem, f"record {row} of {where}: {reason}")


class Kernel(Protocol):
    """What `_columns.pyx` and `_columns_py.py` both are; the docstrings stand in the former."""

    def walk_records(
        self, body: Buffer, count: int, last_offset_delta: int, base_timestamp: int, dense: bool
    ) -> tuple[int, int, int, int, int, int, int, int, int, int]: ...

    def decode_records(
        self, body: Buffer, batch: tuple[int, ...], buffers: Sequence[bytearray], cursor: tuple[int, ...]
    ) -> tuple[int, int, tuple[int, ...]]: ...

    def encode_records(
        self,
        buffers: Sequence[Buffer],
        first_row: int,
        end_row: int,
        base_offset: int,
        out: bytearray,
        start_byte: int,
        max_bytes: int,
    ) -> tuple[int, int, int, int]: ...

    def place_keys(
        self, offsets: Buffer, data: Buffer, validity: Buffer, partition_count: int, out: bytearray
    ) -> tuple[int, int]: ...


def python_kernel() -> Kernel:
    """Return the pure Python twin."""
    return _columns_py


def compiled_kernel() -> Kernel | None:
    """Return the compiled extension, or None where it was not built."""
    try:
        from headrace.records import _columns
    except ImportError:
        return None
    return _columns


def _choose() -> tuple[str, Kernel]:
    compiled = None if os.environ.get("HEADRACE_PURE_PYTHON") == "1" else compiled_kernel()
    return ("python", python_kernel()) if compiled is None else ("compiled", compiled)


IMPLEMENTATION, KERNEL = _choose()
