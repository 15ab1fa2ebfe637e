"""The tail cache: consecutive runs, a budget over all streams, the oldest out first."""

from headrace.fetch.runs import Run
from headrace.fetch.tail import RUN_OVERHEAD_BYTES, TailCache
from headrace.model.ids import StreamId

A, B = StreamId(1), StreamId(2)
SIZE = 100
COST = SIZE + RUN_OVERHEAD_BYTES


def cache_of(runs: int) -> TailCache:
    """Return a cache with room for that many runs."""
    return TailCache(max_bytes=runs * COST)


def fill(cache: TailCache, stream: StreamId, *starts: int) -> None:
    for start in starts:
        cache.committed(stream, start, start + 10, memoryview(bytearray(SIZE)))


def starts(runs: list[Run]) -> list[int]:
    return [run.start_offset for run in runs]


def test_runs_are_found_from_the_one_that_covers_the_offset() -> None:
    cache = cache_of(9)
    fill(cache, A, 0, 10, 20)
    assert starts(cache.find(A, 0, 1000)) == [0, 10, 20]
    assert starts(cache.find(A, 9, 1000)) == [0, 10, 20]
    assert starts(cache.find(A, 15, 1000)) == [10, 20]
    assert cache.find(A, 30, 1000) == []
    assert cache.find(B, 0, 1000) == []


def test_finding_stops_once_there_are_enough_bytes() -> None:
    cache = cache_of(9)
    fill(cache, A, 0, 10, 20)
    assert starts(cache.find(A, 0, 0)) == [0]
    assert starts(cache.find(A, 0, SIZE)) == [0]
    assert starts(cache.find(A, 0, SIZE + 1)) == [0, 10]


def test_gap_ends_a_find_and_covers_nothing() -> None:
    cache = cache_of(9)
    fill(cache, A, 0, 30)
    assert starts(cache.find(A, 5, 1000)) == [0]
    assert cache.find(A, 10, 1000) == []
    assert starts(cache.find(A, 30, 1000)) == [30]
    assert not cache.covers(A, 29) and cache.covers(A, 39)


def test_oldest_run_goes_first_whichever_stream_it_belongs_to() -> None:
    cache = cache_of(3)
    fill(cache, A, 0)
    fill(cache, B, 0)
    fill(cache, A, 10)
    fill(cache, B, 10)
    assert (cache.covers(A, 0), cache.covers(B, 0), cache.covers(A, 10), cache.covers(B, 10)) == (
        False,
        True,
        True,
        True,
    )
    assert cache.held_bytes == 3 * COST


def test_bytes_are_freed_on_demand() -> None:
    cache = cache_of(9)
    fill(cache, A, 0, 10, 20)
    assert cache.evict(1) == COST
    assert starts(cache.find(A, 10, 1000)) == [10, 20]
    assert cache.evict(COST + 1) == 2 * COST
    assert cache.evict(1) == 0 == cache.held_bytes
    fill(cache, A, 30)
    assert starts(cache.find(A, 35, 1000)) == [30]


def test_turnover_keeps_only_what_fits() -> None:
    cache = cache_of(5)
    fill(cache, A, *range(0, 10_000, 10))
    assert starts(cache.find(A, 9950, 10_000)) == [9950, 9960, 9970, 9980, 9990]
    assert not cache.covers(A, 9949)
    assert len(cache._streams[A].runs) < 200, "evicted runs leave their places in the end"


def test_run_larger_than_the_budget_is_not_taken() -> None:
    cache = TailCache(max_bytes=COST)
    fill(cache, A, 0)
    cache.committed(A, 10, 20, memoryview(bytearray(SIZE + 1)))
    assert cache.covers(A, 0) and not cache.covers(A, 10)


def test_commit_that_is_told_twice_counts_once() -> None:
    cache = cache_of(9)
    fill(cache, A, 0, 10, 10, 0)
    assert cache.held_bytes == 2 * COST
    assert starts(cache.find(A, 0, 1000)) == [0, 10]


def test_views_that_were_handed_out_are_read_only_and_outlive_eviction() -> None:
    cache = cache_of(1)
    data = bytearray(b"x" * SIZE)
    cache.committed(A, 0, 10, memoryview(data))
    (run,) = cache.find(A, 0, 1000)
    fill(cache, A, 10)
    assert run.data.readonly and bytes(run.data) == b"x" * SIZE


def test_what_was_found_is_counted() -> None:
    cache = cache_of(9)
    fill(cache, A, 0)
    cache.find(A, 0, 1000)
    cache.find(A, 10, 1000)
    assert (cache.hits, cache.misses, cache.hit_bytes) == (1, 1, SIZE)


def test_stream_that_is_dropped_leaves_the_others_alone() -> None:
    cache = cache_of(9)
    fill(cache, A, 0, 10)
    fill(cache, B, 0)
    fill(cache, A, 20)
    cache.drop(A)
    cache.drop(A)
    assert not cache.covers(A, 0) and cache.covers(B, 0)
    assert cache.held_bytes == COST
    fill(cache, A, 30)
    assert cache.evict(2 * COST) == 2 * COST
    assert cache.held_bytes == 0


def test_dropping_everything_leaves_room_for_other_bytes_at_the_same_offsets() -> None:
    cache = cache_of(9)
    fill(cache, A, 0, 10, 20)
    fill(cache, B, 0)
    cache.drop_all()
    assert cache.held_bytes == 0 and cache.find(A, 0, 1000) == cache.find(B, 0, 1000) == []
    fill(cache, A, 0)
    assert starts(cache.find(A, 0, 1000)) == [0] and cache.held_bytes == COST
