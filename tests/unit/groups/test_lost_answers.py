"""Any answer to a KIP-848 heartbeat may be lost: nobody may stay stuck because of it.

librdkafka drops an answer that comes later than one heartbeat interval, and does not say again what it owns.
"""

from dataclasses import dataclass, field

import pytest

from headrace.groups.protocol import JOINING_EPOCH, ConsumerBeatReply
from headrace.model.error_codes import ErrorCode
from tests.unit.groups.consumer_desk import Consumer, ConsumerDesk, heartbeat, settle, stable_pair

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
