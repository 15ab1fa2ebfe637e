"""Walk the frames of a WAL object from its first byte, for recovery and for tools.

A segment may end in prepared zeros, in a frame that a crash cut short, or in frames left over from an earlier
use of a recycled file. None of these is an error here: the scan reports where the good frames end, and why.
What lies behind that byte is garbage unless the offset index names it, in which case the damage is real.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import Corrupt, Unsupported
from headrace.model.ids import WriterId
from headrace.objects.port import Buffer
from headrace.wal.frame import Frame, parse_frame

_BLOCK_BYTES = 1 << 16
_ZEROS = bytes(_BLOCK_BYTES)


class ScanEnd(enum.Enum):
    """Why a scan went no further."""

    END_OF_DATA = "the last frame ends where the data ends"
    PREPARED = "only zeros follow"
    STALE = "a frame follows that does not continue this segment"
    DAMAGED = "what follows is no whole frame"
    UNSUPPORTED = "a frame of a newer version follows"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedFrame:
    """A whole frame and its first byte in the segment."""

    start_byte: int
    frame: Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentScan:
    """The good frames, the byte behind them, and why the scan ended there."""

    frames: list[LocatedFrame]
    end_byte: int
    reason: ScanEnd
    detail: str


def scan_segment(data: Buffer, *, writer: WriterId | None = None) -> SegmentScan:
    """Read the frames of a segment in order, up to the first byte that begins none.

    All frames of a segment have one writer and one domain, and ascending numbers; a frame that breaks this
    was there before the file was recycled. Give `writer` where it is known (an object's id names it), so that
    the first frame can be told apart, too. Raises nothing.
    """
    view = memoryview(data).toreadonly()
    frames: list[LocatedFrame] = []
    next_byte = 0
    while next_byte < len(view):
        try:
            frame = parse_frame(view[next_byte:], at_byte=next_byte)
        except Unsupported as error:
            return SegmentScan(frames=frames, end_byte=next_byte, reason=ScanEnd.UNSUPPORTED, detail=str(error))
        except Corrupt as error:
            reason = ScanEnd.PREPARED if _only_zeros(view, next_byte) else ScanEnd.DAMAGED
            return SegmentScan(frames=frames, end_byte=next_byte, reason=reason, detail=str(error))
        if not _continues(frames, frame, writer):
            detail = f"frame {frame.header.frame_number} of writer {frame.header.writer} at byte {next_byte}"
            return SegmentScan(frames=frames, end_byte=next_byte, reason=ScanEnd.STALE, detail=detail)
        frames.append(LocatedFrame(start_byte=next_byte, frame=frame))
        next_byte += frame.size_bytes
    return SegmentScan(frames=frames, end_byte=next_byte, reason=ScanEnd.END_OF_DATA, detail="")


def _continues(frames: Sequence[LocatedFrame], next_: Frame, writer: WriterId | None) -> bool:
    if not frames:
        return writer is None or next_.header.writer == writer
    last = frames[-1].frame.header
    return (
        next_.header.writer == last.writer
        and next_.header.domain == last.domain
        and next_.header.frame_number > last.frame_number
    )


def _only_zeros(view: memoryview, start_byte: int) -> bool:
    for block_byte in range(start_byte, len(view), _BLOCK_BYTES):
        block = view[block_byte : block_byte + _BLOCK_BYTES]
        if block.tobytes() != _ZEROS[: len(block)]:
            return False
    return True
