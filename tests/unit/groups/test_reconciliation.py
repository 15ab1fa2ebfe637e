"""One member's steps, each on its own."""

from collections.abc import Callable

import pytest

from headrace.groups.consumer_records import MemberState
from headrace.groups.protocol import Partitions
from headrace.groups.reconciliation import Goal, Standing, is_blocked, next_standing
from headrace.model.topics import TopicId

T = TopicId(b"t" * 16)
U = TopicId(b"u" * 16)


def held(epoch: int, *partitions: int, topic: TopicId = T) -> dict[TopicId, dict[int, int]]:
    return {topic: dict.fromkeys(partitions, epoch)}


def names(*partitions: int, topic: TopicId = T) -> Partitions:
    return {topic: frozenset(partitions)}


def taken(*partitions: int) -> Callable[[TopicId, int], bool]:
    return lambda topic_id, partition: topic_id == T and partition in partitions


NOTHING_IS_TAKEN = taken()


def step(
    standing: Standing,
    target: Partitions,
    *,
    epoch: int = 2,
    owned: Partitions | None = None,
    wanted: frozenset[TopicId] = frozenset({T, U}),
    has_new_wishes: bool = False,
    is_taken: Callable[[TopicId, int], bool] = NOTHING_IS_TAKEN,
) -> Standing:
    goal = Goal(epoch=epoch, target=target, wanted=wanted)
    return next_standing(standing, goal, owned=owned, has_new_wishes=has_new_wishes, is_taken=is_taken)


NEW = Standing(assigned={}, revoking={})
STABLE = Standing(epoch=1, previous_epoch=0, assigned=held(1, 0, 1), revoking={})
REVOKING = Standing(epoch=1, previous_epoch=1, state=MemberState.REVOKING, assigned=held(1, 0), revoking=held(1, 1))
WAITING = Standing(epoch=2, previous_epoch=1, state=MemberState.WAITING, assigned=held(1, 0), revoking={})


def test_newcomer_gets_what_is_free_and_waits_for_the_rest() -> None:
    after = step(NEW, names(0, 1), is_taken=taken(1))
    assert (after.state, after.epoch, after.previous_epoch) == (MemberState.WAITING, 2, 0)
    assert after.assigned == held(2, 0)


def test_newcomer_gets_all_that_is_free() -> None:
    after = step(NEW, names(0, 1))
    assert (after.state, after.epoch, after.assigned) == (MemberState.STABLE, 2, held(2, 0, 1))


def test_member_at_its_target_stays_as_it_is() -> None:
    assert step(STABLE, names(0, 1), epoch=1) is STABLE


def test_member_that_keeps_all_moves_to_the_new_epoch_and_shares_its_map() -> None:
    after = step(STABLE, names(0, 1))
    assert (after.epoch, after.previous_epoch, after.state) == (2, 1, MemberState.STABLE)
    assert after.assigned is STABLE.assigned


def test_member_keeps_the_epochs_at_which_it_got_partitions() -> None:
    after = step(STABLE, names(0, 1, 2))
    assert after.assigned == {T: {0: 1, 1: 1, 2: 2}}


def test_member_revokes_before_it_gets_anything() -> None:
    after = step(STABLE, names(0, 5))
    assert (after.state, after.epoch, after.previous_epoch) == (MemberState.REVOKING, 1, 1)
    assert (after.assigned, after.revoking) == (held(1, 0), held(1, 1))


def test_member_that_says_it_has_let_go_already_goes_on_at_once() -> None:
    after = step(STABLE, names(0, 5), owned=names(0))
    assert (after.state, after.epoch) == (MemberState.STABLE, 2)
    assert after.assigned == {T: {0: 1, 5: 2}}


@pytest.mark.parametrize("owned", [None, names(0, 1), names(1)])
def test_revoking_member_waits_until_it_says_that_it_owns_less(owned: Partitions | None) -> None:
    assert step(REVOKING, names(0, 5), owned=owned) is REVOKING


@pytest.mark.parametrize("owned", [{}, names(0), names(7, topic=U)])
def test_revoking_member_goes_on_when_it_has_let_go(owned: Partitions) -> None:
    after = step(REVOKING, names(0, 5), owned=owned)
    assert (after.state, after.epoch, after.previous_epoch) == (MemberState.STABLE, 2, 1)
    assert (after.assigned, after.revoking) == ({T: {0: 1, 5: 2}}, {})


def test_target_that_changed_meanwhile_may_give_back_what_was_revoked() -> None:
    assert step(REVOKING, names(0, 1), owned=names(0)).assigned == {T: {0: 1, 1: 2}}


def test_target_that_changed_meanwhile_may_ask_for_more() -> None:
    after = step(REVOKING, {}, owned=names(0))
    assert (after.state, after.epoch) == (MemberState.REVOKING, 1)
    assert (after.assigned, after.revoking) == ({}, held(1, 0))


def test_waiting_member_gets_what_has_become_free() -> None:
    waits = step(WAITING, names(0, 1, 2), is_taken=taken(1, 2))
    assert (waits.state, waits.previous_epoch) == (MemberState.WAITING, 2)
    assert step(waits, names(0, 1, 2), is_taken=taken(1, 2)) is waits
    more = step(waits, names(0, 1, 2), is_taken=taken(2))
    assert (more.state, more.assigned) == (MemberState.WAITING, {T: {0: 1, 1: 2}})
    done = step(more, names(0, 1, 2))
    assert (done.state, done.epoch, done.assigned) == (MemberState.STABLE, 2, {T: {0: 1, 1: 2, 2: 2}})


def test_unsubscribed_topics_are_revoked_whatever_the_target_says() -> None:
    after = step(STABLE, names(0, 1), wanted=frozenset({U}))
    assert (after.state, after.revoking) == (MemberState.REVOKING, STABLE.assigned)


def test_new_wishes_count_even_at_the_target() -> None:
    unchanged = step(STABLE, names(0, 1), epoch=1, has_new_wishes=True)
    assert unchanged is STABLE
    after = step(STABLE, names(0, 1), epoch=1, wanted=frozenset({U}), has_new_wishes=True)
    assert (after.state, after.epoch, after.assigned) == (MemberState.REVOKING, 1, {})
    done = step(STABLE, names(0, 1), epoch=1, wanted=frozenset({U}), has_new_wishes=True, owned={})
    assert (done.state, done.assigned, done.revoking) == (MemberState.STABLE, {}, {})


def test_new_wishes_add_to_what_is_being_revoked() -> None:
    after = step(REVOKING, names(0), wanted=frozenset({U}), has_new_wishes=True)
    assert (after.assigned, after.revoking) == ({}, {T: {0: 1, 1: 1}})


def test_waiting_member_is_blocked_while_others_hold_what_it_gets() -> None:
    assert is_blocked(WAITING, names(0, 1), taken(1))
    assert not is_blocked(WAITING, names(0, 1), taken(0))
    assert not is_blocked(STABLE, names(0, 1, 2), taken(2))
