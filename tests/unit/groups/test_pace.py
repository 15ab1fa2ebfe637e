"""How often members should be heard of."""

from headrace.groups.pace import (
    BUSY_INTERVAL_MS,
    BUSY_SHARE,
    LONGEST_INTERVAL_MS,
    SHORTEST_INTERVAL_MS,
    TURNS_PER_INTERVAL,
    BrokerPace,
    patient_interval_ms,
)


def test_few_members_report_often_and_many_share_what_the_broker_can_take() -> None:
    pace = BrokerPace(beats_per_second=1_000)
    assert pace.stable_interval_ms(3) == SHORTEST_INTERVAL_MS
    pace.member_count = 800
    assert pace.stable_interval_ms(3) == 800, "the members of all groups count"
    pace.member_count = 1_000_000
    assert pace.stable_interval_ms(3) == LONGEST_INTERVAL_MS


def test_a_group_that_reconciles_reports_more_often() -> None:
    pace = BrokerPace(beats_per_second=1_000)
    assert BUSY_INTERVAL_MS <= pace.busy_interval_ms < pace.stable_interval_ms(10)
    pace.member_count = 4_000
    assert pace.busy_interval_ms == 4_000 // BUSY_SHARE


def test_members_that_answers_reach_late_report_seldom_and_others_as_before() -> None:
    assert patient_interval_ms(BUSY_INTERVAL_MS, None) == BUSY_INTERVAL_MS
    assert patient_interval_ms(BUSY_INTERVAL_MS, 10) == BUSY_INTERVAL_MS
    assert patient_interval_ms(BUSY_INTERVAL_MS, 600) == 600 * TURNS_PER_INTERVAL
    assert patient_interval_ms(BUSY_INTERVAL_MS, 60_000) == LONGEST_INTERVAL_MS
