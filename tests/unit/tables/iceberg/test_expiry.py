"""Which snapshots go, and what they leave behind: rules without a table."""

from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from headrace.tables.iceberg.expiry import (
    LOG_SNAPSHOTS,
    KnownRef,
    KnownSnapshot,
    expiring_ids,
    freed_data,
    may_free_data,
)
from headrace.tables.port import ExpiryRule

NOW_MS = 1_000_000


def line(count: int, *, first: int = 1, parent: int | None = None, step_ms: int = 1000) -> list[KnownSnapshot]:
    """Return snapshots one behind the other, the last of them made now."""
    return [
        KnownSnapshot(
            snapshot_id=first + n,
            parent_id=parent if n == 0 else first + n - 1,
            timestamp_ms=NOW_MS - (count - 1 - n) * step_ms,
        )
        for n in range(count)
    ]


def branch(snapshot_id: int) -> KnownRef:
    return KnownRef(snapshot_id=snapshot_id, is_branch=True)


def test_nothing_goes_while_the_number_is_allowed() -> None:
    refs = {"main": branch(100), "headrace_log": branch(100)}
    assert expiring_ids(line(100), refs, ExpiryRule(), now_ms=NOW_MS) == set()


def test_over_the_limit_some_go_at_once() -> None:
    refs = {"main": branch(101), "headrace_log": branch(101)}
    assert expiring_ids(line(101), refs, ExpiryRule(), now_ms=NOW_MS) == set(range(1, 12))


def test_age_counts_to_the_millisecond_and_the_head_stays() -> None:
    refs = {"main": branch(5), "headrace_log": branch(5)}
    rule = ExpiryRule(max_snapshots=100, max_age_ms=2000)
    assert expiring_ids(line(5), refs, rule, now_ms=NOW_MS) == {1, 2}
    assert expiring_ids(line(5), refs, rule, now_ms=NOW_MS + 10**9) == {1, 2, 3, 4}


def test_a_tag_keeps_its_snapshot_and_a_persons_branch_its_past() -> None:
    refs = {"main": branch(10), "headrace_log": branch(10), "mine": branch(4)}
    refs["tag"] = KnownRef(snapshot_id=7, is_branch=False)
    rule = ExpiryRule(max_snapshots=1, max_age_ms=0)
    assert expiring_ids(line(10), refs, rule, now_ms=NOW_MS) == {5, 6, 8, 9}


def test_the_branch_keeps_a_short_past_of_its_own() -> None:
    snapshots = line(20) + line(20, first=101)
    refs = {"main": branch(20), "headrace_log": branch(120)}
    gone = expiring_ids(snapshots, refs, ExpiryRule(), now_ms=NOW_MS)
    left = {snapshot.snapshot_id for snapshot in snapshots} - gone
    assert set(range(1, 21)) <= left
    assert len(left) == 20 + LOG_SNAPSHOTS - 1


def test_what_somebody_has_staged_has_its_time() -> None:
    staged = KnownSnapshot(snapshot_id=50, parent_id=3, timestamp_ms=NOW_MS - 500)
    refs = {"main": branch(5), "headrace_log": branch(5)}
    rule = ExpiryRule(max_snapshots=100, max_age_ms=1000)
    assert 50 not in expiring_ids([*line(5), staged], refs, rule, now_ms=NOW_MS)
    assert 50 in expiring_ids([*line(5), staged], refs, rule, now_ms=NOW_MS + 501)


@given(
    parents=st.lists(st.integers(0, 12), max_size=12),
    heads=st.dictionaries(st.sampled_from(["main", "headrace_log", "mine", "tag"]), st.integers(1, 12), max_size=4),
    max_snapshots=st.integers(1, 5),
    max_age_ms=st.integers(0, 12),
)
def test_no_head_goes_whatever_the_history(
    parents: list[int], heads: dict[str, int], max_snapshots: int, max_age_ms: int
) -> None:
    snapshots = [
        KnownSnapshot(snapshot_id=n + 1, parent_id=parent or None, timestamp_ms=n) for n, parent in enumerate(parents)
    ]
    refs = {
        name: KnownRef(snapshot_id=head, is_branch=name != "tag")
        for name, head in heads.items()
        if head <= len(snapshots)
    }
    rule = ExpiryRule(max_snapshots=max_snapshots, max_age_ms=max_age_ms)
    gone = expiring_ids(snapshots, refs, rule, now_ms=20)
    assert gone <= {snapshot.snapshot_id for snapshot in snapshots}
    assert not gone & {ref.snapshot_id for ref in refs.values()}


def test_data_files_can_only_be_free_where_something_was_removed_or_forgotten() -> None:
    first, second, third = _snapshot(1, None), _snapshot(2, 1), _snapshot(3, 2)
    assert not may_free_data([first], [second, third])
    assert may_free_data([first], [second, _snapshot(3, 2, Operation.REPLACE)])
    assert may_free_data([first, _snapshot(9, 1)], [second, third]), "what came after it is not known any more"


def test_a_data_file_is_free_if_no_snapshot_that_stays_names_it() -> None:
    names = {1: ["a", "b"], 2: ["b", "c"], 3: ["c"]}
    snapshots = [_snapshot(number, None) for number in names]
    assert freed_data(snapshots[:1], snapshots[1:], lambda one: names[one.snapshot_id]) == ["a"]
    assert freed_data(snapshots[:2], snapshots[2:], lambda one: names[one.snapshot_id]) == ["a", "b"]


def _snapshot(number: int, parent: int | None, operation: Operation = Operation.APPEND) -> Snapshot:
    return Snapshot.model_validate(
        {
            "snapshot-id": number,
            "parent-snapshot-id": parent,
            "sequence-number": number,
            "timestamp-ms": number,
            "manifest-list": f"list-{number}",
            "summary": Summary(operation=operation),
        }
    )
