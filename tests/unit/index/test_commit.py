import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from headrace.errors import Fenced
from headrace.index.commit import CommitDraft, FrameCommit, ObjectClosed, Outcome, commit_frame, commit_frames
from headrace.index.objects import CollectingAges, condemn_objects, forget_objects, wal_object_id
from headrace.index.producers import Refused
from headrace.index.streams import delete_stream
from headrace.index.values import ObjectState, PartResult, PartStatus
from headrace.index.writers import abandon_frame
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Decision, Key, Reads
from headrace.model.ids import StreamId
from tests.log_kit import DAY_MS, EXPIRATION_MS, WRITER, LogKit, batch


async def test_offsets_are_contiguous_over_frames_and_parts() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    first = await log.commit((stream, [batch(3)]), (stream, [batch(2), batch(4)]))
    second = await log.commit((stream, [batch(1)]))
    assert [result.base_offset for result in (*first, *second)] == [0, 3, 9]
    head = await log.head(stream)
    assert (head.high_watermark, head.cumulative_bytes) == (10, 400)


async def test_adjacent_parts_of_a_stream_become_one_entry() -> None:
    log = LogKit()
    a, b = await log.streams(2)
    await log.writer()
    await log.commit((b, [batch(1)]), (a, [batch(2)]), (b, [batch(3)]), (a, [batch(4)]))
    record = (await log.log())[-1]
    assert [(entry.stream, entry.start_offset, entry.record_count) for entry in record.entries] == [
        (b, 0, 4),
        (a, 0, 6),
    ]


async def test_refused_part_splits_the_entry_around_its_bytes() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    bad = batch(5, producer=9, sequence=-1)
    results = await log.commit((stream, [batch(2)]), (stream, [bad]), (stream, [batch(3)]))
    assert [result.status for result in results] == [
        PartStatus.ACCEPTED,
        PartStatus.INVALID_SEQUENCE,
        PartStatus.ACCEPTED,
    ]
    left, right = (await log.log())[-1].entries
    assert (left.end_offset, right.start_offset) == (2, 2)
    assert right.start_byte == left.start_byte + left.size_bytes + bad.size_bytes


async def test_each_part_fails_alone() -> None:
    log = LogKit()
    living, deleted = await log.streams(2)
    await log.writer()
    await delete_stream(log.keys, deleted, now_ms=log.now_ms).apply(log.store)
    unknown = StreamId(99)
    results = await log.commit((deleted, [batch()]), (living, [batch()]), (unknown, [batch()]))
    assert [result.status for result in results] == [
        PartStatus.UNKNOWN_STREAM,
        PartStatus.ACCEPTED,
        PartStatus.UNKNOWN_STREAM,
    ]


async def test_retry_of_a_batch_is_answered_with_its_first_offset_also_inside_one_frame() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    produced = batch(4, producer=5, sequence=0)
    first, again = await log.commit((stream, [produced]), (stream, [produced]))
    (later,) = await log.commit((stream, [produced]))
    assert first.status is PartStatus.ACCEPTED
    assert [again.status, later.status] == [PartStatus.DUPLICATE] * 2
    assert {first.base_offset, again.base_offset, later.base_offset} == {0}
    assert (await log.head(stream)).high_watermark == 4


async def test_expired_producer_starts_anew() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.commit((stream, [batch(producer=5, sequence=0)]))
    log.now_ms += EXPIRATION_MS
    (result,) = await log.commit((stream, [batch(producer=5, sequence=40)]))
    assert result.status is PartStatus.ACCEPTED


async def test_frame_committed_twice_changes_nothing_and_points_to_the_first_record() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    commit = log.frame([(stream, [batch(3)])])
    first = await log.apply(commit)
    before = await log.store.range(log.keys.log_range(0, limit=100))
    again = await log.apply(commit)
    assert first.record is not None and again.record is None and again.seq == first.seq
    assert await log.store.range(log.keys.log_range(0, limit=100)) == before
    assert (await log.head(stream)).high_watermark == 3


async def test_skipped_old_and_abandoned_frames_are_fenced() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream)
    await log.append(stream)
    for number in (0, 3):
        with pytest.raises(Fenced):
            await log.apply(log.frame([(stream, [batch()])], number=number))
    assert await abandon_frame(log.keys, WRITER, 2).apply(log.store) is None
    with pytest.raises(Fenced):
        await log.apply(log.frame([(stream, [batch()])], number=2))
    assert (await log.head(stream)).high_watermark == 2


async def test_abandoning_a_committed_frame_finds_its_outcome() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    outcome = await log.apply(log.frame([(stream, [batch()])]))
    found = await abandon_frame(log.keys, WRITER, 0).apply(log.store)
    assert found is not None and found.seq == outcome.seq


async def test_unregistered_writer_is_fenced() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.stage()
    log.next_frame[WRITER] = 0
    with pytest.raises(Fenced):
        await log.append(stream)


async def test_commit_into_a_sealed_condemned_or_forgotten_object_fails_without_effect() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    sealed = await log.writer()
    await log.append(stream)
    await log.seal(sealed)
    condemned, forgotten = await log.stage(number=1), await log.stage(number=2)
    log.now_ms += DAY_MS
    ages = CollectingAges(staged_max_age_ms=DAY_MS, sealed_grace_ms=DAY_MS)
    for object_id in (condemned, forgotten):
        assert await condemn_objects(log.keys, [object_id], now_ms=log.now_ms, ages=ages).apply(log.store)
    await forget_objects(log.keys, [forgotten]).apply(log.store)
    for object_id in (sealed, condemned, forgotten):
        with pytest.raises(ObjectClosed):
            await log.apply(log.frame([(stream, [batch()])], object_id=object_id))
    assert (await log.head(stream)).high_watermark == 1


async def test_object_of_one_frame_is_sealed_by_its_commit_and_a_segment_stays_open() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    segment = await log.writer()
    single = await log.stage(number=1, is_segment=False)
    await log.append(stream)
    await log.apply(log.frame([(stream, [batch()])], object_id=single))
    records = [await log.object(segment), await log.object(single)]
    assert [(record.state, record.entry_count) for record in records if record] == [
        (ObjectState.OPEN, 1),
        (ObjectState.SEALED, 1),
    ]


async def test_running_maximum_never_falls_though_timestamps_do() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    for at_ms in (50, 20, 70, 10):
        await log.append(stream, at_ms=at_ms)
    entries = [record.entries[0] for record in (await log.log())[1:]]
    assert [entry.running_max_ms for entry in entries] == [50, 50, 70, 70]
    head = await log.head(stream)
    assert (head.max_timestamp_ms, head.max_timestamp_offset) == (70, 2)


@dataclass(frozen=True)
class CounterPart:
    """A part that appends nothing: it counts in a key of its own, up to a limit."""

    key: Key
    limit: int

    def read_keys(self, keys: DomainKeys) -> Sequence[Key]:
        return [self.key]

    def decide(self, draft: CommitDraft) -> PartResult:
        count = int(draft.get(self.key) or b"0") + 1
        if count > self.limit:
            raise Refused(PartStatus.FENCED_PRODUCER)
        draft.put(self.key, str(count).encode())
        return PartResult(PartStatus.ACCEPTED, count)


async def test_parts_of_other_kinds_see_what_earlier_parts_changed_and_commit_together() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    segment = await log.writer()
    key = Key(log.keys.unit + "counter")
    append = log.frame([(stream, [batch()])])
    commit = FrameCommit(
        writer=WRITER,
        frame_number=0,
        object_id=segment,
        end_byte=append.end_byte,
        created_at_ms=log.now_ms,
        parts=[CounterPart(key, 2), *append.parts, CounterPart(key, 2), CounterPart(key, 2)],
        producer_expiration_ms=EXPIRATION_MS,
    )
    outcome = await commit_frame(log.keys, commit).apply(log.store)
    assert outcome.record is not None
    assert [(result.status, result.base_offset) for result in outcome.record.results] == [
        (PartStatus.ACCEPTED, 1),
        (PartStatus.ACCEPTED, 0),
        (PartStatus.ACCEPTED, 2),
        (PartStatus.FENCED_PRODUCER, -1),
    ]
    stored = await log.store.get(key)
    assert stored is not None and stored.value == b"2"


async def test_damaged_head_stops_its_own_stream_only() -> None:
    log = LogKit()
    sound, damaged = await log.streams(2)
    await log.writer()
    key = log.keys.head(damaged)
    spoilt = Decision(result=None, puts={key: b"\x01 not what was written"})
    await log.store.transact([log.keys.unit], Reads(), lambda seen: spoilt)
    results = await log.commit((damaged, [batch()]), (sound, [batch()]))
    assert [result.status for result in results] == [PartStatus.DAMAGED, PartStatus.ACCEPTED]
    kept = await log.store.get(key)
    assert kept is not None and kept.value == spoilt.puts[key], "what is damaged is left as it is"


# Groups of frames


async def test_group_gives_each_frame_its_record_and_writes_each_head_once() -> None:
    log = LogKit()
    a, b = await log.streams(2)
    await log.writer()
    commits = log.group([[(a, [batch(2)]), (b, [batch(1)])], [(a, [batch(3)])], [(b, [batch(4)])]])
    outcomes = await log.apply_group(commits)
    assert [outcome.seq for outcome in outcomes] == [1, 2, 3]
    assert [record.frame_number for record in (await log.log())[1:]] == [0, 1, 2]
    results = [result.base_offset for one in outcomes if one.record is not None for result in one.record.results]
    assert results == [0, 0, 2, 1]
    heads = [await log.head(stream) for stream in (a, b)]
    assert [(head.high_watermark, head.seq) for head in heads] == [(5, 2), (5, 3)]
    assert (await log.state()).next_seq == 4


async def test_group_and_frames_one_by_one_leave_the_same_log() -> None:
    logs = [LogKit(), LogKit()]
    for log in logs:
        a, b = await log.streams(2)
        await log.writer()
        frames = [
            [(a, [batch(2, producer=5, sequence=0)]), (b, [batch(1, at_ms=7)])],
            [(a, [batch(3, producer=5, sequence=2)]), (a, [batch(2, producer=5, sequence=0)])],
            [(b, [batch(4, at_ms=3)]), (a, [batch(1, producer=5, sequence=99)])],
        ]
        if log is logs[0]:
            await log.apply_group(log.group(frames))
        else:
            for commit in log.group(frames):
                await log.apply(commit)
    assert await logs[0].log() == await logs[1].log()
    for stream in (a, b):
        assert await logs[0].head(stream) == await logs[1].head(stream)
    assert await logs[0].object(commit.object_id) == await logs[1].object(commit.object_id)


async def test_every_frame_of_a_group_is_found_again_alone_or_with_those_behind_it() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    commits = log.group([[(stream, [batch(n + 1)])] for n in range(3)])
    await log.apply_group(commits[:2])
    for commit, seq in zip(commits, (1, 2), strict=False):
        assert await log.apply(commit) == Outcome(seq, None)
        assert await abandon_frame(log.keys, WRITER, commit.frame_number).apply(log.store) == Outcome(seq, None)
    assert await log.apply_group(commits) == [Outcome(1, None), Outcome(2, None)], "the third is not passed in"
    assert (await log.head(stream)).high_watermark == 3


async def test_results_of_a_group_outlive_folding_until_the_next_commit() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.apply_group(log.group([[(stream, [batch()])] for _ in range(3)]))
    await log.fold()
    assert [record.seq for record in await log.log()] == [1, 2, 3]
    await log.append(stream)
    assert [record.seq for record in await log.log()] == [4]


async def test_closed_object_ends_the_group_before_its_frame() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    first, second, third = log.group([[(stream, [batch()])] for _ in range(3)])
    elsewhere = dataclasses.replace(second, object_id=wal_object_id(WRITER, 9))
    outcomes = await log.apply_group([first, elsewhere, third])
    assert [outcome.seq for outcome in outcomes] == [1]
    with pytest.raises(ObjectClosed):
        await commit_frames(log.keys, [elsewhere, third]).apply(log.store)
    assert (await log.head(stream)).high_watermark == 1


async def test_group_behind_a_frame_without_a_fate_is_fenced() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    commits = log.group([[(stream, [batch()])] for _ in range(3)])
    with pytest.raises(Fenced):
        await log.apply_group(commits[1:])
    assert (await log.head(stream)).high_watermark == 0
