"""Drive the rules with random operations of several writers, against a model that is just lists.

The model keeps, per stream, the batches it should hold, and per byte position, the batch that was written there.
After every step: offsets are contiguous (I1), retries are recognised on any writer (I4), every offset has exactly one
entry through folds, trims and swaps (I5), and each object is counted for exactly the entries that name it (I8).
"""

import itertools
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import Fenced
from headrace.index.cache import IndexCache
from headrace.index.commit import FrameCommit, Outcome
from headrace.index.streams import advance_log_start, delete_stream
from headrace.index.swap import Swap, replacement_for, swap_entries
from headrace.index.trim import plan_trim, trim_entries
from headrace.index.values import OBJECT_RECORD, IndexEntry, PartResult, PartStatus
from headrace.index.writers import abandon_frame
from headrace.metadata.keys import prefix_range
from headrace.model.batches import BatchSummary
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectId, StreamId, WriterId
from headrace.testing.inline import at_once
from tests.log_kit import LogKit, batch

WRITERS = [WriterId(digit * 32) for digit in "abc"]
STREAMS = 3
PRODUCERS = 2
BATCH_BYTES = 100

Offer = tuple[int, int, int, str, int]
"""Number of the stream, count of records, timestamp, kind, producer."""

Expected = tuple[PartStatus, int, list[tuple[int, int]]]
"""A part's status and offset, and what its bytes hold."""

OFFERS = st.lists(
    st.tuples(
        st.integers(0, STREAMS - 1),
        st.integers(1, 4),
        st.integers(0, 50),
        st.sampled_from(["plain", "next", "next", "duplicate", "gap"]),
        st.integers(0, PRODUCERS - 1),
    ),
    min_size=1,
    max_size=5,
)


class ModelCache(IndexCache):
    """The cache without tasks: refresh directly."""

    async def refresh(self) -> None:
        await self._catch_up()


@dataclass
class ModelStream:
    """What a stream should hold: one item per offset, its timestamp and an identity of the batch it came in."""

    records: list[tuple[int, int]] = field(default_factory=list)
    log_start: int = 0
    is_deleted: bool = False
    # Per producer: the next sequence, and every batch sent so far with its offset.
    next_sequence: dict[int, int] = field(default_factory=dict)
    sent: dict[int, list[tuple[BatchSummary, int]]] = field(default_factory=dict)


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log = LogKit()
        self.streams: list[StreamId] = []
        self.model: dict[StreamId, ModelStream] = {}
        self.bytes: dict[tuple[ObjectId, int], list[tuple[int, int]]] = {}
        self.last_commits: dict[WriterId, list[tuple[FrameCommit, tuple[PartResult, ...]]]] = {}
        self.identities = itertools.count()
        self.packed = itertools.count(1)

    @initialize()
    def begin(self) -> None:
        self.streams = at_once(self.log.streams(STREAMS))
        self.model = {stream: ModelStream() for stream in self.streams}
        for writer in WRITERS:
            at_once(self.log.writer(writer))
        self.cache = ModelCache(self.log.store, self.log.keys, max_folded_entries=10)

    # Appending

    @rule(writer=st.sampled_from(WRITERS), offers=OFFERS)
    def append(self, writer: WriterId, offers: list[Offer]) -> None:
        batches, expected = self._plan(offers)
        commit = self.log.frame(batches, writer=writer)
        self._note_bytes(commit, expected)
        outcome = at_once(self.log.apply(commit))
        self.last_commits[writer] = [(commit, self._checked(outcome, expected))]

    @rule(writer=st.sampled_from(WRITERS), frames=st.lists(OFFERS, min_size=2, max_size=4))
    def append_group(self, writer: WriterId, frames: list[list[Offer]]) -> None:
        planned = [self._plan(offers) for offers in frames]
        commits = self.log.group([batches for batches, _ in planned], writer=writer)
        for commit, (_, expected) in zip(commits, planned, strict=True):
            self._note_bytes(commit, expected)
        outcomes = at_once(self.log.apply_group(commits))
        results = [self._checked(one, expected) for one, (_, expected) in zip(outcomes, planned, strict=True)]
        self.last_commits[writer] = list(zip(commits, results, strict=True))

    def _plan(self, offers: list[Offer]) -> tuple[list[tuple[StreamId, list[BatchSummary]]], list[Expected]]:
        """Let the model decide in the order of the frame's parts, as the commit does."""
        batches: list[tuple[StreamId, list[BatchSummary]]] = []
        expected: list[Expected] = []
        for number, count, at_ms, kind, producer in offers:
            stream = self.streams[number]
            summary, status, offset = self._model_append(stream, count, at_ms, kind, producer)
            batches.append((stream, [summary]))
            identity = next(self.identities) if status is not PartStatus.ACCEPTED else self._identity
            expected.append((status, offset, [(at_ms, identity)] * summary.record_count))
        return batches, expected

    def _note_bytes(self, commit: FrameCommit, expected: list[Expected]) -> None:
        for part, (_, _, content) in zip(commit.parts, expected, strict=True):
            self.bytes[commit.object_id, part.start_byte] = content  # type: ignore[attr-defined]

    def _checked(self, outcome: Outcome, expected: list[Expected]) -> tuple[PartResult, ...]:
        assert outcome.record is not None
        found = [(result.status, result.base_offset) for result in outcome.record.results]
        assert found == [(status, offset) for status, offset, _ in expected]
        return outcome.record.results

    def _model_append(
        self, stream: StreamId, count: int, at_ms: int, kind: str, producer: int
    ) -> tuple[BatchSummary, PartStatus, int]:
        model = self.model[stream]
        sent = model.sent.get(producer, [])
        if kind == "duplicate" and sent:
            summary, offset = sent[-1]
            return (summary, PartStatus.UNKNOWN_STREAM, -1) if model.is_deleted else (
                summary, PartStatus.DUPLICATE, offset)  # fmt: skip
        if kind == "gap" and sent:
            sequence = model.next_sequence[producer] + 7
            summary = batch(count, size_bytes=BATCH_BYTES, at_ms=at_ms, producer=producer, sequence=sequence)
            status = PartStatus.UNKNOWN_STREAM if model.is_deleted else PartStatus.OUT_OF_ORDER_SEQUENCE
            return summary, status, -1
        if kind == "plain":
            summary = batch(count, size_bytes=BATCH_BYTES, at_ms=at_ms)
        else:
            sequence = model.next_sequence.get(producer, 0)
            summary = batch(count, size_bytes=BATCH_BYTES, at_ms=at_ms, producer=producer, sequence=sequence)
        if model.is_deleted:
            return summary, PartStatus.UNKNOWN_STREAM, -1
        offset = len(model.records)
        self._identity = next(self.identities)
        model.records += [(at_ms, self._identity)] * count
        if summary.producer_id >= 0:
            model.next_sequence[producer] = summary.base_sequence + count
            model.sent.setdefault(producer, []).append((summary, offset))
        return summary, PartStatus.ACCEPTED, offset

    @precondition(lambda self: self.last_commits)
    @rule(data=st.data())
    def commit_again(self, data: st.DataObject) -> None:
        """Each frame of a writer's last transaction answers with its first results: alone, or with its neighbours."""
        commits = self.last_commits[data.draw(st.sampled_from(sorted(self.last_commits)))]
        start = data.draw(st.integers(0, len(commits) - 1))
        again = commits[start : data.draw(st.integers(start + 1, len(commits)))]
        outcomes = at_once(self.log.apply_group([commit for commit, _ in again]))
        records = {record.seq: record for record in at_once(self.log.log())}
        for outcome, (commit, results) in zip(outcomes, again, strict=True):
            assert outcome.record is None
            record = records[outcome.seq]
            assert (record.frame_number, record.results) == (commit.frame_number, results)
            found = at_once(abandon_frame(self.log.keys, commit.writer, commit.frame_number).apply(self.log.store))
            assert found is not None and found.seq == outcome.seq

    @rule(writer=st.sampled_from(WRITERS), stream=st.integers(0, STREAMS - 1))
    def abandon_then_commit_late(self, writer: WriterId, stream: int) -> None:
        late = self.log.frame([(self.streams[stream], [batch(size_bytes=BATCH_BYTES)])], writer=writer)
        assert at_once(abandon_frame(self.log.keys, writer, late.frame_number).apply(self.log.store)) is None
        self.log.next_frame[writer] += 1
        self.last_commits.pop(writer, None)
        try:
            at_once(self.log.apply(late))
        except Fenced:
            return
        raise AssertionError("an abandoned frame was committed")

    # Keeping

    @rule(records=st.integers(1, 5), lag=st.integers(0, 3), entries=st.integers(1, 4))
    def fold(self, records: int, lag: int, entries: int) -> None:
        at_once(self.log.fold(max_records=records, lag_records=lag, max_entries=entries))

    @rule(stream=st.integers(0, STREAMS - 1), data=st.data())
    def move_log_start(self, stream: int, data: st.DataObject) -> None:
        model = self.model[self.streams[stream]]
        if model.is_deleted:
            return
        offset = data.draw(st.integers(model.log_start, len(model.records)))
        at_once(advance_log_start(self.log.keys, self.streams[stream], offset, now_ms=0).apply(self.log.store))
        model.log_start = offset

    @rule(stream=st.integers(0, STREAMS - 1), count=st.integers(1, 3))
    def trim(self, stream: int, count: int) -> None:
        target = self.streams[stream]
        entries = at_once(plan_trim(self.log.store, self.log.keys, target, max_entries=count))
        if entries:
            at_once(trim_entries(self.log.keys, target, entries, now_ms=0).apply(self.log.store))

    @rule(stream=st.integers(0, STREAMS - 1), data=st.data())
    def swap(self, stream: int, data: st.DataObject) -> None:
        target = self.streams[stream]
        log_start = self.model[target].log_start
        entries = [entry for entry in at_once(self.log.index(target)) if entry.end_offset > log_start]
        if len(entries) < 2 or self.model[target].is_deleted:
            return
        start = data.draw(st.integers(0, len(entries) - 2))
        end = data.draw(st.integers(start + 1, len(entries)))
        step = entries[start:end]
        packed = at_once(self.log.stage(WRITERS[0], number=next(self.packed), is_segment=False))
        size_bytes = sum(entry.extent.size_bytes for entry in step if isinstance(entry.extent, WalExtent))
        self._repack(step, packed)
        replacement = replacement_for(step, WalExtent(packed, 0, size_bytes))
        swap = Swap(stream=target, planned=step, replacements=[replacement])
        at_once(swap_entries(self.log.keys, swap, now_ms=0).apply(self.log.store))

    def _repack(self, entries: list[IndexEntry], packed: ObjectId) -> None:
        byte = 0
        for entry in entries:
            for content in self._batches_of(entry):
                self.bytes[packed, byte] = content
                byte += BATCH_BYTES

    @rule(stream=st.integers(0, STREAMS - 1))
    def delete(self, stream: int) -> None:
        if stream != 0:  # one stream always lives
            return
        target = self.streams[-1]
        at_once(delete_stream(self.log.keys, target, now_ms=0).apply(self.log.store))
        model = self.model[target]
        model.is_deleted, model.log_start = True, len(model.records)

    # Reading

    @rule(stream=st.integers(0, STREAMS - 1), offset=st.integers(0, 80))
    def read_through_the_cache(self, stream: int, offset: int) -> None:
        model = self.model[self.streams[stream]]
        head = at_once(self.cache.fresh_head(self.streams[stream]))
        assert (head is None) == model.is_deleted
        if head is None:
            return
        assert (head.log_start, head.high_watermark) == (model.log_start, len(model.records))
        found = at_once(self.cache.locate(self.streams[stream], offset, limit=4))
        if model.log_start <= offset < len(model.records):
            self._check_contents(self.streams[stream], found)
            assert found[0].start_offset <= offset < found[0].end_offset

    @rule(stream=st.integers(0, STREAMS - 1), target_ms=st.integers(0, 51))
    def find_timestamp(self, stream: int, target_ms: int) -> None:
        model = self.model[self.streams[stream]]
        found = at_once(self.cache.find_timestamp(self.streams[stream], target_ms))
        if model.is_deleted:
            assert found is None
            return
        # An entry that the log start cuts may hold the time in its cut-off part: it is a legal answer, too.
        entries = [e for e in self._entries(self.streams[stream]) if e.end_offset > model.log_start]
        expected = next((entry for entry in entries if entry.max_timestamp_ms >= target_ms), None)
        assert (found and found.start_offset) == (expected and expected.start_offset)

    # What must stay true

    def _entries(self, stream: StreamId) -> list[IndexEntry]:
        """All entries of a stream, folded or not, straight from the store. Below the log start there may be holes."""
        domain = at_once(self.log.state())
        unfolded = [
            record.index_entry(entry)
            for record in at_once(self.log.log())
            for entry in domain.unfolded(record)
            if entry.stream == stream
        ]
        return at_once(self.log.index(stream)) + unfolded

    def _batches_of(self, entry: IndexEntry) -> list[list[tuple[int, int]]]:
        assert isinstance(entry.extent, WalExtent)
        start, size = entry.extent.start_byte, entry.extent.size_bytes
        return [self.bytes[entry.extent.object_id, byte] for byte in range(start, start + size, BATCH_BYTES)]

    def _check_contents(self, stream: StreamId, entries: list[IndexEntry]) -> None:
        for entry in entries:
            found = [record for content in self._batches_of(entry) for record in content]
            assert found == self.model[stream].records[entry.start_offset : entry.end_offset]

    @invariant()
    def every_offset_has_one_entry_with_its_records(self) -> None:
        for stream, model in self.model.items():
            entries = [entry for entry in self._entries(stream) if entry.end_offset > model.log_start]
            assert all(left.end_offset == right.start_offset for left, right in itertools.pairwise(entries))
            if model.log_start < len(model.records):
                assert entries[0].start_offset <= model.log_start
                assert entries[-1].end_offset == len(model.records)
            self._check_contents(stream, entries)

    @invariant()
    def objects_are_counted_for_the_entries_that_name_them(self) -> None:
        named = Counter(
            entry.extent.object_id
            for stream in self.model
            for entry in self._entries(stream)
            if isinstance(entry.extent, WalExtent)
        )
        rows = at_once(self.log.store.range(prefix_range(self.log.keys.objects_prefix, limit=10_000)))
        counted = {
            row.key.removeprefix(self.log.keys.objects_prefix): OBJECT_RECORD.decode(row.value, row.key).entry_count
            for row in rows
        }
        assert {object_id: count for object_id, count in counted.items() if count} == dict(named)


# Explaining a failure re-runs it under a tracer, which takes minutes here; the shrunk steps say enough.
LogMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
)
TestLogRules = LogMachine.TestCase
