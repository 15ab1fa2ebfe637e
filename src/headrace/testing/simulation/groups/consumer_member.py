"""A member that speaks KIP-848: it reports what it owns, lets go before it takes, and knows its epoch.

As librdkafka does, it says what it owns only when that has changed, and drops answers that come too late without
telling everything again. Too late is what takes longer than the interval that it heard last: some members are so far
away that this would be every answer.
"""

from typing import cast

from headrace.groups.protocol import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    CommitClaim,
    ConsumerBeat,
    ConsumerBeatReply,
    Partitions,
)
from headrace.groups.store import Partition
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import TopicId
from headrace.testing.simulation.groups.members import CLIENT, Lost, Member
from headrace.testing.simulation.groups.node import MEMBER_SESSION_MS

REBALANCE_TIMEOUT_MS = 60_000
DROPPED_SHARE = 0.05
"""How many answers are dropped as too late while there are faults."""

FAR_SHARE = 0.25
FAR_TURN_MS = (300, 4_000)
"""How many members are far away, and how long a turn to them takes."""


class ConsumerMember(Member):
    """Sends heartbeats; joins anew when it is fenced."""

    _member_id = ""
    _epoch = JOINING_EPOCH
    _must_tell_all = True
    _number = 0
    _reported: frozenset[Partition] | None = None
    _interval_ms: int | None = None
    _turn_ms = 0

    def _claim(self) -> CommitClaim:
        return CommitClaim(member_id=self._member_id, instance_id=None, epoch=self._epoch, knows_epochs=True)

    async def _live(self) -> None:
        """Beat until something goes wrong; an answer that was lost is asked for again, with everything told anew."""
        if not self._member_id:
            self._number += 1
            self._member_id = f"{self.name}-{self._number}"
            self._epoch, self._must_tell_all = JOINING_EPOCH, True
            self._interval_ms = None
            self._turn_ms = round(self._rng.uniform(*FAR_TURN_MS)) if self._rng.random() < FAR_SHARE else 0
            self._drop()
        while True:
            try:
                interval_ms = await self._beat()
            except Lost:
                self._must_tell_all = True
                raise
            if interval_ms is None:
                return
            await self._use_offsets()
            await self._world.clock.sleep(interval_ms / 1000 * self._rng.uniform(0.5, 1.2))
            if not self._world.is_calm() and await self._wanders_off():
                return

    async def _beat(self) -> int | None:
        """Send one heartbeat; return when to send the next, or `None` to join anew."""
        owned = self.holder.owned if self._epoch != JOINING_EPOCH else frozenset()
        tells_all = self._must_tell_all
        event = ConsumerBeat(
            member_id=self._member_id,
            member_epoch=self._epoch,
            instance_id=None,
            rack=None,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if tells_all else -1,
            topics=self.topics if tells_all else None,
            regex=None,
            assignor=None,
            owned=_by_topic(owned) if tells_all or owned != self._reported else None,
            client=CLIENT,
            turn_ms=self._turn_ms,
        )
        if self._epoch == JOINING_EPOCH:
            self._drop()
        self._reported = owned
        sent_at = self._world.clock.monotonic()
        reply = cast(ConsumerBeatReply, await self._ask(lambda node: node.coordinator.call(self.group_id, event)))
        if self._turn_ms:
            await self._world.clock.sleep(self._turn_ms / 1000)
        heard_ms = self._interval_ms
        is_too_late = heard_ms is not None and self._turn_ms > heard_ms
        if heard_ms is not None and not self._world.is_calm() and self._rng.random() < DROPPED_SHARE:
            is_too_late = True
        if heard_ms is not None and is_too_late:
            return heard_ms
        if reply.error is not ErrorCode.NONE:
            await self._told_off(reply.error)
            return None
        self._must_tell_all = False
        self._epoch = reply.member_epoch
        self.holder.heard_at = sent_at
        if reply.assignment is not None:
            self._own(reply.assignment, sent_at)
        self._interval_ms = reply.heartbeat_interval_ms
        return self._interval_ms

    def _own(self, assignment: Partitions, sent_at: float) -> None:
        """Let go of what is not ours any more; then take what is new."""
        told = frozenset((topic, number) for topic, numbers in assignment.items() for number in numbers)
        ledger, now = self._world.ledger, self._world.clock.monotonic()
        ledger.released(self.holder, kept=told)
        ledger.told(self.holder, told, sent_at=sent_at, now=now)

    async def _told_off(self, code: ErrorCode) -> None:
        self._drop()
        self._epoch, self._must_tell_all = JOINING_EPOCH, True
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        await self._pause()

    async def _wanders_off(self) -> bool:
        """Now and then leave, or be silent for longer than anybody waits."""
        chance = self._rng.random()
        if chance < 0.03:
            self._drop()
            event = ConsumerBeat(
                member_id=self._member_id,
                member_epoch=LEAVING_EPOCH,
                instance_id=None,
                rack=None,
                rebalance_timeout_ms=-1,
                topics=None,
                regex=None,
                assignor=None,
                owned=None,
                client=CLIENT,
            )
            self._member_id = ""
            await self._ask(lambda node: node.coordinator.call(self.group_id, event))
            await self._world.clock.sleep(self._rng.uniform(0, 5))
            return True
        if chance < 0.05:
            await self._world.clock.sleep(self._rng.uniform(0, 2 * MEMBER_SESSION_MS / 1000))
        return False


def _by_topic(owned: frozenset[Partition]) -> dict[TopicId, frozenset[int]]:
    topics = {topic for topic, _ in owned}
    return {topic: frozenset(number for one, number in owned if one == topic) for topic in topics}
