"""A member that speaks the classic protocol: eager, and its leader deals the partitions out in turns."""

from typing import cast

from headrace.groups.protocol import (
    Beat,
    BeatReply,
    CommitClaim,
    Join,
    JoinReply,
    Leave,
    Leaver,
    Sync,
    SyncReply,
)
from headrace.groups.store import Partition
from headrace.model.error_codes import ErrorCode
from headrace.model.subscriptions import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.model.topics import TopicId
from headrace.testing.simulation.groups.members import CLIENT, PATIENT_TIMEOUT_S, Member
from headrace.testing.simulation.groups.node import MEMBER_SESSION_MS

BEAT_S = 1.0
REBALANCE_TIMEOUT_MS = 60_000
VERSION = 1


class ClassicMember(Member):
    """Joins, syncs, sends heartbeats; begins anew when it is told to."""

    _member_id = ""
    _generation = -1
    _dealt: dict[str, int] | None = None
    """How many partitions each topic had when this member dealt them out, as the leader."""
    _is_in_pure_group = True

    def in_mixed_group(self) -> "ClassicMember":
        """Return this member, as one of a group that changes between the protocols."""
        self._is_in_pure_group = False
        return self

    def _claim(self) -> CommitClaim:
        return CommitClaim(member_id=self._member_id, instance_id=None, epoch=self._generation, knows_epochs=True)

    async def _live(self) -> None:
        self._drop()
        joined = await self._join()
        if joined is None or not await self._sync(joined):
            return
        while await self._beat():
            if self._dealt is not None and self._dealt != self._counts():
                return  # a leader that sees a topic grow joins again, and deals anew
            await self._use_offsets()
            await self._world.clock.sleep(BEAT_S * self._rng.uniform(0.5, 1.2))
            if not self._world.is_calm() and await self._wanders_off():
                return

    async def _join(self) -> JoinReply | None:
        metadata = encode_subscription(Subscription(topics=self.topics), VERSION)
        event = Join(
            member_id=self._member_id,
            instance_id=None,
            protocol_type="consumer",
            protocols=(("range", metadata),),
            session_timeout_ms=MEMBER_SESSION_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            client=CLIENT,
            needs_member_id=True,
        )
        reply = cast(
            JoinReply,
            await self._ask(
                lambda node: node.coordinator.call(self.group_id, event), timeout_s=2 * PATIENT_TIMEOUT_S
            ),
        )
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = reply.member_id
            return None
        if reply.error is not ErrorCode.NONE:
            self._told_off(reply.error)
            await self._pause()
            return None
        self._member_id, self._generation = reply.member_id, reply.generation
        return reply

    async def _sync(self, joined: JoinReply) -> bool:
        event = Sync(
            member_id=self._member_id,
            instance_id=None,
            generation=self._generation,
            assignments=self._deal(joined) if joined.leader == self._member_id else (),
        )
        self._dealt = self._counts() if event.assignments else None
        sent_at = self._world.clock.monotonic()
        reply = cast(
            SyncReply,
            await self._ask(lambda node: node.coordinator.call(self.group_id, event), timeout_s=PATIENT_TIMEOUT_S),
        )
        if reply.error is not ErrorCode.NONE:
            self._told_off(reply.error)
            return False
        self._own(reply.assignment, sent_at)
        return True

    def _own(self, raw: bytes, sent_at: float) -> None:
        partitions: set[Partition] = set()
        for name, numbers in decode_assignment(raw).partitions if raw else ():
            topic = self._topic(name)
            partitions.update((topic, number) for number in numbers)
        ledger, now = self._world.ledger, self._world.clock.monotonic()
        if self._is_in_pure_group:
            ledger.assigned_in(self.group_id, self._generation, self._member_id, partitions)
            # The classic protocol gives the partitions of a member that does not join in time to others, and it finds
            # out later: only within a generation has a partition one owner.
            self.holder.session_s = 0.0
        ledger.told(self.holder, frozenset(partitions), sent_at=sent_at, now=now)

    def _counts(self) -> dict[str, int]:
        assert self._coordinator is not None, "it has just answered"
        known = self._coordinator.topics.known()
        return {topic.name: len(topic.streams) for topic in known if topic.name in self.topics}

    def _topic(self, name: str) -> TopicId:
        assert self._coordinator is not None, "it has just answered"
        found = self._coordinator.topics.get(name)
        assert found is not None, f"{name} is there from the beginning"
        return found.id

    def _deal(self, joined: JoinReply) -> tuple[tuple[str, bytes], ...]:
        """Give everybody who wants a topic some of its partitions."""
        assert self._coordinator is not None, "it has just answered"
        hands: dict[str, dict[str, list[int]]] = {member_id: {} for member_id, _, _ in joined.members}
        wanted = {member_id: decode_subscription(raw).topics for member_id, _, raw in joined.members}
        for name in sorted({topic for topics in wanted.values() for topic in topics}):
            topic = self._coordinator.topics.get(name)
            takers = sorted(member_id for member_id, topics in wanted.items() if name in topics)
            for number in range(0 if topic is None else len(topic.streams)):
                hands[takers[number % len(takers)]].setdefault(name, []).append(number)
        return tuple((member_id, encode_assignment(_assignment(hand), VERSION)) for member_id, hand in hands.items())

    async def _beat(self) -> bool:
        event = Beat(member_id=self._member_id, instance_id=None, generation=self._generation)
        sent_at = self._world.clock.monotonic()
        reply = cast(BeatReply, await self._ask(lambda node: node.coordinator.call(self.group_id, event)))
        if reply.error is ErrorCode.NONE:
            self.holder.heard_at = sent_at
            return True
        self._told_off(reply.error)
        return False

    def _told_off(self, code: ErrorCode) -> None:
        self._drop()
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID):
            self._member_id = "" if code is not ErrorCode.ILLEGAL_GENERATION else self._member_id
            self._generation = -1

    async def _wanders_off(self) -> bool:
        """Now and then leave, or be silent for longer than anybody waits."""
        chance = self._rng.random()
        if chance < 0.05:
            self._drop()
            event = Leave(leavers=(Leaver(member_id=self._member_id, instance_id=None),))
            self._member_id, self._generation = "", -1
            await self._ask(lambda node: node.coordinator.call(self.group_id, event))
            await self._world.clock.sleep(self._rng.uniform(0, 5))
            return True
        if chance < 0.08:
            await self._world.clock.sleep(self._rng.uniform(0, 2 * MEMBER_SESSION_MS / 1000))
        return False


def _assignment(hand: dict[str, list[int]]) -> Assignment:
    return Assignment(partitions=tuple((name, tuple(numbers)) for name, numbers in hand.items()))
