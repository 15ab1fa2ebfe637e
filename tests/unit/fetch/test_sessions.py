"""Fetch sessions as KIP-227 has them: epochs, what is remembered, what is told, who makes room."""

import pytest

from headrace.fetch.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MAX_EPOCH,
    NO_SESSION,
    FetchSessions,
    SessionFetch,
    SessionLimits,
    SessionPartition,
    SessionProblem,
    TopicKey,
)
from headrace.runtime.rng import seeded_rng

MINUTE_MS = 60_000
LIMITS = SessionLimits(sessions=3, partitions=100, min_age_ms=2 * MINUTE_MS)


def sessions_of(limits: SessionLimits = LIMITS) -> FetchSessions:
    return FetchSessions(rng=seeded_rng(5), limits=limits)


def wants(*partitions: int, topic: TopicKey = "t", offset: int = 0, max_bytes: int = 100) -> list[SessionPartition]:
    return [SessionPartition(topic, partition, offset, max_bytes) for partition in partitions]


def begin(
    sessions: FetchSessions,
    session_id: int,
    epoch: int,
    wanted: list[SessionPartition],
    *,
    forgotten: list[tuple[TopicKey, int]] | None = None,
    has_topic_ids: bool = False,
    now_ms: int = 0,
) -> SessionFetch | SessionProblem:
    return sessions.begin(
        session_id=session_id,
        epoch=epoch,
        wanted=wanted,
        forgotten=forgotten or [],
        has_topic_ids=has_topic_ids,
        now_ms=now_ms,
    )


def goes_on(
    sessions: FetchSessions, session_id: int, epoch: int, *wanted: SessionPartition, now_ms: int = 0
) -> SessionFetch:
    fetch = begin(sessions, session_id, epoch, list(wanted), now_ms=now_ms)
    assert isinstance(fetch, SessionFetch)
    return fetch


def opened(sessions: FetchSessions, *partitions: int, now_ms: int = 0) -> int:
    """Ask for a session and return its id."""
    fetch = goes_on(sessions, NO_SESSION, INITIAL_EPOCH, *wants(*partitions), now_ms=now_ms)
    session_id = sessions.finish(fetch, answered=[], now_ms=now_ms)
    assert isinstance(session_id, int)
    return session_id


def numbers(fetch: SessionFetch) -> list[int]:
    return [one.partition for one in fetch.partitions]


def test_full_fetch_gets_a_session_that_remembers_its_partitions() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, 0, 1)
    assert session_id > 0 and sessions.session_count == 1 and sessions.partition_count == 2
    fetch = goes_on(sessions, session_id, 1)
    assert fetch.is_incremental and numbers(fetch) == [0, 1]
    assert sessions.finish(fetch, answered=[], now_ms=0) == session_id
    assert numbers(goes_on(sessions, session_id, 2)) == [0, 1]


def test_fetch_without_a_session_leaves_nothing_behind() -> None:
    sessions = sessions_of()
    fetch = goes_on(sessions, NO_SESSION, FINAL_EPOCH, *wants(0))
    assert not fetch.is_incremental and numbers(fetch) == [0]
    assert sessions.finish(fetch, answered=[], now_ms=0) == NO_SESSION and sessions.session_count == 0


def test_full_fetch_of_nothing_gets_no_session() -> None:
    sessions = sessions_of()
    fetch = goes_on(sessions, NO_SESSION, INITIAL_EPOCH)
    assert sessions.finish(fetch, answered=[], now_ms=0) == NO_SESSION


def test_partitions_are_added_changed_and_forgotten() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, 0, 1, 2)
    fetch = begin(
        sessions, session_id, 1, [*wants(1, offset=7, max_bytes=9), *wants(5)], forgotten=[("t", 0), ("x", 9)]
    )
    assert isinstance(fetch, SessionFetch)
    assert [(one.partition, one.offset, one.max_bytes) for one in fetch.partitions] == [
        (1, 7, 9),
        (2, 0, 100),
        (5, 0, 100),
    ]
    assert sessions.partition_count == 3


def test_session_ends_with_its_last_partition() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, 0)
    fetch = begin(sessions, session_id, 1, [], forgotten=[("t", 0)])
    assert isinstance(fetch, SessionFetch) and not fetch.is_incremental and not fetch.partitions
    assert sessions.finish(fetch, answered=[], now_ms=0) == NO_SESSION
    assert sessions.session_count == sessions.partition_count == 0


def test_unknown_session_is_refused() -> None:
    assert begin(sessions_of(), 12345, 1, []) is SessionProblem.NOT_FOUND


@pytest.mark.parametrize("epoch", [2, MAX_EPOCH, -2])
def test_wrong_epoch_is_refused_and_the_right_one_still_works(epoch: int) -> None:
    sessions = sessions_of()
    session_id = opened(sessions, 0)
    assert begin(sessions, session_id, epoch, wants(8)) is SessionProblem.WRONG_EPOCH
    assert numbers(goes_on(sessions, session_id, 1)) == [0]
    assert begin(sessions, session_id, 1, []) is SessionProblem.WRONG_EPOCH, "a doubled request"


def test_epochs_go_round() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, 0)
    sessions._sessions[session_id].epoch = MAX_EPOCH
    goes_on(sessions, session_id, MAX_EPOCH)
    goes_on(sessions, session_id, 1)


def test_session_of_names_does_not_go_on_with_ids() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, 0)
    assert begin(sessions, session_id, 1, [], has_topic_ids=True) is SessionProblem.TOPIC_KEYS_MIXED


@pytest.mark.parametrize("epoch", [FINAL_EPOCH, INITIAL_EPOCH])
def test_full_fetch_ends_the_session_that_it_names(epoch: int) -> None:
    sessions = sessions_of()
    session_id = opened(sessions, 0)
    goes_on(sessions, session_id, epoch, *wants(1))
    assert sessions.session_count == 0


def test_answer_is_refused_when_the_session_went_on_or_away_meanwhile() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, 0)
    first = goes_on(sessions, session_id, 1)
    second = goes_on(sessions, session_id, 2)
    assert sessions.finish(first, answered=[], now_ms=0) is SessionProblem.WRONG_EPOCH
    goes_on(sessions, session_id, FINAL_EPOCH)
    assert sessions.finish(second, answered=[], now_ms=0) is SessionProblem.NOT_FOUND


def test_partitions_that_had_records_go_to_the_end() -> None:
    sessions = sessions_of()
    session_id = opened(sessions, 0, 1, 2, 3)
    fetch = goes_on(sessions, session_id, 1)
    sessions.finish(fetch, answered=[fetch.partitions[0], fetch.partitions[2]], now_ms=0)
    assert numbers(goes_on(sessions, session_id, 2)) == [1, 3, 0, 2]


# What is told


def told(
    one: SessionPartition,
    *,
    high_watermark: int = 5,
    last_stable_offset: int = 5,
    log_start: int = 0,
    has_records: bool = False,
    has_error: bool = False,
) -> bool:
    return one.note(
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start=log_start,
        has_records=has_records,
        has_error=has_error,
    )


def test_only_news_is_told() -> None:
    (one,) = wants(0)
    assert told(one) and not told(one)
    assert told(one, has_records=True) and told(one, has_records=True) and not told(one)
    assert told(one, high_watermark=6) and not told(one, high_watermark=6)
    assert told(one, high_watermark=6, log_start=1) and not told(one, high_watermark=6, log_start=1)
    assert told(one, high_watermark=6, log_start=1, last_stable_offset=3)


def test_error_is_told_every_time_and_so_is_its_end() -> None:
    (one,) = wants(0)
    told(one)
    assert told(one, has_error=True) and told(one, has_error=True)
    assert told(one) and not told(one)


# Who makes room


def test_no_session_is_given_while_all_are_young_and_in_use() -> None:
    sessions = sessions_of()
    kept = [opened(sessions, 0) for _ in range(3)]
    assert opened(sessions, 0, 1, 2, now_ms=2 * MINUTE_MS) == NO_SESSION
    assert all(isinstance(begin(sessions, one, 1, []), SessionFetch) for one in kept)


def test_session_that_nobody_uses_makes_room() -> None:
    sessions = sessions_of()
    first, second, third = (opened(sessions, 0, 1) for _ in range(3))
    for session_id in (first, third):
        goes_on(sessions, session_id, 1, now_ms=MINUTE_MS)
    assert opened(sessions, 0, now_ms=2 * MINUTE_MS + 1) != NO_SESSION
    assert begin(sessions, second, 1, []) is SessionProblem.NOT_FOUND
    assert isinstance(begin(sessions, first, 2, []), SessionFetch)


def test_small_session_that_had_its_time_makes_room_for_a_larger_one() -> None:
    sessions = sessions_of()
    large, small, middle = opened(sessions, 0, 1, 2), opened(sessions, 0), opened(sessions, 0, 1)
    later_ms = 3 * MINUTE_MS
    for session_id in (large, small, middle):
        goes_on(sessions, session_id, 1, now_ms=later_ms)
    assert opened(sessions, 0, now_ms=later_ms) == NO_SESSION, "an equal one does not push another out"
    assert opened(sessions, 0, 1, now_ms=later_ms) != NO_SESSION
    assert begin(sessions, small, 2, []) is SessionProblem.NOT_FOUND


def test_partitions_are_bounded_over_all_sessions() -> None:
    sessions = sessions_of(SessionLimits(sessions=10, partitions=5, min_age_ms=MINUTE_MS))
    session_id = opened(sessions, 0, 1, 2)
    assert opened(sessions, 0, 1, 2) == NO_SESSION
    assert begin(sessions, session_id, 1, wants(3, 4, 5)) is SessionProblem.NOT_FOUND
    assert sessions.partition_count == 0
    assert opened(sessions, 0, 1, 2) != NO_SESSION
