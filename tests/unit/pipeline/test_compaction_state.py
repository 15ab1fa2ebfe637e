"""Marks say since when what is clean: tombstones go by them, never too early, and there are few of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.compaction_state import (
    MAX_MARKS,
    CleanMark,
    CompactionState,
    StreamCompaction,
    StreamRound,
    advanced,
    after_round,
    expired_to,
    tombstones_below,
)


def test_stream_begins_dirty_and_keeps_its_tombstones() -> None:
    assert StreamCompaction().cleaned_to == 0
    assert expired_to(StreamCompaction(), now_ms=10**15, delete_retention_ms=0) == 0


def test_mark_is_old_enough_when_the_retention_has_passed() -> None:
    state = advanced(StreamCompaction(), StreamRound(100, 3), at_ms=1_000)
    assert state.cleaned_to == 100
    assert expired_to(state, now_ms=1_999, delete_retention_ms=1_000) == 0
    assert expired_to(state, now_ms=2_000, delete_retention_ms=1_000) == 100
    assert tombstones_below(state, 99) == 0
    assert tombstones_below(state, 100) == 3


def test_state_never_goes_back() -> None:
    state = advanced(StreamCompaction(), StreamRound(100, 3), at_ms=1_000)
    assert advanced(state, StreamRound(100, 0), at_ms=5_000) == state
    assert advanced(state, StreamRound(40, 7), at_ms=5_000) == state


def test_clock_behind_keeps_times_in_order() -> None:
    state = advanced(StreamCompaction(), StreamRound(100, 3), at_ms=1_000)
    state = advanced(state, StreamRound(200, 1), at_ms=400)
    assert [mark.at_ms for mark in state.marks] == [1_000, 1_000]


def test_expired_tombstones_are_forgotten_once_they_are_gone() -> None:
    state = StreamCompaction(200, (CleanMark(100, 1_000, 5), CleanMark(200, 2_000, 4)))
    state = advanced(state, StreamRound(300, 2, expired_to=100), at_ms=3_000)
    assert state.marks == (CleanMark(200, 2_000, 4), CleanMark(300, 3_000, 2))
    state = advanced(state, StreamRound(300, 0, expired_to=200, expired_left=1), at_ms=4_000)
    assert state.marks == (CleanMark(200, 2_000, 1), CleanMark(300, 3_000, 2))


def test_topic_counts_its_rounds_and_moves_only_the_streams_of_the_round() -> None:
    other = StreamCompaction(7, (CleanMark(7, 5, 1),))
    state = CompactionState("orders", {1: other}, 3, 10, 99)
    state = after_round(state, {0: StreamRound(50, 2)}, at_ms=70, dropped_rows=4)
    assert state == CompactionState("orders", {0: StreamCompaction(50, (CleanMark(50, 70, 2),)), 1: other}, 4, 14, 99)


@given(
    rounds=st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 1_000), st.integers(0, 3)), min_size=1, max_size=3 * MAX_MARKS
    ),
    retention_ms=st.integers(0, 5_000),
    now_ms=st.integers(0, 50_000),
)
def test_no_tombstone_expires_before_its_own_round_is_old_enough(
    rounds: list[tuple[int, int, int]], retention_ms: int, now_ms: int
) -> None:
    state, at_ms = StreamCompaction(), 0
    cleaned_at: list[tuple[int, int]] = []
    for step, wait_ms, tombstones in rounds:
        at_ms += wait_ms
        state = advanced(state, StreamRound(state.cleaned_to + step, tombstones), at_ms=at_ms)
        cleaned_at.append((state.cleaned_to, at_ms))
    assert len(state.marks) <= MAX_MARKS
    assert list(state.marks) == sorted(state.marks, key=lambda mark: (mark.cleaned_to, mark.at_ms))
    assert sum(mark.tombstones for mark in state.marks) == sum(tombstones for _, _, tombstones in rounds)
    honest = max((end for end, at in cleaned_at if now_ms - at >= retention_ms), default=0)
    assert expired_to(state, now_ms=now_ms, delete_retention_ms=retention_ms) <= honest


@pytest.mark.parametrize("period_ms", [1, 7, 50, 90])
def test_tombstones_go_in_time_however_often_rounds_leave_new_ones(period_ms: int) -> None:
    """Rounds at even distances, far more of them within the retention than there are marks."""
    retention_ms = 1_000
    state = StreamCompaction()
    kept_since: dict[int, int] = {}
    for at_ms in range(0, 5 * retention_ms, period_ms):
        gone_to = expired_to(state, now_ms=at_ms, delete_retention_ms=retention_ms)
        kept_since = {offset: since_ms for offset, since_ms in kept_since.items() if offset >= gone_to}
        kept_since[state.cleaned_to] = at_ms
        assert at_ms - min(kept_since.values()) <= retention_ms * 9 // 8 + period_ms
        state = advanced(state, StreamRound(state.cleaned_to + 1, 1, expired_to=gone_to), at_ms=at_ms)
        assert len(state.marks) <= MAX_MARKS
