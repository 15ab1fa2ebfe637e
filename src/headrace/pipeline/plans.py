"""What a run is: which ranges of the log become which Parquet files of one topic's table.

Plain values: the planner makes them, a task receives its `FilePlan`, a saga remembers what it needs of the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from headrace.model.extents import WalExtent
from headrace.model.ids import StreamId
from headrace.model.topics import TopicId
from headrace.tables.format import DeadLetterFormat, TableFormat
from headrace.tables.typed.schemas import SchemaSource


class WalPiece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One index entry that is to be read: its offsets, its append time, its bytes."""

    start_offset: int
    end_offset: int
    append_time_ms: int
    extent: WalExtent


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """A contiguous range of one stream, piece by piece."""

    partition: int
    stream: StreamId
    pieces: tuple[WalPiece, ...]

    @property
    def start_offset(self) -> int:
        return self.pieces[0].start_offset

    @property
    def end_offset(self) -> int:
        return self.pieces[-1].end_offset

    @property
    def size_bytes(self) -> int:
        return sum(piece.extent.size_bytes for piece in self.pieces)


class FilePlan(msgspec.Struct, frozen=True, array_like=True):
    """One file: one partition value of the table, one slice of each stream in it."""

    number: int
    bucket: int | None
    partition: int | None
    slices: tuple[Slice, ...]

    @property
    def size_bytes(self) -> int:
        return sum(slice_.size_bytes for slice_ in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run of one topic. `after` and `ends` are vectors as in `tables/port.py`: partition → offset."""

    topic_id: TopicId
    topic_name: str
    files: tuple[FilePlan, ...]
    after: Mapping[int, int]
    ends: Mapping[int, int]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class Typing(msgspec.Struct, frozen=True):
    """How a task decodes values into typed columns, and where it writes copies of those that do not fit."""

    topic: str
    schema: SchemaSource
    dead_letters: DeadLetterFormat
    seen_at_ms: int


class WriteTask(msgspec.Struct, frozen=True, tag="write"):
    """Everything a task needs, and nothing that lives in another process.

    The file's key is `<data_prefix><saga>/<file number>-<first stream>-<start>-<end>-<epoch>-<attempt>.parquet`, and
    that of its dead letters the same behind their own prefix.
    """

    saga_id: str
    epoch: int
    data_prefix: str
    format: TableFormat
    file: FilePlan
    domain: int = 0
    row_group_bytes: int = 8 * 1024 * 1024
    max_open_bytes: int = 64 * 1024 * 1024
    compression_level: int = 1
    typing: Typing | None = None
