"""Rounds of compaction leave what a model of Kafka's log cleaner leaves, whatever was produced and when."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.pipeline.compaction_kit import CompactionKit, Kept, Row

MIN_LAG_MS = 50_000
DELETE_RETENTION_MS = 100_000

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"", None])
ROWS = st.lists(st.tuples(KEYS, st.sampled_from([b"1", b"2", None])), min_size=1, max_size=6)
STEPS = st.lists(st.tuples(ROWS, st.integers(0, 80)), min_size=1, max_size=12)
"""What is produced before each round, and how many seconds pass after it."""


@dataclass(slots=True)
class Cleaner:
    """Kafka's rules for one partition: a segment is what one round brings into the table."""

    min_lag_ms: int
    log: dict[int, Row] = field(default_factory=dict)
    segments: list[tuple[int, int]] = field(default_factory=list)
    """End offset and greatest time of each."""
    cleaned_to: int = 0
    cleaned_at: dict[int, int] = field(default_factory=dict)
    """Since when a tombstone lies in the clean part."""

    def append(self, rows: list[Row], at_ms: int) -> None:
        start = self.segments[-1][0] if self.segments else 0
        self.log.update(enumerate(rows, start))
        self.segments.append((start + len(rows), at_ms + len(rows) - 1))

    def clean(self, now_ms: int) -> None:
        """Make one round, if one is due; a ratio of nothing makes it due as soon as anything is dirty."""
        end = 0
        for segment_end, newest_ms in self.segments:
            if self.min_lag_ms and newest_ms > now_ms - self.min_lag_ms:
                break
            end = segment_end
        expired = {
            at for at, since in self.cleaned_at.items() if now_ms - since >= DELETE_RETENTION_MS and at in self.log
        }
        overdue = {at for at in expired if now_ms - self.cleaned_at[at] >= 2 * DELETE_RETENTION_MS}
        if end <= self.cleaned_to and not overdue:
            return
        latest = {key: at for at, (key, _) in self.log.items() if self.cleaned_to <= at < end and key is not None}
        reach = max(end, self.cleaned_to)
        for at, (key, _) in list(self.log.items()):
            if at < reach and (key is None or at < latest.get(key, 0) or at in expired):
                del self.log[at]
        for at, (_, value) in self.log.items():
            if self.cleaned_to <= at < end and value is None:
                self.cleaned_at[at] = now_ms
        self.cleaned_to = reach

    def kept(self) -> list[Kept]:
        return [(at, key, value) for at, (key, value) in sorted(self.log.items())]


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, min_lag_ms=st.sampled_from([0, MIN_LAG_MS]))
async def test_rounds_leave_what_kafkas_cleaner_leaves(steps: list[tuple[list[Row], int]], min_lag_ms: int) -> None:
    kit = CompactionKit()
    topic = await kit.compacted_topic(
        min_compaction_lag_ms=str(min_lag_ms), delete_retention_ms=str(DELETE_RETENTION_MS)
    )
    (stream,) = topic.streams
    process = await kit.pipeline()
    model = Cleaner(min_lag_ms)
    for rows, seconds in steps:
        model.append(rows, kit.clock.now_ms())
        await kit.put(stream, *rows)
        model.clean(kit.clock.now_ms())
        _, problems = await process.run()
        assert problems == {}
        assert await kit.kept(stream) == model.kept()
        await kit.clock.advance(float(seconds))
    await kit.clock.advance(2 * (MIN_LAG_MS + DELETE_RETENTION_MS) / 1000)
    for _ in range(2):
        model.clean(kit.clock.now_ms())
        await process.run()
    assert await kit.kept(stream) == model.kept()
    latest = {key: value for rows, _ in steps for key, value in rows if key is not None}
    assert {key: value for _, key, value in model.kept() if value is not None} == {
        key: value for key, value in latest.items() if value is not None
    }, "who reads all of it learns the latest value of every key"
