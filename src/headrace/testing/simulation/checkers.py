"""Compare what is stored with what clients were told. Each check reads the shared stores themselves, past all faults.

- every offset from log start to high watermark has exactly one entry, and its bytes are there and whole (I1, I5, I8)
- everything acknowledged or read is at its offset (I2, I9), except below a log start that somebody asked for
- what an idempotent producer sent is stored at most once, in the order of its sequences (I4)
- what is old was repacked, down to nothing left to do
- objects are counted for exactly the entries that name them; none is leaked once collectors had their time (I3, I8)
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from headrace.errors import HeadraceError
from headrace.index.objects import is_packed, wal_object_key, wal_objects_of
from headrace.index.repack import HOUR_MS, RepackLimits, plan_repack
from headrace.index.values import (
    DOMAIN_STATE,
    INDEX_ENTRY,
    LOG_RECORD,
    OBJECT_RECORD,
    STREAM_HEAD,
    DomainState,
    IndexEntry,
    ObjectRecord,
    ObjectState,
    StreamHead,
)
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.memory import MemoryMetadata
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectId, ObjectKey, StreamId
from headrace.objects.memory import MemoryObjects
from headrace.objects.port import ByteRange
from headrace.runtime.clock import Clock
from headrace.testing.batches import read_batches
from headrace.testing.inline import at_once
from headrace.testing.simulation.history import History, Violation
from headrace.wal.chunks import stamp_offsets

MAX_ROWS = 10_000
COLLECTING_MS = 30_000
"""How long an object without entries may be left over."""


class StoredLog:
    """The log as it is in the stores right now."""

    def __init__(self, keys: DomainKeys, metadata: MemoryMetadata, objects: MemoryObjects) -> None:
        self._keys = keys
        self._metadata = metadata
        self._objects = objects

    def head(self, stream: StreamId) -> StreamHead:
        raw = at_once(self._metadata.get(self._keys.head(stream)))
        if raw is None:
            raise Violation(f"stream {stream} lost its head")
        return STREAM_HEAD.decode(raw.value, raw.key)

    def entries(self, stream: StreamId) -> list[IndexEntry]:
        """Return all entries of a stream, folded ones first. Below the log start there may be holes."""
        found = self.folded(stream)
        raw = at_once(self._metadata.get(self._keys.state))
        domain = DomainState() if raw is None else DOMAIN_STATE.decode(raw.value, raw.key)
        for item in at_once(self._metadata.range(self._keys.log_range(domain.folded_to, limit=MAX_ROWS))):
            record = LOG_RECORD.decode(item.value, item.key)
            found += [record.index_entry(entry) for entry in domain.unfolded(record) if entry.stream == stream]
        return found

    def folded(self, stream: StreamId) -> list[IndexEntry]:
        """Return the entries that lie in the index of the stream."""
        found = at_once(self._metadata.range(self._keys.entries(stream, after_offset=0, limit=MAX_ROWS)))
        return [INDEX_ENTRY.decode(item.value, item.key) for item in found]

    def object_records(self) -> dict[ObjectId, ObjectRecord]:
        found = at_once(self._metadata.range(prefix_range(self._keys.objects_prefix, limit=MAX_ROWS)))
        return {
            ObjectId(item.key.removeprefix(self._keys.objects_prefix)): OBJECT_RECORD.decode(item.value, item.key)
            for item in found
        }

    def sink_writes(self) -> list[str]:
        """Return the writes of sinks that are under way."""
        found = at_once(self._metadata.range(prefix_range(self._keys.sink_writes_prefix, limit=MAX_ROWS)))
        return [item.key for item in found]

    def values(self, entry: IndexEntry) -> dict[int, bytes]:
        """Return the records of an entry by offset, or raise `Violation` if its bytes are not there and whole."""
        assert isinstance(entry.extent, WalExtent), "this scenario has no tables"
        data = self.wal_bytes(entry, entry.extent)
        return {record.offset: record.value or b"" for record in read_batches(data)}

    def wal_bytes(self, entry: IndexEntry, extent: WalExtent) -> memoryview:
        """Return an entry's batches with their offsets, or raise `Violation` if they are not there and whole."""
        key = wal_object_key(self._keys.domain, extent.object_id)
        wanted = ByteRange(start_byte=extent.start_byte, size_bytes=extent.size_bytes)
        try:
            (raw,) = at_once(self._objects.get_ranges(key, [wanted]))
            data = bytearray(raw)
            stamp_offsets(
                data, entry.start_offset, end_offset=entry.end_offset, source=key, start_byte=extent.start_byte
            )
        except HeadraceError as error:
            raise Violation(f"entry {entry} names bytes that are not there: {error}") from error
        return memoryview(data)

    def named(self, streams: Iterable[StreamId]) -> Counter[ObjectId]:
        """Return how many entries name each WAL object."""
        extents = (entry.extent for stream in streams for entry in self.entries(stream))
        return Counter(extent.object_id for extent in extents if isinstance(extent, WalExtent))

    async def object_ids(self) -> list[ObjectId]:
        return [ObjectId(info.key.rpartition("/")[2]) async for info in self._objects.list("wal/")]


def check_log(stored: StoredLog, history: History, streams: list[StreamId]) -> int:
    """Check every stream against the history and return how many records are stored."""
    count = 0
    for stream in streams:
        head = stored.head(stream)
        if head.log_start > history.rightful_log_start(stream):
            raise Violation(f"stream {stream} starts at {head.log_start}, which nobody asked for")
        entries = [entry for entry in stored.entries(stream) if entry.end_offset > head.log_start]
        check_coverage(stream, head, entries)
        values: dict[int, bytes] = {}
        for entry in entries:
            values.update(stored.values(entry))
        check_claims(stream, head, values, history)
        _check_idempotence(stream, values, history)
        count += len(values)
    return count


def check_coverage(stream: StreamId, head: StreamHead, entries: list[IndexEntry]) -> None:
    """Check that entries lie without a gap from the log start to the high watermark."""
    for left, right in itertools.pairwise(entries):
        if left.end_offset != right.start_offset:
            raise Violation(f"stream {stream}: {left} is not continued by {right}")
    if head.log_start == head.high_watermark:
        return
    if not entries or entries[0].start_offset > head.log_start or entries[-1].end_offset != head.high_watermark:
        raise Violation(f"stream {stream}: entries do not reach from log start to high watermark of {head}")


def check_claims(stream: StreamId, head: StreamHead, values: dict[int, bytes], history: History) -> None:
    """Check that everything clients know is at its offset, as far as the log still reaches."""
    for claimed, offset, value, how in history.claims():
        if claimed == stream and offset >= head.log_start and values.get(offset) != value:
            raise Violation(
                f"stream {stream}: {value!r} was {how} at offset {offset}, where {values.get(offset)!r} is stored"
            )


def _check_idempotence(stream: StreamId, values: dict[int, bytes], history: History) -> None:
    last: dict[bytes, int] = defaultdict(lambda: -1)
    for offset, value in sorted(values.items()):
        if value not in history.idempotent_values:
            continue
        producer, _, number = value.split(b"/")
        if int(number) <= last[producer]:
            raise Violation(f"stream {stream}: {value!r} at offset {offset} is stored twice, or out of order")
        last[producer] = int(number)


def check_objects(stored: StoredLog, streams: list[StreamId]) -> None:
    """Check that each object is counted for exactly the entries that name it, and that none of those is condemned."""
    named = stored.named(streams)
    records = stored.object_records()
    for object_id, count in named.items():
        record = records.get(object_id)
        if record is None or record.state is ObjectState.CONDEMNED or record.entry_count != count:
            raise Violation(f"object {object_id} is named by {count} entries, but its record is {record}")
    for object_id, record in records.items():
        if object_id not in named and record.entry_count:
            raise Violation(f"object {object_id} is counted for {record.entry_count} entries that do not exist")


def check_packed(stored: StoredLog, streams: list[StreamId], limits: RepackLimits) -> None:
    """Check, after the repackers had time enough, that no folded entry shares an object with other streams, that
    neighbours in one object could not be one entry, and that nothing is left that the next repack would do.

    Where the log start has moved, the last is said of all objects but the first: one that was large enough to be left
    alone looks small once its head was trimmed away, and nobody looks again for that. Those behind it are whole, and
    whether they are merged does not depend on what lies before them.
    """
    for stream in streams:
        head = stored.head(stream)
        entries = [entry for entry in stored.folded(stream) if entry.end_offset > head.log_start]
        loose = [one for entry in entries for one in wal_objects_of([entry.extent]) if not is_packed(one)]
        if loose:
            raise Violation(f"stream {stream} still has entries in {loose}, which it shares with others")
        for left, right in itertools.pairwise(entries):
            if _could_be_one(left, right, limits):
                raise Violation(f"stream {stream}: {left} and {right} lie in one object, and could be one entry")
        if head.log_start and entries:
            first = set(wal_objects_of([entries[0].extent]))
            entries = [one for one in entries if first.isdisjoint(wal_objects_of([one.extent]))]
        if not entries:
            continue
        look = plan_repack(entries, held_below=0, now_ms=2 * entries[-1].append_time_ms, limits=limits)
        if look.plan is not None:
            raise Violation(f"stream {stream} is not repacked: {look.plan} is left to do")


def _could_be_one(left: IndexEntry, right: IndexEntry, limits: RepackLimits) -> bool:
    """Say whether a repack that takes both of these entries of one object joins them."""
    if not isinstance(left.extent, WalExtent) or not isinstance(right.extent, WalExtent):
        return False
    return (
        left.extent.object_id == right.extent.object_id
        and left.extent.size_bytes + right.extent.size_bytes <= limits.entry_bytes
        and left.flags == right.flags
        and left.append_time_ms // HOUR_MS == right.append_time_ms // HOUR_MS
    )


async def check_leaks(stored: StoredLog, *, now_ms: int) -> None:
    """Check, after the collectors had time enough, that only objects which are named or open are left.

    A record whose time lies in the future was written by a broker whose clock was ahead: it is collected when that
    time has come.
    """
    records = stored.object_records()
    for object_id in await stored.object_ids():
        if object_id not in records:
            raise Violation(f"object {object_id} has no record: its bytes would never be collected")
    for object_id, record in records.items():
        is_over = record.state in (ObjectState.SEALED, ObjectState.CONDEMNED) and record.entry_count == 0
        if is_over and record.state_since_ms < now_ms - COLLECTING_MS:
            raise Violation(f"object {object_id} is left over: {record}")


def check_sink_writes(stored: StoredLog) -> None:
    """Check, after they had time enough, that all writes of sinks were committed, given up, or ended by their age."""
    left = stored.sink_writes()
    if left:
        raise Violation(f"writes of sinks are still under way: {left}")


class CheckedObjects(MemoryObjects):
    """Objects that check, at the very instant of a deletion, that no entry names what is deleted (I8)."""

    def __init__(self, clock: Clock, *, has_segments: bool) -> None:
        super().__init__(clock)
        self._has_segments = has_segments
        self.is_named: Callable[[ObjectId], bool] = lambda object_id: False

    @property
    def segments(self) -> "CheckedObjects | None":  # type: ignore[override]
        return self if self._has_segments else None

    async def delete(self, keys: Iterable[ObjectKey]) -> None:
        doomed = list(keys)
        for key in doomed:
            if self.is_named(ObjectId(key.rpartition("/")[2])):
                raise Violation(f"object {key} was deleted although an index entry names it")
        await super().delete(doomed)
