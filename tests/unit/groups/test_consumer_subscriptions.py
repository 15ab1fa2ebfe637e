"""Subscriptions by name and by regular expression, and what happens when topics change."""

from headrace.groups.consumer_subscriptions import NO_WISH, Subscriptions, Wish
from headrace.model.error_codes import ErrorCode
from tests.unit.groups.consumer_desk import (
    REBALANCE_MS,
    Consumer,
    ConsumerDesk,
    heartbeat,
    image_of,
    parts,
    settle,
    stable_pair,
    topic_id,
)


def test_subscriptions_are_counted_and_resolved_by_the_newest_image() -> None:
    subscriptions = Subscriptions(image_of(a=1, b=2))
    wish = Wish(("a", "c"), None)
    subscriptions.add(wish)
    subscriptions.add(wish)
    subscriptions.add(Wish((), "b.*"))
    assert subscriptions.names() == frozenset({"a", "b", "c"})
    assert subscriptions.partition_counts() == {topic_id("a"): 1, topic_id("b"): 2}
    before = subscriptions.topics_hash()
    subscriptions.turn_to(image_of(a=1, b=2, b2=3, x=1))
    assert subscriptions.topic_ids(Wish((), "b.*")) == {topic_id("b"), topic_id("b2")}
    assert subscriptions.topics_hash() != before
    subscriptions.remove(wish)
    assert topic_id("a") in subscriptions.partition_counts()
    subscriptions.remove(wish)
    assert topic_id("a") not in subscriptions.partition_counts()
    assert subscriptions.topic_ids(NO_WISH) == frozenset()


def test_topics_that_nobody_wants_do_not_change_the_hash() -> None:
    subscriptions = Subscriptions(image_of(a=1))
    subscriptions.add(Wish(("a",), None))
    before = subscriptions.topics_hash()
    subscriptions.turn_to(image_of(a=1, b=1))
    assert subscriptions.topics_hash() == before
    subscriptions.turn_to(image_of(a=2, b=1))
    assert subscriptions.topics_hash() != before


def test_pattern_that_cannot_be_read_any_more_matches_nothing() -> None:
    subscriptions = Subscriptions(image_of(a=1))
    assert subscriptions.topic_ids(Wish(("a",), "(")) == {topic_id("a")}


def test_regular_expression_finds_topics_that_exist_and_those_that_come() -> None:
    desk = ConsumerDesk(image=image_of(eu_orders=1, us_orders=1, other=1))
    a = Consumer(desk, "a", topics=None, regex=".*_orders")
    settle(desk, a)
    assert a.owned == parts(eu_orders=[0], us_orders=[0])
    assert desk.machine.subscribed() == frozenset({"eu_orders", "us_orders"})
    desk.turn_to(image_of(eu_orders=1, us_orders=1, other=1, jp_orders=2))
    settle(desk, a)
    assert a.owned == parts(eu_orders=[0], us_orders=[0], jp_orders=[0, 1])


def test_names_and_a_regular_expression_are_both_wanted() -> None:
    desk = ConsumerDesk(image=image_of(eu_orders=1, other=1))
    a = Consumer(desk, "a", topics=("other",), regex=".*_orders")
    settle(desk, a)
    assert a.owned == parts(eu_orders=[0], other=[0])
    reply = desk.heartbeat(heartbeat("a", a.epoch, regex=""))
    # It owns what it must let go of until it says otherwise.
    assert (reply.member_epoch, reply.assignment) == (a.epoch, parts(other=[0]))


def test_regular_expression_that_is_none_is_refused() -> None:
    desk = ConsumerDesk()
    reply = desk.join_group("a", None, regex="(?=x)")
    assert reply.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert reply.error_message is not None
    assert desk.machine.member_count == 0


def test_same_topics_in_another_order_are_no_change() -> None:
    desk = ConsumerDesk(image=image_of(a=1, b=1))
    desk.join_group("m", ("b", "a", "a"))
    epoch = desk.machine.head.epoch
    desk.heartbeat(heartbeat("m", epoch, topics=("a", "b"), rebalance_ms=REBALANCE_MS))
    assert desk.machine.head.epoch == epoch


def test_changed_subscription_moves_partitions() -> None:
    desk = ConsumerDesk(image=image_of(a=2, b=2))
    one, two = Consumer(desk, "one", topics=("a",)), Consumer(desk, "two", topics=("a",))
    settle(desk, one, two)
    reply = desk.heartbeat(heartbeat("one", one.epoch, topics=("b",)))
    assert (reply.member_epoch, reply.assignment) == (one.epoch, {})
    one.owned = {}
    settle(desk, one, two)
    assert one.owned == parts(b=[0, 1])
    assert two.owned == parts(a=[0, 1])


def test_topic_that_grows_is_shared_out_anew() -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    before = (a.owned, b.owned)
    desk.turn_to(image_of(orders=6))
    assert desk.machine.state == "Reconciling"
    settle(desk, a, b)
    assert (a.count(), b.count()) == (3, 3)
    assert all(
        one.owned[topic_id("orders")] > had[topic_id("orders")] for one, had in zip((a, b), before, strict=True)
    )


def test_topic_that_nobody_wants_is_no_reason_for_a_new_epoch() -> None:
    desk = ConsumerDesk()
    stable_pair(desk)
    epoch, saves = desk.machine.head.epoch, len(desk.saves)
    desk.turn_to(image_of(orders=4, other=1))
    assert (desk.machine.head.epoch, len(desk.saves)) == (epoch, saves)


def test_deleted_topic_vanishes_from_everybody() -> None:
    desk = ConsumerDesk(image=image_of(orders=4, other=2))
    a, b = Consumer(desk, "a", topics=("orders", "other")), Consumer(desk, "b", topics=("orders", "other"))
    settle(desk, a, b)
    desk.turn_to(image_of(orders=4))
    settle(desk, a, b)
    assert sorted(p for one in (a, b) for p in one.owned[topic_id("orders")]) == [0, 1, 2, 3]
    assert all(list(one.owned) == [topic_id("orders")] for one in (a, b))
    assert all(list(seen.assigned) == [topic_id("orders")] for seen in desk.described().values())


def test_topic_that_was_created_again_is_another_one() -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    desk.turn_to(image_of(incarnation=1, orders=2))
    settle(desk, a, b)
    anew = topic_id("orders", 1)
    assert sorted(p for one in (a, b) for p in one.owned[anew]) == [0, 1]
    assert all(list(one.owned) == [anew] for one in (a, b))


def test_empty_group_does_not_care_about_topics() -> None:
    desk = ConsumerDesk()
    desk.turn_to(image_of(orders=9))
    assert not desk.saves
