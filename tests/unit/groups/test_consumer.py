"""Joining, epochs, hand-over, leaving and what is refused. More in the other `test_consumer_*` files."""

import pytest

from headrace.groups.protocol import (
    LEAVING_EPOCH,
    NO_EPOCH,
    Client,
    GroupConfig,
    GroupLimits,
    Reply,
)
from headrace.model.error_codes import ErrorCode
from tests.unit.groups.consumer_desk import (
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    ConsumerDesk,
    heartbeat,
    image_of,
    parts,
    settle,
    stable_pair,
    topic_id,
)
from tests.unit.groups.desk import LIMITS

ALL_FOUR = parts(orders=[0, 1, 2, 3])


# Joining


def test_first_member_gets_everything_at_once() -> None:
    desk = ConsumerDesk()
    assert desk.machine.state == "Empty"
    reply = desk.join_group("a")
    assert (reply.member_id, reply.member_epoch, reply.assignment) == ("a", 1, ALL_FOUR)
    assert desk.machine.state == "Stable"
    assert desk.machine.head.empty_since_ms is None


def test_member_without_an_id_is_given_one() -> None:
    desk = ConsumerDesk()
    ids = {desk.join_group("").member_id for _ in range(3)}
    assert len(ids) == 3
    assert all(len(member_id) == 22 for member_id in ids)


def test_second_member_gets_partitions_only_after_the_first_has_let_go() -> None:
    desk = ConsumerDesk()
    desk.join_group("a")
    joined = desk.join_group("b")
    # The newcomer is in the new epoch and waits.
    assert (joined.member_epoch, joined.assignment) == (2, {})
    assert desk.machine.state == "Reconciling"
    told = desk.heartbeat(heartbeat("a", 1))
    # The first one stays in its epoch and is told what to keep.
    assert told.member_epoch == 1
    assert told.assignment is not None
    kept = told.assignment[topic_id("orders")]
    assert len(kept) == 2
    assert desk.heartbeat(heartbeat("b", 2)).assignment is None
    assert desk.heartbeat(heartbeat("a", 1, owned=ALL_FOUR)).member_epoch == 1
    assert desk.heartbeat(heartbeat("b", 2)).assignment is None
    done = desk.heartbeat(heartbeat("a", 1, owned=parts(orders=sorted(kept))))
    assert (done.member_epoch, done.assignment) == (2, None)
    given = desk.heartbeat(heartbeat("b", 2))
    assert given.member_epoch == 2
    assert given.assignment == parts(orders=sorted({0, 1, 2, 3} - kept))
    assert desk.machine.state == "Stable"


def test_assignment_is_told_until_it_is_confirmed_or_when_everything_is_said_again() -> None:
    desk = ConsumerDesk()
    desk.join_group("a")
    assert desk.heartbeat(heartbeat("a", 1)).assignment == ALL_FOUR
    assert desk.heartbeat(heartbeat("a", 1, owned=parts(orders=[0]))).assignment == ALL_FOUR
    assert desk.heartbeat(heartbeat("a", 1, owned=ALL_FOUR)).assignment is None
    complete = heartbeat("a", 1, topics=("orders",), rebalance_ms=REBALANCE_MS, owned=ALL_FOUR)
    saves = len(desk.saves)
    assert desk.heartbeat(complete) == desk.heartbeat(complete)
    assert desk.heartbeat(complete).assignment == ALL_FOUR
    assert len(desk.saves) == saves


def test_known_member_that_joins_again_goes_on_where_it_was() -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    again = desk.join_group("a")
    assert (again.member_epoch, again.assignment) == (a.epoch, a.owned)
    assert desk.machine.head.epoch == b.epoch


def test_member_that_joins_again_while_it_has_to_revoke_has_let_go_of_all() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    desk.join_group("b")
    a.beat()
    again = desk.join_group("a")
    assert again.member_epoch == 2
    assert again.assignment == a.owned
    assert desk.heartbeat(heartbeat("b", 2)).assignment is not None


def test_full_group_lets_nobody_in_but_its_members() -> None:
    limits = GroupLimits(**{name: getattr(LIMITS, name) for name in LIMITS.__slots__} | {"max_members": 1})
    desk = ConsumerDesk(limits)
    desk.join_group("a")
    assert desk.join_group("b").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.join_group("a").error is ErrorCode.NONE


def test_too_large_subscriptions_are_refused() -> None:
    desk = ConsumerDesk()
    many = tuple(f"t{number}" for number in range(LIMITS.max_subscribed_topics + 1))
    assert desk.join_group("a", many).error is ErrorCode.INVALID_REQUEST
    assert desk.join_group("a", ("t" * (LIMITS.max_metadata_bytes + 1),)).error is ErrorCode.INVALID_REQUEST
    assert desk.machine.member_count == 0
    assert not desk.saves


# Epochs


def test_unknown_members_have_to_join() -> None:
    desk = ConsumerDesk()
    assert desk.heartbeat(heartbeat("a", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID
    desk.join_group("a")
    reply = desk.heartbeat(heartbeat("b", 1))
    assert reply.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert reply.error_message is not None
    assert "b" in reply.error_message


def test_epochs_that_are_not_the_members_are_fenced() -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    assert desk.heartbeat(heartbeat("b", b.epoch + 1)).error is ErrorCode.FENCED_MEMBER_EPOCH
    c = Consumer(desk, "c")
    settle(desk, a, b, c)
    assert desk.heartbeat(heartbeat("b", 1, owned={})).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_lost_answer_is_given_again_to_who_owns_no_more_than_it_has() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    b = Consumer(desk, "b")
    b.beat()
    a.beat()
    lost = desk.heartbeat(heartbeat("a", 1, owned=a.owned))
    assert lost.member_epoch == 2
    # librdkafka does not say again what it owns. It owns what it has reported.
    silent = desk.heartbeat(heartbeat("a", 1))
    assert (silent.error, silent.member_epoch) == (ErrorCode.NONE, 2)
    assert desk.heartbeat(heartbeat("a", 1, owned=ALL_FOUR)).error is ErrorCode.FENCED_MEMBER_EPOCH
    again = desk.heartbeat(heartbeat("a", 1, topics=("orders",), rebalance_ms=REBALANCE_MS, owned=a.owned))
    assert (again.error, again.member_epoch, again.assignment) == (ErrorCode.NONE, 2, a.owned)


def test_member_in_its_last_epoch_that_never_said_what_it_owns_is_fenced() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    Consumer(desk, "b").beat()
    a.beat()
    desk.heartbeat(heartbeat("a", 1, owned=a.owned))
    desk.restart()
    assert desk.heartbeat(heartbeat("a", 1)).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_member_that_claims_what_another_one_has_is_fenced() -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    assert desk.heartbeat(heartbeat("a", a.epoch, owned=b.owned)).error is ErrorCode.FENCED_MEMBER_EPOCH
    gone = {topic_id("gone"): frozenset({0})}
    assert desk.heartbeat(heartbeat("a", a.epoch, owned={**a.owned, **gone})).error is ErrorCode.NONE


# Leaving


def test_partitions_of_a_member_that_leaves_go_to_the_others() -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    reply = b.leave()
    assert (reply.member_id, reply.member_epoch) == ("b", LEAVING_EPOCH)
    told = a.beat()
    assert (told.assignment, told.member_epoch) == (ALL_FOUR, desk.machine.head.epoch)
    assert desk.heartbeat(heartbeat("b", LEAVING_EPOCH)).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_group_without_members_is_empty_since_the_last_one_left() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    desk.pass_ms(10)
    a.leave()
    assert desk.machine.state == "Empty"
    assert desk.machine.head.empty_since_ms == desk.now.wall_ms
    assert (desk.store.members, desk.store.assignments) == ({}, {})
    assert desk.machine.next_deadline_ms is None
    epoch = desk.machine.head.epoch
    assert desk.join_group("a").member_epoch > epoch


# Time


def test_silent_member_is_put_out_when_its_session_ends() -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    desk.pass_ms(SESSION_MS - 1)
    a.beat()
    desk.pass_ms(1)
    assert set(desk.described()) == {"a"}
    assert [one.what for one in desk.noted][-2:] == ["expired", "rebalance"]
    a.beat()
    assert a.owned == ALL_FOUR
    assert desk.heartbeat(heartbeat("b", b.epoch)).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_does_not_let_go_in_time_is_put_out() -> None:
    desk = ConsumerDesk(session_ms=10 * REBALANCE_MS)
    a = Consumer(desk, "a")
    a.beat()
    b = Consumer(desk, "b")
    b.beat()
    a.beat()
    desk.pass_ms(REBALANCE_MS - 1)
    assert desk.heartbeat(heartbeat("a", 1)).error is ErrorCode.NONE
    desk.pass_ms(1)
    assert set(desk.described()) == {"b"}
    b.beat()
    assert b.owned == ALL_FOUR


def test_deadline_of_a_revocation_ends_with_it() -> None:
    desk = ConsumerDesk(session_ms=10 * REBALANCE_MS)
    a = Consumer(desk, "a")
    a.beat()
    b = Consumer(desk, "b")
    b.beat()
    a.beat()
    desk.pass_ms(REBALANCE_MS - 1)
    settle(desk, a, b)
    desk.pass_ms(REBALANCE_MS)
    assert set(desk.described()) == {"a", "b"}


def test_session_timeout_of_a_new_configuration_counts_from_the_next_heartbeat() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    desk.configure(GroupConfig(session_timeout_ms=6_000, heartbeat_interval_ms=3_000))
    desk.pass_ms(7_000)
    assert a.beat().heartbeat_interval_ms == 3_000
    desk.pass_ms(5_999)
    assert desk.machine.member_count == 1
    desk.pass_ms(1)
    assert desk.machine.member_count == 0


def test_interval_is_short_while_a_group_reconciles() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    assert a.beat().heartbeat_interval_ms == 1_001
    b = Consumer(desk, "b")
    assert b.beat().heartbeat_interval_ms == 200
    settle(desk, a, b)
    assert (a.beat().heartbeat_interval_ms, b.beat().heartbeat_interval_ms) == (1_002, 1_002)


def test_heartbeat_at_rest_saves_nothing_and_extends_the_session() -> None:
    desk = ConsumerDesk()
    a, _ = stable_pair(desk)
    saves = len(desk.saves)
    desk.pass_ms(1_000)
    effects = desk.machine.handle(heartbeat("a", a.epoch), 999, desk.now)
    assert [type(effect) for effect in effects] == [Reply]
    assert len(desk.saves) == saves
    desk.pass_ms(SESSION_MS - 1_000)
    assert set(desk.described()) == {"a"}


# Assignors


def test_unknown_assignor_is_refused() -> None:
    desk = ConsumerDesk()
    assert desk.join_group("a", assignor="mine").error is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert desk.machine.member_count == 0


@pytest.mark.parametrize(
    ("votes", "chosen"),
    [
        ((None, None), "uniform"),
        (("range", None), "range"),
        (("range", "uniform"), "uniform"),
        (("range", "uniform", "range"), "range"),
    ],
)
def test_assignor_is_what_most_members_ask_for(votes: tuple[str | None, ...], chosen: str) -> None:
    desk = ConsumerDesk()
    settle(desk, *(Consumer(desk, f"c{number}", assignor=vote) for number, vote in enumerate(votes)))
    assert desk.group.describe().protocol == chosen
    assert desk.machine.head.assignor == chosen


# Commits


def test_commits_and_fetches_need_the_members_epoch() -> None:
    desk = ConsumerDesk()
    a, _ = stable_pair(desk)
    group, now = desk.group, desk.now
    cases = [
        (desk.claim("a", a.epoch), ErrorCode.NONE),
        (desk.claim("a", a.epoch - 1), ErrorCode.STALE_MEMBER_EPOCH),
        (desk.claim("a", a.epoch + 1), ErrorCode.STALE_MEMBER_EPOCH),
        (desk.claim("x", a.epoch), ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    for claim, code in cases:
        assert group.check_commit(claim, now) is code
        assert group.check_fetch(claim) is code
    assert group.check_commit(desk.claim("a", a.epoch, knows_epochs=False), now) is ErrorCode.UNSUPPORTED_VERSION
    assert group.check_commit(desk.claim("", NO_EPOCH), now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.check_fetch(desk.claim("", NO_EPOCH)) is ErrorCode.NONE


def test_anybody_commits_to_an_empty_group() -> None:
    desk = ConsumerDesk()
    assert desk.group.check_commit(desk.claim("", NO_EPOCH), desk.now) is ErrorCode.NONE
    assert desk.group.check_commit(desk.claim("a", 3), desk.now) is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_may_commit_with_an_earlier_epoch_what_it_has_had_since_then() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    b = Consumer(desk, "b")
    settle(desk, a, b)
    orders = topic_id("orders")
    (kept, *_), (given, *_) = a.owned[orders], b.owned[orders]
    check = desk.group.check_late_commit
    assert check(desk.claim("a", 1), orders, kept) is ErrorCode.NONE
    assert check(desk.claim("a", 1), orders, given) is ErrorCode.STALE_MEMBER_EPOCH
    assert check(desk.claim("b", 1), orders, given) is ErrorCode.STALE_MEMBER_EPOCH
    assert check(desk.claim("a", 3), orders, kept) is ErrorCode.STALE_MEMBER_EPOCH
    assert check(desk.claim("x", 1), orders, kept) is ErrorCode.UNKNOWN_MEMBER_ID


def test_partition_that_is_being_revoked_can_be_committed() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    desk.join_group("b")
    a.beat()
    assert desk.group.check_commit(desk.claim("a", 1), desk.now) is ErrorCode.NONE
    assert desk.group.check_late_commit(desk.claim("a", 1), topic_id("orders"), 3) is ErrorCode.NONE


# What others see


def test_description_tells_what_members_have_and_what_they_will_have() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    desk.heartbeat(
        heartbeat(
            "b",
            0,
            topics=("orders", "nothing"),
            rebalance_ms=REBALANCE_MS,
            owned={},
            rack="r1",
            client=Client("x", "/::1"),
        )
    )
    seen = desk.described()
    assert seen["a"].assigned == ALL_FOUR
    assert seen["b"].assigned == {}
    assert len(seen["b"].target[topic_id("orders")]) == 2
    assert (seen["b"].rack, seen["b"].client, seen["b"].topics) == ("r1", Client("x", "/::1"), ("nothing", "orders"))
    assert not seen["b"].is_classic
    assert desk.group.describe().state == "Reconciling"
    assert desk.machine.subscribed() == frozenset({"orders", "nothing"})


def test_members_with_nothing_to_read_are_members() -> None:
    desk = ConsumerDesk(image=image_of())
    a = Consumer(desk, "a", topics=())
    b = Consumer(desk, "b", topics=("later",))
    settle(desk, a, b)
    assert (a.owned, b.owned) == ({}, {})
