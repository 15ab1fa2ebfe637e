"""The timestamp search against a plain scan, over logs whose timestamps go up and down."""

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from headrace.index.lookup import TimestampSearch
from headrace.index.values import IndexEntry
from headrace.model.extents import WalExtent
from headrace.model.ids import ObjectId

EXTENT = WalExtent(ObjectId("o"), 0, 1)


def entries_of(shapes: list[tuple[int, int]]) -> list[IndexEntry]:
    entries, offset, running_ms = [], 0, -1
    for count, at_ms in shapes:
        running_ms = max(running_ms, at_ms)
        entries.append(IndexEntry(offset, offset + count, count, 0, 0, at_ms, at_ms, offset, running_ms, 0, EXTENT))
        offset += count
    return entries


shapes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), max_size=40)


@given(shapes, st.integers(0, 31), st.data())
def test_search_finds_what_a_scan_finds(shape: list[tuple[int, int]], target_ms: int, data: st.DataObject) -> None:
    entries = entries_of(shape)
    end = entries[-1].end_offset if entries else 0
    log_start = data.draw(st.integers(0, end))
    retained = [entry for entry in entries if entry.end_offset > log_start]
    search = TimestampSearch(log_start=log_start, high_watermark=end, target_ms=target_ms)
    while search.probe is not None:
        search.feed(retained[bisect_right([entry.end_offset for entry in retained], search.probe)])
    expected = next((entry for entry in retained if entry.max_timestamp_ms >= target_ms), None)
    assert search.found == expected


def test_search_is_binary_when_nothing_was_trimmed() -> None:
    entries = entries_of([(1, n) for n in range(100_000)])
    search = TimestampSearch(log_start=0, high_watermark=100_000, target_ms=77_777)
    probes = 0
    while search.probe is not None:
        search.feed(entries[search.probe])
        probes += 1
    assert search.found == entries[77_777]
    assert probes <= 18
