"""What a key scan is told and what it answers: plain values that travel to a task and back."""

import msgspec

from headrace.model.extents import TableFile
from headrace.model.ids import StreamId

MIB = 1024 * 1024


class ScanRange(msgspec.Struct, frozen=True, array_like=True):
    """A part of one file that holds one stream's rows. A *fixed* one is read, and stays as it is."""

    start_offset: int
    end_offset: int
    file: TableFile
    is_fixed: bool = False


class ScanLimits(msgspec.Struct, frozen=True, array_like=True):
    """What a scan may keep in memory. `map_bytes` are Kafka's `log.cleaner.dedupe.buffer.size`."""

    map_bytes: int = 64 * MIB
    """Keys and their latest offsets. When these are full, the round ends there, and the rest stays dirty."""
    chunk_bytes: int = 16 * MIB
    """Keys that are looked up at once."""
    max_obsolete: int = 4_000_000
    """How many rows one round takes away from a stream."""


class ScanTask(msgspec.Struct, frozen=True, tag="scan"):
    """Everything a task needs to find the obsolete rows of one stream.

    Keys of `dirty_from` to `cleanable_end` are collected; rows that they make obsolete are looked for in all ranges.
    Tombstones below `expired_to` may go.
    """

    saga_id: str
    epoch: int
    data_prefix: str
    partition: int
    stream: StreamId
    dirty_from: int
    cleanable_end: int
    expired_to: int
    ranges: tuple[ScanRange, ...]
    limits: ScanLimits = ScanLimits()

    @property
    def size_bytes(self) -> int:
        return sum(group.size_bytes for range_ in self.ranges for group in range_.file.row_groups)


class ScannedStream(msgspec.Struct, frozen=True):
    """What a scan has found.

    `path` names the object that lists the obsolete offsets (`dropped_offsets.py`), empty if there are none; `losses`
    say how many of them each file has. Once all of these are gone, everything below `cleaned_to` is clean. A scan
    that is not whole stopped at a limit: more is obsolete than it lists. `tombstones` are left from `dirty_from` to
    `cleaned_to`, and `expired_left` below `expired_to`.
    """

    partition: int
    stream: StreamId
    cleaned_to: int
    is_whole: bool
    path: str = ""
    losses: dict[str, int] = {}
    tombstones: int = 0
    expired_left: int = 0
    row_count: int = 0

    @property
    def obsolete_count(self) -> int:
        return sum(self.losses.values())
