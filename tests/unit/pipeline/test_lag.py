"""How far a table is behind: pure, and asked of a real index, folded or not."""

import pytest

from headrace.index.cache import IndexCache
from headrace.index.streams import advance_log_start
from headrace.index.values import StreamHead
from headrace.model.ids import StreamId
from headrace.model.topics import Topic, TopicRules
from headrace.pipeline.lag import TableLag, WaitingStream, first_waiting, lag_of, measure_lag
from headrace.pipeline.records import TableState
from tests.log_kit import LogKit
from tests.unit.pipeline.planning import NOON_MS, TOPIC_ID, entry

APPENDS = 4


def head(high_watermark: int, *, log_start: int = 0) -> StreamHead:
    return StreamHead(high_watermark, log_start, high_watermark * 100, 0, 0, 0, 0)


@pytest.mark.parametrize(("after", "log_start", "first"), [(None, 0, 0), (None, 7, 7), (9, 7, 9), (5, 7, 7)])
def test_what_waits_begins_at_the_tables_end_or_the_log_start(after: int | None, log_start: int, first: int) -> None:
    assert first_waiting(head(20, log_start=log_start), after) == first


def test_lag_counts_records_and_bytes_of_all_streams_and_the_oldest_age() -> None:
    streams = [
        WaitingStream(head=head(30), start_offset=10, oldest=entry(10, 20, size=1000, at_ms=NOON_MS - 5000)),
        WaitingStream(head=head(50), start_offset=45, oldest=entry(40, 50, size=1000, at_ms=NOON_MS - 1000)),
        WaitingStream(head=head(60), start_offset=60, oldest=None),
    ]
    assert lag_of(streams, now_ms=NOON_MS) == TableLag(records=25, age_ms=5000, size_bytes=2000 + 1000)


def test_nothing_waits_and_a_clock_that_is_behind_shows_no_negative_age() -> None:
    assert lag_of([], now_ms=NOON_MS) == TableLag()
    ahead = WaitingStream(head=head(10), start_offset=0, oldest=entry(0, 10, size=1000, at_ms=NOON_MS + 1))
    assert lag_of([ahead], now_ms=NOON_MS).age_ms == 0


@pytest.mark.parametrize("folds", [False, True])
async def test_measured_lag_is_the_same_before_and_after_folding(folds: bool) -> None:
    kit = LogKit()
    first, second = await kit.streams(2)
    await kit.writer()
    for _ in range(APPENDS):
        kit.now_ms += 1000
        await kit.append(first, 5)
        await kit.append(second, 5)
    if folds:
        await kit.fold()
    await advance_log_start(kit.keys, second, 15, now_ms=0).apply(kit.store)
    index = IndexCache(kit.store, kit.keys, max_folded_entries=100)
    await index.refresh()
    topic = Topic(id=TOPIC_ID, name="t", streams=(first, second, StreamId(99)), rules=TopicRules(max_message_bytes=1))
    at_start = await measure_lag(index, topic, None, now_ms=kit.now_ms)
    assert at_start == TableLag(records=20 + 5, age_ms=3000, size_bytes=500)
    later = await measure_lag(index, topic, TableState("t", ends={0: 10, 1: 10}), now_ms=kit.now_ms)
    assert later == TableLag(records=10 + 5, age_ms=1000, size_bytes=300)
    assert await measure_lag(index, topic, TableState("t", ends={0: 20, 1: 20}), now_ms=kit.now_ms) == TableLag()
