"""Compare logs, index and tables with each other and with what clients were told, past all faults.

- every record that is in the log is in its topic's table exactly once, or was held back (I7); what a table holds is
  what clients sent, byte for byte, and no run left a hole in it
- below the table's end the index names files of the branch, and the WAL only for what was held back
- the branch's vector is the one that the metadata store knows
- what the branch shows of the log `main` shows, once, but for what a person changed there; rows that a person has
  deleted from `main` do not come back
- nothing is deleted that the index, a ref or a snapshot names (I8), and nothing is left that nobody names
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from headrace.errors import HeadraceError
from headrace.index.values import STREAM_HEAD, IndexEntry, StreamHead
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.metadata.memory import MemoryMetadata
from headrace.model.extents import RowGroup, TableExtent, TableFile, WalExtent
from headrace.model.ids import ObjectKey, StreamId
from headrace.model.topics import Topic, TopicId
from headrace.objects.memory import MemoryObjects
from headrace.objects.port import ByteRange
from headrace.pipeline.records import TableState
from headrace.pipeline.sagas import Sagas
from headrace.tables.files import WrittenFile
from headrace.tables.parquet_reading import Footer, parse_footer, read_row_group
from headrace.testing.inline import at_once
from headrace.testing.memory_catalog import MemoryCatalog, MemoryTable
from headrace.testing.simulation.checkers import (
    MAX_ROWS,
    CheckedObjects,
    StoredLog,
    check_claims,
    check_coverage,
)
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.tables.history import TableHistory
from headrace.testing.simulation.tables.records import SEALED, imprints_of, read_imprints

TABLES_PREFIX = "tables/"
MAX_OFFSET = 2**40
"""Beyond every offset of a history."""


class StoredTables(StoredLog):
    """Logs and tables as they are in the stores right now."""

    def __init__(
        self, keys: DomainKeys, metadata: MemoryMetadata, objects: MemoryObjects, catalog: MemoryCatalog
    ) -> None:
        super().__init__(keys, metadata, objects)
        self.catalog = catalog
        self._opened: dict[tuple[str, RowGroup], dict[int, bytes]] = {}

    def living_head(self, stream: StreamId) -> StreamHead | None:
        """Return a stream's head unless it was deleted."""
        raw = at_once(self._metadata.get(self._keys.head(stream)))
        head = None if raw is None else STREAM_HEAD.decode(raw.value, raw.key)
        return None if head is None or head.is_deleted else head

    def values(self, entry: IndexEntry) -> dict[int, bytes]:
        """Return the imprints of an entry by offset, wherever its records lie."""
        extent = entry.extent
        if isinstance(extent, WalExtent):
            return dict(read_imprints(self.wal_bytes(entry, extent)))
        found: dict[int, bytes] = {}
        for file in extent.files:
            found.update(self.rows(file, entry.start_offset, entry.end_offset))
        return found

    def rows(self, file: TableFile, start_offset: int, end_offset: int) -> dict[int, bytes]:
        """Return the imprints of some row groups' rows, or raise `Violation` if they are not there and whole."""
        found: dict[int, bytes] = {}
        try:
            tail = ByteRange(start_byte=file.size_bytes - file.footer_bytes, size_bytes=file.footer_bytes)
            footer = parse_footer(file, self._bytes(file, tail))
            for group in file.row_groups:
                rows = self._group(file, group, footer)
                inside = {offset: rows[offset] for offset in rows if start_offset <= offset < end_offset}
                if twice := sorted(set(found) & set(inside)):
                    raise Violation(f"{file.path} has offsets {twice} twice")
                found.update(inside)
        except HeadraceError as error:
            raise Violation(f"table file {file.path} cannot be read: {error}") from error
        return found

    def _group(self, file: TableFile, group: RowGroup, footer: Footer) -> dict[int, bytes]:
        """Return all rows of a group. Its bytes are read each time, and opened once: they never change."""
        data = self._bytes(file, ByteRange(start_byte=group.start_byte, size_bytes=group.size_bytes))
        opened = self._opened.get((file.path, group))
        if opened is None:
            columns = read_row_group(file, group, footer, data, start_offset=0, end_offset=MAX_OFFSET)
            opened = self._opened[file.path, group] = imprints_of(columns)
        return opened

    def _bytes(self, file: TableFile, place: ByteRange) -> bytes:
        (data,) = at_once(self._objects.get_ranges(ObjectKey(file.path), [place]))
        return bytes(data)

    def states(self) -> dict[TopicId, TableState]:
        return at_once(Sagas(self._metadata, self._keys).states())

    def sagas_under_way(self) -> set[TopicId]:
        return at_once(Sagas(self._metadata, self._keys).under_way())

    def records_left(self) -> list[str]:
        """Return the keys of what collectors still have to do for tables."""
        prefixes = (self._keys.tidy_prefix, self._keys.condemned_prefix)
        pages = [at_once(self._metadata.range(prefix_range(prefix, limit=MAX_ROWS))) for prefix in prefixes]
        return [item.key for page in pages for item in page]

    def table_of(self, topic: Topic) -> MemoryTable | None:
        return next((one for one in self.catalog.tables.values() if one.topic_id == topic.id), None)

    def names_file(self, path: str, streams: Iterable[StreamId]) -> str | None:
        """Say who names a table file: a ref, a snapshot, or the index of a stream that lives."""
        for name, table in self.catalog.tables.items():
            if any(file.path == path for file in table.files):
                return f"the branch of {name}"
            if path in table.named_paths():
                return f"a snapshot of {name}"
            if any(file.path == path for file in table.letters):
                return f"the dead letters of {name}"
        for stream in streams:
            if self.living_head(stream) is not None and path in _paths(self.entries(stream)):
                return f"stream {stream}"
        return None

    async def table_objects(self) -> list[str]:
        return [info.key async for info in self._objects.list(TABLES_PREFIX)]


class CheckedTableObjects(CheckedObjects):
    """Objects that check, at the very instant of a deletion, that nobody names a table's file, either (I8)."""

    who_names: Callable[[str], str | None]
    violation: Violation | None = None

    async def delete(self, keys: Iterable[ObjectKey]) -> None:
        doomed = list(keys)
        for key in doomed:
            if key.startswith(TABLES_PREFIX) and (who := self.who_names(key)) is not None:
                self.violation = Violation(f"table file {key} was deleted although {who} names it")
                raise self.violation
        await super().delete(doomed)


def open_ends(stored: StoredTables, history: TableHistory) -> list[str]:
    """Say what keeps the tables from being caught up with their logs."""
    found = [f"saga of {topic_id.hex()[:6]}" for topic_id in sorted(stored.sagas_under_way())]
    states = stored.states()
    living = history.living_topics
    for topic in living:
        ends = states[topic.id].ends if topic.id in states else {}
        for partition, stream in enumerate(topic.streams):
            head = stored.head(stream)
            if head.log_start < head.high_watermark and ends.get(partition) != head.high_watermark:
                problem = states[topic.id].problem if topic.id in states else ""
                found.append(f"{topic.name} {partition}: {ends.get(partition)} of {head.high_watermark} {problem}")
    kept = {topic.id for topic in living}
    return found + [f"state of {topic_id.hex()[:6]}" for topic_id in states if topic_id not in kept]


def check_logs(stored: StoredTables, history: TableHistory) -> int:
    """Check the log of every topic that lives, wherever its records lie; return how many there are."""
    count = 0
    for stream in history.living_streams:
        head = stored.head(stream)
        if head.log_start > history.rightful_log_start(stream):
            raise Violation(f"stream {stream} starts at {head.log_start}, which nobody asked for")
        entries = [entry for entry in stored.entries(stream) if entry.end_offset > head.log_start]
        check_coverage(stream, head, entries)
        values: dict[int, bytes] = {}
        for entry in entries:
            values.update(stored.values(entry))
        check_claims(stream, head, values, history)
        for imprint, times in Counter(values.values()).items():
            if times > 1 and imprint in history.idempotent_values:
                raise Violation(f"stream {stream}: {imprint!r} is stored {times} times")
        count += len(values)
    return count


def check_tables(stored: StoredTables, history: TableHistory) -> int:
    """Check the table of every topic that has ever been; return how many rows there are."""
    states = stored.states()
    living = {topic.id for topic in history.living_topics}
    count = 0
    for topic in history.topics.values():
        table = stored.table_of(topic)
        rows = {} if table is None else _check_rows(stored, topic, table, history)
        count += sum(len(some) for some in rows.values())
        if table is not None:
            _check_main(stored, topic, table)
        if topic.id not in living:
            continue
        state = states.get(topic.id)
        _check_state(topic, table, state)
        for partition, stream in enumerate(topic.streams):
            end_offset = 0 if state is None else state.ends.get(partition, 0)
            _check_stream(stored, stream, table, rows.get(partition, {}), end_offset)
    return count


def _check_rows(
    stored: StoredTables, topic: Topic, table: MemoryTable, history: TableHistory
) -> dict[int, dict[int, bytes]]:
    """Return all rows by partition and offset: none is there twice, none is missing where a run has been."""
    rows: dict[int, dict[int, bytes]] = {}
    for path, times in Counter(file.path for file in table.files).items():
        if times > 1:
            raise Violation(f"the branch of {topic.name} names {path} {times} times")
    for file in table.files:
        for part in file.slices:
            found = stored.rows(_as_named(file, part.row_groups), part.start_offset, part.end_offset)
            missing = set(range(part.start_offset, part.end_offset)) - set(found)
            # A merged file does not say what was held back; whether it was, its record tells.
            held = {offset for one in part.held_back for offset in range(one.start_offset, one.end_offset)}
            known_values = {offset: history.known(topic.streams[part.partition], offset) for offset in missing - held}
            lacking = [offset for offset, one in known_values.items() if one and not one.startswith(SEALED)]
            if lacking:
                raise Violation(f"{file.path} lacks offsets {sorted(lacking)} of partition {part.partition}")
            known = rows.setdefault(part.partition, {})
            if twice := sorted(set(known) & set(found)):
                raise Violation(f"the table of {topic.name} has offsets {twice} of partition {part.partition} twice")
            known.update(found)
        if sum(part.row_count for part in file.slices) != file.row_count:
            raise Violation(f"{file.path} says {file.row_count} rows, its slices differ")
    for partition, found in rows.items():
        stream = topic.streams[partition]
        for offset, imprint in found.items():
            told = history.known(stream, offset)
            if told is not None and told != imprint:
                raise Violation(
                    f"the table of {topic.name} has {imprint!r} at {partition}/{offset}, clients know {told!r}"
                )
    return rows


def table_rows(stored: StoredTables, topic: Topic, files: Iterable[WrittenFile]) -> dict[int, dict[int, bytes]]:
    """Return the rows of files by partition and offset; none may be there twice."""
    rows: dict[int, dict[int, bytes]] = {}
    for file in files:
        for partition, found in file_rows(stored, file).items():
            known = rows.setdefault(partition, {})
            if twice := sorted(set(known) & set(found)):
                raise Violation(f"a table of {topic.name} has offsets {twice} of partition {partition} twice")
            known.update(found)
    return rows


def file_rows(stored: StoredTables, file: WrittenFile) -> dict[int, dict[int, bytes]]:
    """Return the rows of one file by partition and offset."""
    rows: dict[int, dict[int, bytes]] = {}
    for part in file.slices if file.path else ():
        found = stored.rows(_as_named(file, part.row_groups), part.start_offset, part.end_offset)
        known = rows.setdefault(part.partition, {})
        if twice := sorted(set(known) & set(found)):
            raise Violation(f"{file.path} has offsets {twice} of partition {part.partition} twice")
        known.update(found)
    return rows


def _check_main(stored: StoredTables, topic: Topic, table: MemoryTable) -> None:
    """Check that `main` shows each row once, and none of a file whose rows a person has deleted."""
    shown = table_rows(stored, topic, table.main)
    if not table.is_changed and (lost := {f.path for f in table.files} - {f.path for f in table.main}):
        raise Violation(f"main of {topic.name} lacks {sorted(lost)}, and nobody has touched it")
    there = {file.path for file in table.main}
    # What was touched and is still there shows its rows by itself: no other file does, or they would be there twice.
    for path, deleted in table.deleted.items():
        for partition, offsets in deleted.items() if path not in there else ():
            if back := sorted(shown.get(partition, {}).keys() & set(offsets)):
                raise Violation(f"rows {back} of {path} that were deleted from {topic.name} are back in main")


def _check_state(topic: Topic, table: MemoryTable | None, state: TableState | None) -> None:
    ends = {} if state is None else state.ends
    branch = {} if table is None or table.head is None else dict(table.head.ends)
    if ends != branch:
        raise Violation(f"the branch of {topic.name} ends at {branch}, the metadata store says {ends}")
    if table is not None and state is not None:
        row_count = sum(file.row_count for file in table.files)
        if (state.rows, state.files) != (row_count, len(table.files)):
            raise Violation(
                f"the table of {topic.name} has {row_count} rows in {len(table.files)} files, its state says {state}"
            )
        listed = sum(file.row_count for file in table.letters)
        if len({file.path for file in table.letters}) != len(table.letters) or listed != state.dead_letters:
            raise Violation(f"{listed} dead letters of {topic.name} are listed, its state says {state.dead_letters}")


def _check_stream(
    stored: StoredTables, stream: StreamId, table: MemoryTable | None, rows: dict[int, bytes], end_offset: int
) -> None:
    """Check the index of one stream against its rows in the table, which ends at `end_offset`."""
    head = stored.head(stream)
    paths = set() if table is None else {file.path for file in table.files}
    for entry in stored.entries(stream):
        if isinstance(entry.extent, TableExtent):
            if entry.end_offset > end_offset:
                raise Violation(f"stream {stream}: {entry} lies behind the table's end {end_offset}")
            if strange := _paths([entry]) - paths:
                raise Violation(f"stream {stream}: the index names {strange}, the branch does not")
        if entry.end_offset <= head.log_start:
            continue
        values = stored.values(entry)
        for offset in range(max(entry.start_offset, head.log_start), entry.end_offset):
            _check_offset(stream, entry, offset, values.get(offset), rows.get(offset), end_offset)


def _check_offset(
    stream: StreamId, entry: IndexEntry, offset: int, in_log: bytes | None, in_table: bytes | None, end_offset: int
) -> None:
    if in_log is None:
        raise Violation(f"stream {stream}: {entry} has nothing at {offset}")
    is_held_back = in_log.startswith(SEALED)
    if isinstance(entry.extent, WalExtent) and entry.end_offset <= end_offset and not is_held_back:
        raise Violation(f"stream {stream}: {entry} was to be swapped, the table ends at {end_offset}")
    if isinstance(entry.extent, TableExtent) and is_held_back:
        raise Violation(f"stream {stream}: {entry} cannot be opened and is said to be in the table")
    if offset < end_offset and in_table != (None if is_held_back else in_log):
        raise Violation(f"stream {stream}: offset {offset} is {in_log!r} in the log and {in_table!r} in the table")
    if offset >= end_offset and in_table is not None:
        raise Violation(f"stream {stream}: the table has offset {offset}, and ends at {end_offset}")


async def check_table_leaks(stored: StoredTables) -> None:
    """Check, after the collectors had time enough, that the files of all branches are left, and no others."""
    if left := stored.records_left():
        raise Violation(f"collectors have not done with {left}")
    tables = stored.catalog.tables.values()
    named = {path for table in tables for path in table.named_paths()}
    named |= {file.path for table in tables for file in table.letters}
    # Whoever was told that they are free may not have lived to condemn them: they are orphans then.
    orphans = {path for table in tables for path in table.freed}
    there = set(await stored.table_objects())
    if lost := sorted(named - there):
        raise Violation(f"tables name files that are not there: {lost}")
    if leaked := sorted(there - named - orphans):
        raise Violation(f"nobody names these table files: {leaked}")


def _as_named(file: WrittenFile, groups: Sequence[RowGroup]) -> TableFile:
    return TableFile(file.path, file.size_bytes, file.footer_bytes, file.footer_crc, tuple(groups))


def _paths(entries: Iterable[IndexEntry]) -> set[str]:
    extents = (entry.extent for entry in entries)
    return {file.path for extent in extents if isinstance(extent, TableExtent) for file in extent.files}
