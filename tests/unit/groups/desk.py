"""A classic group on a desk: a machine, a clock that jumps, a store that holds what was saved, and all answers."""

from itertools import count
from typing import TypeVar

from headrace.groups.classic import ClassicGroup
from headrace.groups.protocol import (
    AnyReply,
    Beat,
    BeatReply,
    Client,
    CommitClaim,
    Effect,
    Event,
    GroupLimits,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    Machine,
    Moment,
    Noted,
    Reply,
    Save,
    Sync,
    SyncReply,
    Tick,
)
from headrace.groups.records import GroupHead, Loaded
from headrace.metadata.port import Key
from headrace.model.error_codes import ErrorCode
from headrace.model.subscriptions import Subscription, encode_subscription
from headrace.runtime.rng import seeded_rng

GROUP = "orders"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
WALL_MS = 1_700_000_000_000

LIMITS = GroupLimits(
    max_members=100,
    min_session_timeout_ms=6_000,
    max_session_timeout_ms=1_800_000,
    initial_rebalance_delay_ms=DELAY_MS,
    max_metadata_bytes=10_000,
    max_subscribed_topics=100,
)

A_REPLY = TypeVar("A_REPLY", bound=AnyReply)


def join(
    member_id: str = "",
    *,
    instance: str | None = None,
    protocols: tuple[tuple[str, bytes], ...] = (("range", b"meta"),),
    protocol_type: str = "consumer",
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
    needs_id: bool = True,
    can_skip: bool = True,
    client: str = "app",
) -> Join:
    return Join(
        member_id=member_id,
        instance_id=instance,
        protocol_type=protocol_type,
        protocols=protocols,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        client=Client(client, "/127.0.0.1"),
        needs_member_id=needs_id,
        can_skip_assignment=can_skip,
    )


def wants(*topics: str, user_data: bytes | None = None) -> bytes:
    return encode_subscription(Subscription(topics=topics, user_data=user_data), 1)


class Store:
    """What a group's saves amount to. `is_strict`: only what is stored may be deleted."""

    def __init__(self, *, is_strict: bool = True) -> None:
        self.is_strict = is_strict
        self.head: GroupHead | None = None
        self.members: dict[str, bytes] = {}
        self.assignments: dict[str, bytes] = {}

    def apply(self, save: Save) -> None:
        self.head = save.head
        for kept, changes in ((self.members, save.members), (self.assignments, save.assignments)):
            for name, value in changes.items():
                if value is None:
                    gone = kept.pop(name, None)
                    assert gone is not None or not self.is_strict, f"{name} is deleted and was not stored"
                else:
                    kept[name] = value

    def loaded(self, group_id: str = GROUP) -> Loaded:
        return Loaded(
            group_id=group_id,
            head=self.head,
            members=[(Key(f"/m/{name}"), raw) for name, raw in self.members.items()],
            assignments=[(Key(f"/a/{name}"), raw) for name, raw in self.assignments.items()],
        )


class Desk:
    """Feeds one machine, and keeps what it answers."""

    def __init__(self, limits: GroupLimits = LIMITS, store: Store | None = None, seed: int = 1) -> None:
        self.limits = limits
        self.store = store or Store()
        self.rng = seeded_rng(seed)
        self.now_ms = 1_000
        self.answers: dict[int, AnyReply] = {}
        self.noted: list[Noted] = []
        self.saves: list[Save] = []
        self.asked: set[int] = set()
        self._tokens = count()
        self.machine: Machine = self.make()

    def make(self) -> Machine:
        return ClassicGroup(self.store.loaded(), limits=self.limits, rng=self.rng, now=self.now)

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, WALL_MS + self.now_ms)

    @property
    def waiting(self) -> set[int]:
        return self.asked - set(self.answers)

    def restart(self) -> None:
        """Load the group anew from what was saved. Whoever waits will never hear anything."""
        self.asked -= self.waiting
        self.machine = self.make()

    def send(self, event: Event) -> int:
        token = next(self._tokens)
        self.asked.add(token)
        self.perform(self.machine.handle(event, token, self.now))
        return token

    def pass_ms(self, ms: int) -> None:
        """Let time pass, and wake the machine at each of its deadlines."""
        end_ms = self.now_ms + ms
        while (at_ms := self.machine.next_deadline_ms) is not None and at_ms <= end_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.perform(self.machine.handle(Tick(), -1, self.now))
            next_ms = self.machine.next_deadline_ms
            assert next_ms is None or next_ms > self.now_ms, "a tick acts on all that is due"
        self.now_ms = end_ms

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Save():
                    self.saves.append(effect)
                    self.store.apply(effect)
                case Reply():
                    assert effect.token in self.asked, f"nobody asked {effect}"
                    assert effect.token not in self.answers, f"answered twice: {effect}"
                    self.answers[effect.token] = effect.reply
                case Noted():
                    self.noted.append(effect)

    # Shorthands

    def heard(self, token: int, kind: type[A_REPLY]) -> A_REPLY:
        reply = self.answers[token]
        assert isinstance(reply, kind)
        return reply

    def ask(self, event: Event, kind: type[A_REPLY]) -> A_REPLY:
        return self.heard(self.send(event), kind)

    def new_id(self, client: str = "app", session_ms: int = SESSION_MS) -> str:
        reply = self.ask(join(client=client, session_ms=session_ms), JoinReply)
        assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
        return reply.member_id

    def beat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return self.ask(Beat(member_id=member_id, instance_id=instance, generation=generation), BeatReply).error

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        instance: str | None = None,
    ) -> int:
        given = tuple((assignments or {}).items())
        return self.send(Sync(member_id=member_id, instance_id=instance, generation=generation, assignments=given))

    def leave(self, member_id: str, instance: str | None = None) -> ErrorCode:
        leavers = (Leaver(member_id=member_id, instance_id=instance),)
        return self.ask(Leave(leavers=leavers), LeaveReply).leavers[0]

    def commit(self, member_id: str = "", epoch: int = -1, instance: str | None = None) -> ErrorCode:
        claim = CommitClaim(member_id=member_id, instance_id=instance, epoch=epoch, knows_epochs=True)
        return self.machine.check_commit(claim, self.now)

    def stable(self, *clients: str) -> list[str]:
        """Bring a group of dynamic members to its first stable generation; return their ids, the leader first."""
        ids = [self.new_id(client) for client in clients]
        tokens = [self.send(join(member_id, client=client)) for member_id, client in zip(ids, clients, strict=True)]
        self.pass_ms(2 * DELAY_MS)
        replies = [self.heard(token, JoinReply) for token in tokens]
        leader = replies[0].leader
        generation = replies[0].generation
        for member_id in ids:
            if member_id != leader:
                self.sync(member_id, generation)
        self.sync(leader, generation, {member_id: f"for {member_id}".encode() for member_id in ids})
        assert self.machine.state == "Stable"
        assert not self.waiting
        return sorted(ids, key=lambda member_id: (member_id != leader, ids.index(member_id)))

    def synced(self, token: int) -> SyncReply:
        return self.heard(token, SyncReply)

    def joined(self, token: int) -> JoinReply:
        return self.heard(token, JoinReply)
