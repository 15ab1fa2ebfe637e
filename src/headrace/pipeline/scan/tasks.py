"""What one task of a read brings, and everything it needs for that: where bytes lie, and which offsets are wanted.

Plain values: the planner makes them, an executor receives one. They name objects, never keys of the metadata store.
"""

from typing import TypeAlias

import msgspec

from headrace.model.extents import TableFile
from headrace.pipeline.plans import WalPiece


class WalPart(msgspec.Struct, frozen=True, array_like=True, tag="w", gc=False):
    """One entry of the WAL, of which the offsets from `start_offset` to `end_offset` are wanted."""

    start_offset: int
    end_offset: int
    piece: WalPiece

    @property
    def size_bytes(self) -> int:
        return self.piece.extent.size_bytes


class TablePart(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """Row groups of one Parquet file that lie one behind the other, and the offsets that are wanted of them."""

    start_offset: int
    end_offset: int
    file: TableFile

    @property
    def size_bytes(self) -> int:
        return sum(group.size_bytes for group in self.file.row_groups)


Part: TypeAlias = WalPart | TablePart


class ScanTask(msgspec.Struct, frozen=True):
    """Parts of one partition, in the order of their offsets; between them there may be offsets nobody wants."""

    topic: str
    partition: int
    parts: tuple[Part, ...]
    domain: int = 0

    @property
    def size_bytes(self) -> int:
        """How many stored bytes it reads."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def offset_count(self) -> int:
        """How many offsets are wanted; holes count."""
        return sum(part.end_offset - part.start_offset for part in self.parts)
