"""One proof about one look at a topic: reads what the look names, and compares (`verify.py` says what is proved).

Must stay true: a file that was found damaged is not decoded a second time: its reader may not live to tell.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from headrace.errors import Corrupt, Missing, Unsupported
from headrace.index.values import IndexEntry
from headrace.model.extents import RowGroup, TableExtent, TableFile
from headrace.model.ids import StreamId
from headrace.pipeline.compaction_proof import CompactionProof
from headrace.pipeline.offset_runs import OffsetRuns, shown
from headrace.pipeline.reading import CheckedReading, are_same
from headrace.pipeline.records import SagaRecord, SagaState
from headrace.pipeline.verify_look import StreamLook, TopicLook
from headrace.pipeline.verify_report import Kind, VerifyReport
from headrace.pipeline.verify_rules import (
    check_entries,
    check_files,
    damage_if,
    indexed_files,
    offsets_of,
    vector,
    where,
)
from headrace.records.batch import BatchView
from headrace.records.problems import InvalidBatch
from headrace.tables.arrow_runs import is_rising, runs_of
from headrace.tables.files import WrittenFile, WrittenSlice
from headrace.tables.port import LOG_BRANCH, BranchHead
from headrace.tables.scanning import MAIN_REF, NamedFile, TableLook

Progress = Callable[[int], None]
"""Is told how many bytes have been read and checked."""


class MovedOn(Exception):
    """An entry that the look has seen is not in the index any more, and its bytes are gone with good reason."""


class Proof:
    """One proof under way."""

    def __init__(
        self,
        look: TopicLook,
        report: VerifyReport,
        reading: CheckedReading,
        progress: Progress,
        *,
        still_names: Callable[[StreamId, IndexEntry], Awaitable[bool]],
    ) -> None:
        self._still_names = still_names
        self._look = look
        self._report = report
        self._reading = reading
        self._progress = progress
        self._head = self._read_head()
        self._ends: Mapping[int, int] = {} if self._head is None else self._head.ends
        self._log = [OffsetRuns() for _ in look.streams]
        self._damaged: set[str] = set()
        self._compaction = None if look.compaction is None else CompactionProof(look.compaction)
        self._twice: Counter[int] = Counter()

    def _read_head(self) -> BranchHead | None:
        """Return the branch's head. One that is not ours says nothing; then the table's state has to do."""
        look = self._look
        try:
            return None if look.table is None else look.table.head
        except Corrupt as error:
            self._report.damage(Kind.TABLE, str(error))
            ends: Mapping[int, int] = {} if look.state is None else look.state.ends
            return BranchHead(snapshot_id=-1, saga_id="", epoch=-1, ends=ends)

    async def run(self) -> None:
        look, report = self._look, self._report
        for stream in look.streams:
            check_entries(stream, report)
        self._check_vector()
        named = await self._files(LOG_BRANCH)
        check_files(indexed_files(look), named, report, leaving=self._leaving())
        report.tally.files = len(named)
        if look.table is not None:
            report.table = ".".join(look.table.description.identifier)
        for stream in look.streams:
            await self._read_stream(stream)
        if look.table is not None:
            branch = await self._scan(look.table, LOG_BRANCH)
            if branch is not None:
                self._compare_branch(branch)
                await self._compare_main(look.table, named, branch)
        if self._compaction is not None:
            self._sum_up_compaction(self._compaction)

    def _check_vector(self) -> None:
        """Compare the branch head's vector with the table's state, and both with the log."""
        look, report = self._look, self._report
        state_ends: Mapping[int, int] = {} if look.state is None else look.state.ends
        expected = {**state_ends}
        saga = look.saga
        if saga is not None:
            report.note(Kind.UNDER_WAY, f"run {saga.saga_id} is {saga.state.name.lower().replace('_', ' ')}")
            if self._is_in_table(saga):
                expected.update(saga.ends)
        is_ours = look.table is None or look.state is None or look.table.description.uuid == look.state.uuid
        if state_ends and not is_ours:
            report.damage(Kind.TABLE, "the table is not the one that the log's records went to: it has another UUID")
        if look.table is None and expected:
            report.damage(Kind.TABLE, f"{len(expected)} partitions have rows in a table, and there is no such table")
        elif expected != dict(self._ends):
            report.damage(
                Kind.VECTOR, f"the branch ends at {vector(self._ends)}, the table's state says {vector(expected)}"
            )
        for stream in look.streams:
            end = self._ends.get(stream.partition, 0)
            if end > stream.head.high_watermark:
                report.damage(
                    Kind.VECTOR,
                    f"{where(stream)}: the table ends at {end}, behind the log's end {stream.head.high_watermark}",
                )
        strangers = sorted(set(self._ends) - {stream.partition for stream in look.streams})
        if strangers:
            report.damage(Kind.VECTOR, f"the vector names partitions {strangers}, which the topic has not")

    def _leaving(self) -> frozenset[str]:
        """Return the files that a rewrite under way has taken out of the branch, and not yet from the index."""
        saga = self._look.saga
        is_in_table = saga is not None and self._head is not None and self._head.saga_id == saga.saga_id
        return frozenset(saga.inputs) if saga is not None and is_in_table else frozenset()

    def _is_in_table(self, saga: SagaRecord) -> bool:
        is_head = self._head is not None and self._head.saga_id == saga.saga_id
        if saga.state >= SagaState.IN_TABLE and not is_head:
            self._report.damage(
                Kind.VECTOR, f"run {saga.saga_id} is said to be in the table, and the branch's head is of another"
            )
        return is_head

    async def _files(self, ref: str) -> Sequence[NamedFile]:
        if self._look.table is None:
            return ()
        try:
            return await self._look.table.files(ref)
        except Unsupported as error:
            self._report.warn(Kind.NOT_PROVED, str(error))
            return ()

    async def _read_stream(self, stream: StreamLook) -> None:
        """Read every entry below the table's end, and remember which offsets have a record."""
        end = self._ends.get(stream.partition, 0)
        for entry in stream.entries:
            try:
                if isinstance(entry.extent, TableExtent):
                    await self._read_table_entry(stream, entry, entry.extent)
                elif entry.start_offset < end:
                    await self._read_wal_entry(stream, entry)
            except (Corrupt, Missing) as error:
                if isinstance(error, Missing) and not await self._still_names(stream.stream, entry):
                    raise MovedOn from error
                self._report.damage(Kind.BYTES, f"{where(stream)}, {offsets_of(entry)}: {error}")
                self._damaged.update(self._files_of(stream, entry))
            self._progress(self._reading.read_bytes)

    async def _read_table_entry(self, stream: StreamLook, entry: IndexEntry, extent: TableExtent) -> None:
        report = self._report
        if entry.end_offset > self._ends.get(stream.partition, 0):
            report.damage(
                Kind.VECTOR,
                f"{where(stream)}: the index has {offsets_of(entry)} in the table, whose vector does not reach there",
            )
        for file in extent.files:
            ends = [*(group.first_offset for group in file.row_groups[1:]), entry.end_offset]
            for group, group_end in zip(file.row_groups, ends, strict=True):
                rows = await self._reading.group(file, group)
                report.tally.row_groups += 1
                self._check_rows(stream, file, group, rows.records.column("offset"))
                low, high = max(entry.start_offset, group.first_offset), min(group_end, entry.end_offset)
                records = rows.between(low, high)
                self._note_rows(stream, records.column("offset"))
                if self._compaction is not None:
                    inside = records.filter(pc.greater_equal(records.column("offset"), stream.head.log_start))
                    self._twice[stream.partition] += self._compaction.note_log(stream.partition, inside)

    def _check_rows(self, stream: StreamLook, file: TableFile, group: RowGroup, offsets: Any) -> None:
        place = f"{where(stream)}: file {file.path}, row group {group.number}"
        if not is_rising(offsets):
            self._report.damage(Kind.ROWS, f"{place}: its offsets do not rise")
        if len(offsets) != group.row_count:
            self._report.damage(Kind.ROWS, f"{place}: it has {len(offsets)} rows, the index says {group.row_count}")
        if len(offsets) and offsets[0].as_py() < group.first_offset:
            self._report.damage(
                Kind.ROWS, f"{place}: it begins at {offsets[0].as_py()}, the index says {group.first_offset}"
            )

    async def _read_wal_entry(self, stream: StreamLook, entry: IndexEntry) -> None:
        """Read an entry that the table is past: its batches were held back, or wait for their swap."""
        found = self._slice_of(stream, entry)
        opened = 0
        async for batch in self._reading.batches(entry):
            if batch.is_control or batch.record_count == 0:
                continue
            try:
                records = await self._reading.records(batch)
            except InvalidBatch as error:
                self._held_back(stream, batch, error)
                continue
            opened += 1
            self._note_rows(stream, records.column("offset"))
            if found is not None:
                await self._compare(stream, *found, batch, records)
        if opened and found is None:
            self._report.warn(
                Kind.UNSWAPPED,
                f"{where(stream)}: {offsets_of(entry)} lie in the WAL below the table's end, and nothing keeps them",
            )

    async def _compare(
        self, stream: StreamLook, file: WrittenFile, part: WrittenSlice, batch: BatchView, records: Any
    ) -> None:
        """Compare a batch that waits for its swap with its rows, byte for byte."""
        rows = await self._rows_of(file, part, batch.base_offset, batch.end_offset)
        self._report.tally.compared_records += records.num_rows
        if not are_same([records], rows):
            self._report.damage(
                Kind.RECORD_DIFFERS,
                f"{where(stream)}: the records {batch.base_offset}–{batch.last_offset} of the WAL are not the rows "
                f"of {file.path}",
                count=records.num_rows,
            )

    def _held_back(self, stream: StreamLook, batch: BatchView, error: InvalidBatch) -> None:
        self._report.tally.held_back_batches += 1
        self._report.warn(
            Kind.HELD_BACK,
            f"{where(stream)}: offsets {batch.base_offset}–{batch.last_offset} are held back in the WAL: {error}",
            count=batch.end_offset - batch.base_offset,
        )

    def _slice_of(self, stream: StreamLook, entry: IndexEntry) -> tuple[WrittenFile, WrittenSlice] | None:
        """Return the slice of the run under way that has this entry's rows, if there is one."""
        saga = self._look.saga
        if saga is None or self._head is None or self._head.saga_id != saga.saga_id:
            return None
        for file in saga.files:
            for part in file.slices:
                if part.stream == stream.stream and part.start_offset <= entry.start_offset < part.end_offset:
                    return file, part
        return None

    def _files_of(self, stream: StreamLook, entry: IndexEntry) -> Sequence[str]:
        """Return the table files that reading an entry opens."""
        if isinstance(entry.extent, TableExtent):
            return [file.path for file in entry.extent.files]
        found = self._slice_of(stream, entry)
        return [] if found is None else [found[0].path]

    async def _rows_of(self, file: WrittenFile, part: WrittenSlice, start_offset: int, end_offset: int) -> list[Any]:
        """Return the rows of a written slice in an offset range."""
        named = TableFile(file.path, file.size_bytes, file.footer_bytes, file.footer_crc, part.row_groups)
        ends = [*(group.first_offset for group in part.row_groups[1:]), part.end_offset]
        return [
            (await self._reading.group(named, group)).between(start_offset, end_offset)
            for group, group_end in zip(part.row_groups, ends, strict=True)
            if group.first_offset < end_offset and group_end > start_offset
        ]

    def _note_rows(self, stream: StreamLook, offsets: Any) -> None:
        self._report.tally.log_rows += len(offsets)
        for start, end in runs_of(offsets):
            self._log[stream.partition].add(start, end)

    async def _scan(self, table: TableLook, ref: str) -> dict[int, OffsetRuns] | None:
        """Read where all rows of a ref stand; `None` where they cannot be read."""
        found: dict[int, OffsetRuns] = {}
        tally, report = self._report.tally, self._report
        astray: dict[str, int] = {}
        unplaced = 0
        try:
            async for rows in table.rows(ref, without=self._damaged):
                if ref == MAIN_REF:
                    tally.main_rows += rows.row_count
                else:
                    tally.branch_rows += rows.row_count
                for partition, runs in rows.runs.items():
                    offsets = found.setdefault(partition, OffsetRuns())
                    for start, end in runs:
                        offsets.add(start, end)
                unplaced += rows.unplaced_count
                if rows.astray_count:
                    astray[rows.key] = astray.get(rows.key, 0) + rows.astray_count
        except Unsupported as error:
            report.warn(Kind.NOT_PROVED, str(error))
            return None
        except (Corrupt, Missing) as error:
            report.damage(Kind.BYTES, f"{ref}: {error}")
            return None
        for key, count in astray.items():
            report.damage(
                Kind.ASTRAY, f"{ref}: {count} rows of {key} are not what its partition value says", count=count
            )
        if unplaced and ref == MAIN_REF:
            report.warn(Kind.FOREIGN_ROW, f"main: {unplaced} rows have no partition or no offset", count=unplaced)
        elif unplaced:
            report.damage(Kind.UNKNOWN_ROW, f"{unplaced} rows have no partition or no offset", count=unplaced)
        return found

    def _compare_branch(self, branch: Mapping[int, OffsetRuns]) -> None:
        """Compare the log's records with the branch's rows."""
        report = self._report
        for stream in self._look.streams:
            place, start = where(stream), stream.head.log_start
            end = self._ends.get(stream.partition, 0)
            rows = branch.get(stream.partition, OffsetRuns())
            log = self._log[stream.partition]
            damage_if(report, Kind.DOUBLE, f"{place}: twice on {LOG_BRANCH}", rows.doubles())
            damage_if(report, Kind.DOUBLE, f"{place}: twice in the log", log.doubles())
            current = rows.between(start, 2**63 - 1)
            damage_if(report, Kind.LOST, f"{place}: not in the table", log.between(start, end).minus(rows))
            damage_if(report, Kind.UNKNOWN_ROW, f"{place}: in the table, not in the log", current.minus(log))
            expired = rows.between(0, start).count()
            if expired:
                report.note(
                    Kind.EXPIRED, f"{place}: {expired} rows are older than the log's start {start}", count=expired
                )
        for partition in sorted(set(branch) - {stream.partition for stream in self._look.streams}):
            damage_if(report, Kind.UNKNOWN_ROW, f"partition {partition}, which is not the topic's", branch[partition])

    def _log_start(self, partition: int) -> int:
        return next((one.head.log_start for one in self._look.streams if one.partition == partition), 0)

    async def _compare_main(
        self, table: TableLook, named: Sequence[NamedFile], branch: Mapping[int, OffsetRuns]
    ) -> None:
        """Compare what users see with the branch: they may change it, and are told what is different."""
        report = self._report
        on_main = await self._files(MAIN_REF)
        is_same = sorted(file.key for file in on_main) == sorted(file.key for file in named)
        if is_same and not any(file.has_deletes for file in (*on_main, *named)):
            report.tally.main_rows = report.tally.branch_rows
            return
        main = await self._scan(table, MAIN_REF)
        if main is None:
            return
        compacted = await self._compare_history(table)
        for partition in sorted({*branch, *main}):
            place = f"partition {partition}"
            ours, theirs = branch.get(partition, OffsetRuns()), main.get(partition, OffsetRuns())
            damage_if(report, Kind.DOUBLE, f"{place}: twice on main", theirs.doubles())
            start = self._log_start(partition)
            forgotten = theirs.minus(ours).between(0, start)
            foreign, missing = (
                theirs.minus(ours).between(start, 2**63 - 1),
                ours.minus(theirs).between(start, 2**63 - 1),
            )
            if count := forgotten.count():
                report.note(
                    Kind.EXPIRED,
                    f"{place}: main keeps {count} rows that are older than the log's start {start}",
                    count=count,
                )
            if partition in compacted:
                start, end = compacted[partition]
                gone = foreign.between(start, end)
                foreign = foreign.minus(gone)
                if count := gone.count():
                    report.note(
                        Kind.COMPACTED, f"{place}: {count} rows on main were compacted away in the log", count=count
                    )
            if count := foreign.count():
                report.warn(
                    Kind.FOREIGN_ROW,
                    f"{place}: {count} rows on main are not of the log: {shown(foreign.runs())}",
                    count=count,
                )
            if count := missing.count():
                report.warn(
                    Kind.MISSING_ON_MAIN,
                    f"{place}: {count} records are not on main any more, and are safe on {LOG_BRANCH}: "
                    f"{shown(missing.runs())}",
                    count=count,
                )

    async def _compare_history(self, table: TableLook) -> dict[int, tuple[int, int]]:
        """Prove of a compacted topic that what `main` has and the log lacks had to go; return where it may lack rows.

        Where `main` follows the log there is nothing to compare with.
        """
        proof, report = self._compaction, self._report
        if proof is None:
            return {}
        starts = {stream.partition: stream.head.log_start for stream in self._look.streams}
        log = {stream.partition: self._log[stream.partition] for stream in self._look.streams}
        try:
            async for rows in table.keyed_rows(MAIN_REF, without=self._damaged):
                proof.note_main(rows, log, starts, dict(self._ends))
        except (Unsupported, Corrupt, Missing) as error:
            report.warn(Kind.NOT_PROVED, f"what compaction took was not looked at: {error}")
        for partition, offsets in sorted(proof.lost().items()):
            if proof.is_whole:
                damage_if(
                    report,
                    Kind.LOST,
                    f"partition {partition}: the latest of their keys, compacted away",
                    offsets,
                )
        return {partition: (start, self._ends.get(partition, 0)) for partition, start in starts.items()}

    def _sum_up_compaction(self, proof: CompactionProof) -> None:
        report = self._report
        if not proof.is_whole:
            report.warn(Kind.NOT_PROVED, "what compaction took: the topic has more keys than fit into memory")
        for stream in self._look.streams:
            cleaned_to = proof.cleaned_to(stream.partition)
            report.note(Kind.COMPACTED, f"{where(stream)}: clean up to offset {cleaned_to}")
            if count := self._twice[stream.partition]:
                report.warn(
                    Kind.COMPACTED,
                    f"{where(stream)}: {count} records below {cleaned_to} have a later one of the same key",
                    count=count,
                )
