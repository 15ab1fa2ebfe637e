"""Runs of batches in memory, and how an answer is cut out of them.

A run is whole batches back to back with their offsets stamped, checked by whoever made it. An answer begins with the
batch that holds the offset asked for and ends where its limit ends, always between two batches.

Must stay true: what is cut is a window on the run's bytes; batches of more than a few KiB are never copied.
"""

from collections.abc import Sequence
from struct import Struct

import msgspec

from headrace.records.batch import LENGTH_END

_BATCH = Struct(">qi11xi")
"""Base offset, length, (leader epoch, magic, CRC, attributes), last offset delta: all that cutting needs to know."""

SMALL_PIECE_BYTES = 4 * 1024
"""Neighbouring pieces below this size are joined: a copy of so few bytes costs less than one more vector to send."""

MAX_SMALL_PIECES = 4
"""Up to here pieces stay as they are; a usual answer has one or two and is not looked at."""

Piece = bytes | bytearray | memoryview


class Run(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Batches back to back, with their offsets, checked. `start_offset` may lie before the offset asked for."""

    start_offset: int
    end_offset: int
    data: memoryview


class Cut(msgspec.Struct, frozen=True, gc=False):
    """What was cut out of runs. The rest begins at `end_offset`: in run number `rest_run`, at byte `rest_byte`."""

    pieces: list[Piece]
    size_bytes: int
    end_offset: int
    rest_run: int
    rest_byte: int


def cut_runs(runs: Sequence[Run], offset: int, max_bytes: int, *, whole_first: bool) -> Cut:
    """Cut whole batches out of consecutive runs, from the batch that holds `offset` on, up to `max_bytes`.

    With `whole_first` the first batch is there however large it is. The first run must cover `offset`.
    """
    pieces: list[Piece] = []
    left = max_bytes
    for number, run in enumerate(runs):
        data = run.data
        start_byte = 0 if run.start_offset >= offset else _batch_with(data, offset)
        size_bytes = len(data) - start_byte
        if size_bytes <= left:
            pieces.append(data[start_byte:] if start_byte else data)
            left -= size_bytes
            continue
        end_byte, end_offset = _fitting(data, start_byte, left, whole_first=whole_first and not pieces)
        if end_byte > start_byte:
            pieces.append(data[start_byte:end_byte])
            left -= end_byte - start_byte
        elif not pieces:
            end_offset = offset
        else:
            end_offset = run.start_offset
        if end_byte == len(data):  # one batch, larger than the limit, was all of it
            number, end_byte = number + 1, 0
        return Cut(_joined(pieces), max_bytes - left, end_offset, number, end_byte)
    return Cut(_joined(pieces), max_bytes - left, runs[-1].end_offset, len(runs), 0)


def rest_of(runs: Sequence[Run], cut: Cut) -> list[Run]:
    """Return what lies behind a cut."""
    rest = list(runs[cut.rest_run :])
    if rest and cut.rest_byte and cut.size_bytes:
        first = rest[0]
        rest[0] = Run(start_offset=cut.end_offset, end_offset=first.end_offset, data=first.data[cut.rest_byte :])
    return rest


def _batch_with(data: memoryview, offset: int) -> int:
    """Return the first byte of the batch that holds an offset."""
    at_byte = 0
    while True:
        base_offset, length, last_delta = _BATCH.unpack_from(data, at_byte)
        if offset <= base_offset + last_delta:
            return at_byte
        at_byte += length + LENGTH_END


def _fitting(data: memoryview, start_byte: int, max_bytes: int, *, whole_first: bool) -> tuple[int, int]:
    """Return where the last batch that fits ends, and the offset behind it; the latter is −1 if none fits."""
    end_byte, end_offset = start_byte, -1
    limit_byte = start_byte + max_bytes
    while end_byte < len(data):
        base_offset, length, last_delta = _BATCH.unpack_from(data, end_byte)
        next_byte = end_byte + length + LENGTH_END
        if next_byte > limit_byte and not (whole_first and end_byte == start_byte):
            break
        end_byte, end_offset = next_byte, base_offset + last_delta + 1
    return end_byte, end_offset


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Join small neighbours, where there are many."""
    if len(pieces) <= MAX_SMALL_PIECES:
        return pieces
    joined: list[Piece] = []
    small: list[Piece] = []
    for piece in pieces:
        if len(piece) < SMALL_PIECE_BYTES:
            small.append(piece)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(piece)
    if small:
        joined.append(b"".join(small))
    return joined
