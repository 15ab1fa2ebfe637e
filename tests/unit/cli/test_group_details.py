"""Lag, where it is known and where it is not."""

import pytest

from headrace.cli.group_details import GroupDetails, GroupState, GroupType, PartitionLag


def _lag(committed: int | None, latest: int | None) -> PartitionLag:
    return PartitionLag(topic="t", partition=0, committed_offset=committed, latest_offset=latest, owner=None)


@pytest.mark.parametrize(
    ("committed", "latest", "lag"),
    [(3, 10, 7), (10, 10, 0), (0, 0, 0), (12, 10, 0), (None, 10, None), (3, None, None), (None, None, None)],
)
def test_lag_is_what_is_left_to_read_and_unknown_without_both_offsets(
    committed: int | None, latest: int | None, lag: int | None
) -> None:
    assert _lag(committed, latest).lag == lag


def test_the_total_counts_what_is_known_and_says_how_much_is_not() -> None:
    group = GroupDetails(
        name="g",
        type=GroupType.CLASSIC,
        state=GroupState.EMPTY,
        assignor=None,
        coordinator=None,
        coordinator_address=None,
        members=(),
        partitions=(_lag(3, 10), _lag(12, 10), _lag(None, 10), _lag(1, 2)),
    )
    assert (group.total_lag, group.unknown_lags) == (8, 1)
