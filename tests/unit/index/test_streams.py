"""Streams: ids given out once, log starts that only move forward, and a commit record for every change of a head."""

import pytest

from headrace.errors import Invalid, Missing
from headrace.index.streams import advance_log_start, create_streams, delete_stream
from headrace.index.trim import finish_deletion
from headrace.index.values import STREAM_INFO, HeadChange, PartStatus, StreamInfo, StreamKind
from headrace.model.ids import StreamId
from tests.log_kit import LogKit, batch


async def changes(log: LogKit) -> list[HeadChange]:
    return [change for record in await log.log() for change in record.changes]


async def test_ids_are_consecutive_and_never_used_again() -> None:
    log = LogKit()
    assert await log.streams(3) == [0, 1, 2]
    await delete_stream(log.keys, StreamId(2), now_ms=0).apply(log.store)
    await log.fold()
    assert await finish_deletion(log.keys, StreamId(2), max_keys=10).apply(log.store)
    assert await log.streams(2) == [3, 4]


async def test_new_stream_is_empty_and_says_what_it_is_for() -> None:
    log = LogKit()
    rule = create_streams(log.keys, ["queue-7"], kind=StreamKind.LANE, now_ms=123)
    (stream,) = await rule.apply(log.store)
    head = await log.head(stream)
    assert (head.log_start, head.high_watermark, head.cumulative_bytes, head.is_deleted) == (0, 0, 0, False)
    raw = await log.store.get(log.keys.info(stream))
    assert raw is not None
    assert STREAM_INFO.decode(raw.value, raw.key) == StreamInfo(StreamKind.LANE, "queue-7", 123)


async def test_every_change_of_a_head_writes_a_commit_record_that_holds_it() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    heads = [await log.head(stream)]
    await log.writer()
    await log.append(stream, 5)
    await advance_log_start(log.keys, stream, 3, now_ms=0).apply(log.store)
    heads.append(await log.head(stream))
    await delete_stream(log.keys, stream, now_ms=0).apply(log.store)
    heads.append(await log.head(stream))
    assert [change.head for change in await changes(log)] == heads
    assert [head.seq for head in heads] == [0, 2, 3]
    assert (await log.state()).next_seq == 4


async def test_rule_that_changes_nothing_writes_nothing() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream, 5)
    await advance_log_start(log.keys, stream, 3, now_ms=0).apply(log.store)
    before = await log.state()
    for offset in (3, 0):
        head = await advance_log_start(log.keys, stream, offset, now_ms=0).apply(log.store)
        assert head == await log.head(stream)
    await delete_stream(log.keys, StreamId(55), now_ms=0).apply(log.store)
    assert await log.state() == before


async def test_log_start_may_reach_the_end_but_not_pass_it() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream, 5)
    moved = await advance_log_start(log.keys, stream, 5, now_ms=0).apply(log.store)
    assert (moved.log_start, moved.high_watermark) == (5, 5)
    with pytest.raises(Invalid):
        await advance_log_start(log.keys, stream, 6, now_ms=0).apply(log.store)
    assert await log.append(stream) == 5, "offsets go on where they were"


async def test_head_that_is_returned_is_the_one_that_is_stored() -> None:
    log = LogKit()
    (stream,) = await log.streams(1)
    await log.writer()
    await log.append(stream, 5)
    moved = await advance_log_start(log.keys, stream, 3, now_ms=0).apply(log.store)
    assert moved == await log.head(stream)


async def test_deleted_stream_takes_no_append_and_has_no_log_start_to_move() -> None:
    log = LogKit()
    kept, gone = await log.streams(2)
    await log.writer()
    await log.append(gone, 5)
    for _ in range(2):
        await delete_stream(log.keys, gone, now_ms=0).apply(log.store)
    head = await log.head(gone)
    assert (head.is_deleted, head.log_start, head.high_watermark, head.index_epoch) == (True, 5, 5, 1)
    refused, accepted = await log.commit((gone, [batch(1)]), (kept, [batch(1)]))
    assert (refused.status, accepted.status) == (PartStatus.UNKNOWN_STREAM, PartStatus.ACCEPTED)
    with pytest.raises(Missing):
        await advance_log_start(log.keys, gone, 5, now_ms=0).apply(log.store)
