"""What a rewrite is: which row groups of which Parquet files become which new files of one topic's table.

Plain values, as those of `plans.py`: a planner makes them, a task receives its `RewritePlan`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from headrace.model.extents import TableFile
from headrace.model.ids import StreamId
from headrace.pipeline.plans import WriteTask
from headrace.tables.format import TableFormat


class TablePiece(msgspec.Struct, frozen=True, array_like=True):
    """One index entry that is to be read: its offsets, and the row groups that hold its rows, if it has any."""

    start_offset: int
    end_offset: int
    file: TableFile | None


class RewriteSlice(msgspec.Struct, frozen=True, array_like=True):
    """A range of one stream, piece by piece, ascending.

    Between two pieces there may be a gap only where a batch lies that was held back: no row group reaches over it.
    """

    partition: int
    stream: StreamId
    pieces: tuple[TablePiece, ...]

    @property
    def start_offset(self) -> int:
        return self.pieces[0].start_offset

    @property
    def end_offset(self) -> int:
        return self.pieces[-1].end_offset

    @property
    def size_bytes(self) -> int:
        return sum(group.size_bytes for piece in self.pieces if piece.file for group in piece.file.row_groups)


class RewritePlan(msgspec.Struct, frozen=True, array_like=True):
    """One new file: one partition value of the table, one slice of each stream in it."""

    number: int
    bucket: int | None
    partition: int | None
    slices: tuple[RewriteSlice, ...]

    @property
    def size_bytes(self) -> int:
        return sum(slice_.size_bytes for slice_ in self.slices)

    @property
    def inputs(self) -> frozenset[str]:
        """The paths of the files that are read."""
        return frozenset(piece.file.path for slice_ in self.slices for piece in slice_.pieces if piece.file)


class RewriteTask(msgspec.Struct, frozen=True, tag="rewrite"):
    """Everything a task needs to write one file anew. Its key is made as that of a `WriteTask` is.

    `dropped` names, for streams of which rows are to be left out, the object that lists their offsets
    (`dropped_offsets.py`).
    """

    saga_id: str
    epoch: int
    data_prefix: str
    format: TableFormat
    file: RewritePlan
    row_group_bytes: int = 8 * 1024 * 1024
    compression_level: int = 1
    dropped: dict[int, str] = {}


class GatheredFile(msgspec.Struct, frozen=True, array_like=True):
    """A whole file that only `main` names: what its manifest says of it is all that is known."""

    path: str
    size_bytes: int
    row_count: int


class GatherPlan(msgspec.Struct, frozen=True, array_like=True):
    """One new file of `main`: all rows of some others of the same partition value."""

    number: int
    bucket: int | None
    partition: int | None
    files: tuple[GatheredFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class GatherTask(msgspec.Struct, frozen=True, tag="gather"):
    """Everything a task needs to make one file of several that only `main` names. `streams` are the topic's."""

    saga_id: str
    epoch: int
    data_prefix: str
    format: TableFormat
    file: GatherPlan
    streams: tuple[StreamId, ...]
    row_group_bytes: int = 8 * 1024 * 1024
    compression_level: int = 1


TableTask: TypeAlias = WriteTask | RewriteTask | GatherTask
"""What a `TableWriter` writes one file of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """A file to be written, in the format of its partition spec."""

    plan: RewritePlan
    format: TableFormat
    dropped: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGather:
    """A file to be made of others that only `main` names, in the format of their partition spec."""

    plan: GatherPlan
    format: TableFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """What one saga rewrites: `inputs` go from the branch and `files` come, or they go from `main` alone and
    `gathers` come. A release has neither."""

    inputs: tuple[str, ...]
    input_rows: int
    input_bytes: int
    files: tuple[PlannedFile, ...] = ()
    gathers: tuple[PlannedGather, ...] = ()

    @property
    def size_bytes(self) -> int:
        plans: list[RewritePlan | GatherPlan] = [
            *(file.plan for file in self.files),
            *(file.plan for file in self.gathers),
        ]
        return sum(plan.size_bytes for plan in plans)
