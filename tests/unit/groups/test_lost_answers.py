"""Any answer to a KIP-848 heartbeat may be lost: nobody may stay stuck because of it.

librdkafka drops an answer that comes later than one heartbeat interval, and does not say again what it owns.
"""

from dataclasses import dataclass, field

import pytest

from headrace.groups.pace import TURNS_PER_INTERVAL
from headrace.groups.protocol import JOINING_EPOCH, ConsumerBeatReply, Partitions
from headrace.model.error_codes import ErrorCode
from tests.unit.groups.consumer_desk import (
    REBALANCE_MS,
    Consumer,
    ConsumerDesk,
    FixedPace,
    heartbeat,
    settle,
    stable_pair,
)

STEPS = 8
"""More heartbeats of one member than a hand-over takes, so that each of its answers is lost in one of the cases."""

MAX_ROUNDS_AFTER_LOSS = 8


@dataclass
class Forgetful(Consumer):
    """Loses some of the answers to its heartbeats, counted from zero."""

    lost: set[int] = field(default_factory=set)
    repeats_report: bool = False
    """Whether it says again what it owns where the answer to that was lost."""
    beats: int = 0

    def beat(self) -> ConsumerBeatReply:
        number, self.beats = self.beats, self.beats + 1
        if number not in self.lost:
            return super().beat()
        if self.epoch == JOINING_EPOCH:
            return self.desk.join_group(self.id, self.topics)
        report = None if self.reported == self.owned else self.owned
        reply = self.desk.heartbeat(heartbeat(self.id, self.epoch, owned=report))
        assert reply.error is ErrorCode.NONE, reply
        if not self.repeats_report:
            self.reported = self.owned
        return reply


@pytest.mark.parametrize("repeats_report", [False, True])
@pytest.mark.parametrize("lost", [{step} for step in range(STEPS)] + [{step, step + 1} for step in range(STEPS)])
@pytest.mark.parametrize("loser", ["old", "new"])
def test_members_come_to_rest_though_answers_of_a_hand_over_are_lost(
    loser: str, lost: set[int], repeats_report: bool
) -> None:
    desk = ConsumerDesk()
    a = Forgetful(desk, "a", repeats_report=repeats_report)
    a.beat()
    a.beat()
    b = Forgetful(desk, "b", repeats_report=repeats_report)
    if loser == "old":
        a.lost = {a.beats + step for step in lost}
    else:
        b.lost = lost
    # Until all that will be lost is lost, then until everybody is at rest.
    for _ in range(STEPS + 1):
        a.beat()
        b.beat()
    assert settle(desk, a, b) <= MAX_ROUNDS_AFTER_LOSS
    a.beat()
    b.beat()
    assert (a.count(), b.count()) == (2, 2), "each has heard what it has"


@pytest.mark.parametrize("lost", [{step} for step in range(STEPS)])
def test_partitions_of_a_member_that_left_are_heard_of_though_an_answer_is_lost(lost: set[int]) -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    rest = Forgetful(desk, a.id, epoch=a.epoch, owned=a.owned, reported=a.reported, lost=lost)
    rest.beat()
    b.leave()
    for _ in range(STEPS + 1):
        rest.beat()
    assert rest.count() == 4
    assert desk.machine.state == "Stable"


def test_nobody_who_has_confirmed_is_told_again() -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    for one in (a, b):
        one.beat()
        assert one.beat().assignment is None


@dataclass
class Far(Consumer):
    """Is `turn_ms` away, and drops an answer that takes longer than the interval that it heard last."""

    turn_ms: int = 0
    dropped: int = 0

    def beat(self) -> ConsumerBeatReply:
        is_joining = self.epoch == JOINING_EPOCH
        event = heartbeat(
            self.id,
            self.epoch,
            topics=self.topics if is_joining else None,
            rebalance_ms=REBALANCE_MS if is_joining else -1,
            owned=self.owned if is_joining or self.reported != self.owned else None,
            turn_ms=self.turn_ms,
        )
        reply = self.desk.heartbeat(event)
        self.desk.pass_ms(self.turn_ms)
        assert reply.error is ErrorCode.NONE, reply
        self.reported = self.owned
        if not is_joining and self.turn_ms > self.interval_ms:
            self.dropped += 1
            return reply
        self.epoch, self.interval_ms = reply.member_epoch, reply.heartbeat_interval_ms
        self.owned = self.owned if reply.assignment is None else reply.assignment
        return reply


@pytest.mark.parametrize("far", ["old", "new", "both"])
@pytest.mark.parametrize("turn_ms", [100, 600, 1_100, 2_500, 4_900])
def test_members_share_though_every_answer_takes_longer_than_a_short_interval(turn_ms: int, far: str) -> None:
    desk = ConsumerDesk()
    a = Far(desk, "a", turn_ms=turn_ms if far != "new" else 0)
    a.beat()
    a.beat()
    b = Far(desk, "b", turn_ms=turn_ms if far != "old" else 0)
    settle(desk, a, b)
    a.beat()
    b.beat()
    assert (a.count(), b.count(), a.dropped, b.dropped) == (2, 2, 0, 0)
    assert (a if far == "new" else b).interval_ms >= 200


def test_a_member_whose_connection_began_slowly_is_hurried_again_when_it_confirms_quickly() -> None:
    desk = ConsumerDesk()
    joined = desk.heartbeat(
        heartbeat("a", JOINING_EPOCH, topics=("orders",), rebalance_ms=REBALANCE_MS, owned={}, turn_ms=900)
    )
    assert joined.heartbeat_interval_ms == 900 * TURNS_PER_INTERVAL
    desk.pass_ms(2)
    confirmed = desk.heartbeat(heartbeat("a", joined.member_epoch, owned=joined.assignment, turn_ms=900))
    assert confirmed.heartbeat_interval_ms == FixedPace().stable_interval_ms(1)
    at_rest = desk.heartbeat(heartbeat("a", joined.member_epoch, turn_ms=900))
    assert at_rest.heartbeat_interval_ms == FixedPace().stable_interval_ms(1), (
        "the same connection proves nothing new"
    )
    slower = desk.heartbeat(heartbeat("a", joined.member_epoch, turn_ms=800))
    assert slower.heartbeat_interval_ms == 800 * TURNS_PER_INTERVAL, "a new connection does"


def test_heartbeats_that_pile_up_while_the_broker_stands_still_do_not_prove_a_member_quick() -> None:
    desk = ConsumerDesk()
    far = Far(desk, "a", turn_ms=1_100)
    far.beat()
    held = far.owned
    reports: tuple[Partitions | None, ...] = (None, {})
    for owned in reports:
        # The member has heard of `held`, but did not report it before it timed out and sent the next heartbeat.
        reply = desk.heartbeat(heartbeat("a", far.epoch, owned=owned, turn_ms=1_100))
        assert reply.heartbeat_interval_ms == 1_100 * TURNS_PER_INTERVAL
        assert reply.assignment == held


def test_an_interval_that_was_set_is_kept_whatever_the_network_does() -> None:
    desk = ConsumerDesk(interval_ms=300)
    far = Far(desk, "a", turn_ms=1_100)
    assert far.beat().heartbeat_interval_ms == 300
