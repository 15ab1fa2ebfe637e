"""When a group has settled, and when a partition has two owners."""

from benchmarks.groups_beside_kafka.ledger import Ledger


def _ledger(*shares: set[int], partitions: int = 4) -> Ledger:
    ledger = Ledger(partitions)
    for member in range(len(shares)):
        ledger.expect(member)
    for member, share in enumerate(shares):
        ledger.note(member, frozenset(share))
    return ledger


def test_a_group_has_settled_when_all_is_owned_evenly() -> None:
    assert _ledger({0, 1}, {2, 3}).has_settled()
    assert _ledger({0, 1}, {2}, {3}).has_settled()
    assert not _ledger({0, 1}, {2}).has_settled()
    assert not _ledger({0, 1, 2}, {3}).has_settled()
    assert not Ledger(4).has_settled()


def test_one_who_is_expected_unsettles_the_group_until_it_has_its_share() -> None:
    ledger = _ledger({0, 1}, {2, 3})
    ledger.expect(2)
    assert not ledger.has_settled()
    ledger.note(0, frozenset({0}))
    assert ledger.note(2, frozenset({1}))
    assert ledger.has_settled()
    assert not ledger.note(2, frozenset({1}))


def test_what_one_who_left_had_is_free_and_what_it_still_hears_does_not_count() -> None:
    ledger = _ledger({0, 1}, {2, 3})
    ledger.forget(1)
    assert not ledger.has_settled()
    assert not ledger.note(1, frozenset({2}))
    ledger.note(0, frozenset({0, 1, 2, 3}))
    assert ledger.has_settled()
    assert ledger.owned_twice == 0


def test_a_partition_that_two_hold_at_one_moment_is_counted_and_does_not_settle() -> None:
    ledger = _ledger({0, 1}, {1, 2, 3})
    assert ledger.owned_twice == 1
    assert not ledger.has_settled()
    ledger.note(0, frozenset({0}))
    assert ledger.owned_twice == 1
    assert "members with [1, 3]" in ledger.describe()


def test_giving_up_what_somebody_else_has_by_now_leaves_it_there() -> None:
    ledger = _ledger({0, 1}, {1, 2, 3})
    ledger.note(0, frozenset())
    assert ledger.describe() == "3 of 4 partitions owned, by members with [0, 3]"
