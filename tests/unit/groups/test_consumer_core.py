"""What is saved and what a restart finds; targets of large groups."""

import msgspec

from headrace.groups.consumer_core import ASSIGN_DELAY_MS, MAX_MEMBERS_AT_ONCE, MAX_PARTITIONS_AT_ONCE
from headrace.groups.consumer_members import REPEATS_AFTER_LOADING
from headrace.groups.protocol import GroupLimits, Reply, Save
from headrace.groups.records import GroupHead, GroupKind
from headrace.model.error_codes import ErrorCode
from tests.unit.groups.consumer_desk import (
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    ConsumerDesk,
    heartbeat,
    image_of,
    settle,
    stable_pair,
    topic_id,
)
from tests.unit.groups.desk import GROUP, LIMITS, Store

ROOMY = GroupLimits(**{name: getattr(LIMITS, name) for name in LIMITS.__slots__} | {"max_members": 1_000})


# Saving


def test_everything_is_saved_before_it_is_told() -> None:
    desk = ConsumerDesk()
    effects = desk.machine.handle(
        heartbeat("a", 0, topics=("orders",), rebalance_ms=REBALANCE_MS, owned={}), 7, desk.now
    )
    assert isinstance(effects[-1], Reply)
    (save,) = [effect for effect in effects if isinstance(effect, Save)]
    assert (list(save.members), list(save.assignments)) == (["a"], ["a"])
    assert save.head == desk.machine.head


def test_only_what_has_changed_is_saved() -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    Consumer(desk, "c").beat()
    joined = desk.saves[-1]
    assert list(joined.members) == ["c"]
    assert "c" in joined.assignments
    assert len(joined.assignments) < 3, "one of the two others keeps its target"
    a.beat()
    assert (list(desk.saves[-1].members), list(desk.saves[-1].assignments)) == (["a"], [])
    b.beat()
    assert list(desk.saves[-1].members) == ["b"]


def test_refused_request_saves_nothing() -> None:
    desk = ConsumerDesk()
    stable_pair(desk)
    saves = len(desk.saves)
    desk.heartbeat(heartbeat("a", 99))
    desk.heartbeat(heartbeat("x", 1))
    desk.join_group("c", assignor="mine")
    assert len(desk.saves) == saves


# Restarts


def test_members_go_on_with_their_epoch_after_a_restart() -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    before, head, saves = desk.described(), desk.machine.head, len(desk.saves)
    desk.restart()
    assert (desk.described(), desk.machine.head, desk.machine.state) == (before, head, "Stable")
    # The last answer of the coordinator before may have been lost, so it is repeated, but not for ever: members that
    # have heard it do not confirm it again.
    for _ in range(REPEATS_AFTER_LOADING):
        had = a.owned
        assert a.beat().assignment == had
    assert a.beat().assignment is None
    assert b.beat().assignment is None, "it reports what it owns, and so confirms it"
    assert len(desk.saves) == saves


def test_revocation_goes_on_after_a_restart() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    b = Consumer(desk, "b")
    b.beat()
    a.beat()
    desk.restart()
    assert not b.beat().assignment
    settle(desk, a, b)
    assert (a.count(), b.count()) == (2, 2)


def test_deadlines_begin_anew_after_a_restart() -> None:
    desk = ConsumerDesk(session_ms=10 * REBALANCE_MS)
    a = Consumer(desk, "a")
    a.beat()
    b = Consumer(desk, "b")
    b.beat()
    a.beat()
    desk.pass_ms(REBALANCE_MS - 1)
    desk.restart()
    desk.pass_ms(REBALANCE_MS - 1)
    assert desk.machine.member_count == 2
    desk.pass_ms(1)
    assert set(desk.described()) == {"b"}


def test_sessions_begin_anew_after_a_restart() -> None:
    desk = ConsumerDesk()
    stable_pair(desk)
    desk.pass_ms(SESSION_MS - 1)
    desk.restart()
    desk.pass_ms(SESSION_MS - 1)
    assert desk.machine.member_count == 2
    desk.pass_ms(1)
    assert desk.machine.state == "Empty"


def test_topics_that_changed_while_nobody_coordinated_are_noticed_at_once() -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    desk.image = image_of(orders=6)
    desk.restart()
    assert desk.machine.next_deadline_ms == desk.now_ms
    desk.pass_ms(0)
    settle(desk, a, b)
    assert (a.count(), b.count()) == (3, 3)


def test_target_that_was_due_is_computed_after_a_restart() -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    assert desk.store.head is not None
    desk.store.head = msgspec.structs.replace(desk.store.head, epoch=desk.store.head.epoch + 1)
    desk.restart()
    assert desk.machine.state == "Assigning"
    a.beat()
    settle(desk, a, b)


def test_empty_classic_group_becomes_ours_and_its_epochs_go_on() -> None:
    store = Store()
    store.head = GroupHead(
        group_id=GROUP, kind=GroupKind.CLASSIC, epoch=8, empty_since_ms=5, protocol_type="consumer", leader="x"
    )
    desk = ConsumerDesk(store=store)
    assert desk.machine.state == "Empty"
    assert desk.machine.next_deadline_ms is None
    assert desk.join_group("a").member_epoch == 9
    assert desk.machine.head.kind is GroupKind.CONSUMER
    # Also for a member that wants nothing.
    other = ConsumerDesk(store=Store())
    assert other.join_group("a", ()).member_epoch == 1


# Large groups


def test_large_group_computes_one_target_for_many_joins() -> None:
    desk = ConsumerDesk(ROOMY, image=image_of(orders=200))
    consumers = [Consumer(desk, f"c{number:03}") for number in range(MAX_MEMBERS_AT_ONCE)]
    settle(desk, *consumers)
    targets = sum(one.what == "rebalance" for one in desk.noted)
    late = [Consumer(desk, f"d{number:03}") for number in range(50)]
    for consumer in late:
        reply = consumer.beat()
        # It is in the epoch of the last target, which has nothing for it.
        assert (reply.assignment, reply.member_epoch) == ({}, desk.machine.head.target_epoch)
        assert reply.heartbeat_interval_ms == 200
    assert desk.machine.state == "Assigning"
    assert desk.machine.next_deadline_ms == desk.now_ms + ASSIGN_DELAY_MS
    assert sum(one.what == "rebalance" for one in desk.noted) == targets
    desk.pass_ms(ASSIGN_DELAY_MS)
    assert desk.machine.state == "Reconciling"
    assert sum(one.what == "rebalance" for one in desk.noted) == targets + 1
    settle(desk, *consumers, *late)
    assert {consumer.count() for consumer in (*consumers, *late)} == {1, 2}


def test_group_with_many_partitions_is_large_too() -> None:
    desk = ConsumerDesk(image=image_of(orders=MAX_PARTITIONS_AT_ONCE + 1))
    a, b = Consumer(desk, "a"), Consumer(desk, "b")
    # There is nothing to wait with yet, so the first member gets all.
    assert a.beat().assignment is not None
    assert desk.machine.state == "Stable"
    b.beat()
    assert desk.machine.state == "Assigning"
    desk.pass_ms(ASSIGN_DELAY_MS)
    settle(desk, a, b)
    assert a.count() - b.count() == 1


def test_target_that_is_due_does_not_wait_for_a_tick() -> None:
    desk = ConsumerDesk(ROOMY, image=image_of(orders=200))
    consumers = [Consumer(desk, f"c{number:03}") for number in range(MAX_MEMBERS_AT_ONCE + 1)]
    for consumer in consumers:
        consumer.beat()
    desk.now_ms += ASSIGN_DELAY_MS
    consumers[0].beat()
    assert desk.machine.state == "Reconciling"


def test_member_of_a_large_group_is_not_told_to_keep_what_it_unsubscribed_from() -> None:
    desk = ConsumerDesk(ROOMY, image=image_of(orders=200, other=10))
    consumers = [Consumer(desk, f"c{number:03}") for number in range(MAX_MEMBERS_AT_ONCE + 1)]
    settle_large(desk, consumers)
    first = consumers[0]
    reply = desk.heartbeat(heartbeat(first.id, first.epoch, topics=("other",)))
    assert desk.machine.state == "Assigning"
    assert (reply.assignment, reply.member_epoch) == ({}, first.epoch)
    first.owned = {}
    settle_large(desk, consumers)
    assert len(first.owned[topic_id("other")]) == 10


def settle_large(desk: ConsumerDesk, consumers: list[Consumer]) -> None:
    for consumer in consumers:
        consumer.beat()
    desk.pass_ms(ASSIGN_DELAY_MS)
    settle(desk, *consumers)


def test_restart_while_a_target_is_due_forgets_nobody() -> None:
    desk = ConsumerDesk(ROOMY, image=image_of(orders=200))
    consumers = [Consumer(desk, f"c{number:03}") for number in range(MAX_MEMBERS_AT_ONCE + 20)]
    for consumer in consumers:
        consumer.beat()
    desk.restart()
    assert desk.machine.state == "Assigning"
    desk.pass_ms(0)
    settle(desk, *consumers)
    assert desk.heartbeat(heartbeat("x", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID
