"""A KIP-848 group on a desk, with clients that do what well-behaved clients do."""

from dataclasses import dataclass, field

from headrace.groups.consumer import ConsumerGroup
from headrace.groups.protocol import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    AnyReply,
    Client,
    CommitClaim,
    ConfigChanged,
    ConsumerBeat,
    ConsumerBeatReply,
    ConsumerMember,
    Event,
    GroupConfig,
    GroupLimits,
    Partitions,
    Reply,
    TopicFacts,
    TopicsChanged,
    TopicsImage,
)
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import TopicId
from tests.unit.groups.desk import LIMITS, Desk, Store

SESSION_MS = 45_000
REBALANCE_MS = 60_000
HOST = Client("app", "/127.0.0.1")
MAX_ROUNDS = 50


def topic_id(name: str, incarnation: int = 0) -> TopicId:
    return TopicId(name.encode().ljust(15, b".")[:15] + bytes([incarnation]))


def image_of(revision: int = 1, incarnation: int = 0, **partition_counts: int) -> TopicsImage:
    facts = [
        TopicFacts(id=topic_id(name, incarnation), name=name, partition_count=count)
        for name, count in partition_counts.items()
    ]
    return TopicsImage(
        revision=revision, by_name={one.name: one for one in facts}, by_id={one.id: one for one in facts}
    )


def parts(**partitions: list[int]) -> Partitions:
    return {topic_id(name): frozenset(numbers) for name, numbers in partitions.items()}


class FixedPace:
    """Says which of the two intervals was asked for."""

    busy_interval_ms = 200

    def stable_interval_ms(self, member_count: int) -> int:
        return 1_000 + member_count


def heartbeat(
    member_id: str,
    epoch: int,
    *,
    instance: str | None = None,
    topics: tuple[str, ...] | None = None,
    regex: str | None = None,
    assignor: str | None = None,
    rack: str | None = None,
    rebalance_ms: int = -1,
    owned: Partitions | None = None,
    client: Client = HOST,
    turn_ms: int | None = None,
) -> ConsumerBeat:
    return ConsumerBeat(
        member_id=member_id,
        member_epoch=epoch,
        instance_id=instance,
        rack=rack,
        rebalance_timeout_ms=rebalance_ms,
        topics=topics,
        regex=regex,
        assignor=assignor,
        owned=owned,
        client=client,
        turn_ms=turn_ms,
    )


class ConsumerDesk(Desk):
    """Feeds one KIP-848 machine."""

    def __init__(
        self,
        limits: GroupLimits = LIMITS,
        store: Store | None = None,
        *,
        image: TopicsImage | None = None,
        interval_ms: int | None = None,
        session_ms: int = SESSION_MS,
    ) -> None:
        self.image = image_of(orders=4) if image is None else image
        self.config = GroupConfig(session_timeout_ms=session_ms, heartbeat_interval_ms=interval_ms)
        super().__init__(limits, store)

    def make(self) -> ConsumerGroup:
        return ConsumerGroup(
            self.store.loaded(),
            limits=self.limits,
            rng=self.rng,
            now=self.now,
            image=self.image,
            config=self.config,
            pace=FixedPace(),
        )

    @property
    def group(self) -> ConsumerGroup:
        assert isinstance(self.machine, ConsumerGroup)
        return self.machine

    def heartbeat(self, event: ConsumerBeat) -> ConsumerBeatReply:
        return self.ask(event, ConsumerBeatReply)

    def join_group(
        self,
        member_id: str,
        topics: tuple[str, ...] | None = ("orders",),
        *,
        instance: str | None = None,
        regex: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = REBALANCE_MS,
    ) -> ConsumerBeatReply:
        return self.heartbeat(
            heartbeat(
                member_id,
                JOINING_EPOCH,
                topics=topics,
                regex=regex,
                instance=instance,
                assignor=assignor,
                rebalance_ms=rebalance_ms,
                owned={},
            )
        )

    def cut(self, event: Event, count: int) -> AnyReply | None:
        """Carry out only the first effects of an event, then cut the power; return the answer if it got away."""
        effects = self.machine.handle(event, -1, self.now)[:count]
        answer = None
        for effect in effects:
            if isinstance(effect, Reply):
                answer = effect.reply
            else:
                self.perform([effect])
        self.restart()
        return answer

    def turn_to(self, image: TopicsImage) -> None:
        self.image = image
        self.perform(self.machine.handle(TopicsChanged(image=image), -1, self.now))

    def configure(self, config: GroupConfig) -> None:
        self.config = config
        self.perform(self.machine.handle(ConfigChanged(config=config), -1, self.now))

    def described(self) -> dict[str, ConsumerMember]:
        return {member.member_id: member for member in self.group.describe().consumer_members}

    def claim(self, member_id: str, epoch: int, *, knows_epochs: bool = True) -> CommitClaim:
        return CommitClaim(member_id=member_id, instance_id=None, epoch=epoch, knows_epochs=knows_epochs)


@dataclass
class Consumer:
    """A client: it owns what it was told, and lets go of the rest at once and says so."""

    desk: ConsumerDesk
    id: str
    topics: tuple[str, ...] | None = ("orders",)
    regex: str | None = None
    instance: str | None = None
    assignor: str | None = None
    epoch: int = JOINING_EPOCH
    owned: Partitions = field(default_factory=dict)
    reported: Partitions | None = None
    interval_ms: int = 0

    def beat(self) -> ConsumerBeatReply:
        """Send a heartbeat, with what is owned if that has changed since the last report."""
        if self.epoch == JOINING_EPOCH:
            reply = self.desk.join_group(
                self.id, self.topics, regex=self.regex, instance=self.instance, assignor=self.assignor
            )
            self.reported = {}
        else:
            report = None if self.reported == self.owned else self.owned
            reply = self.desk.heartbeat(heartbeat(self.id, self.epoch, instance=self.instance, owned=report))
            self.reported = self.owned
        assert reply.error is ErrorCode.NONE, reply
        assert reply.member_epoch >= self.epoch, "epochs only grow"
        self.epoch = reply.member_epoch
        self.interval_ms = reply.heartbeat_interval_ms
        if reply.assignment is not None:
            self.owned = reply.assignment
        return reply

    def leave(self, epoch: int = LEAVING_EPOCH) -> ConsumerBeatReply:
        reply = self.desk.heartbeat(heartbeat(self.id, epoch, instance=self.instance))
        self.epoch, self.owned = JOINING_EPOCH, {}
        return reply

    def count(self) -> int:
        return sum(map(len, self.owned.values()))


def settle(desk: ConsumerDesk, *consumers: Consumer) -> int:
    """Let everybody send heartbeats until the group is stable; return how many rounds that took."""
    for round_number in range(MAX_ROUNDS):
        if desk.machine.state == "Stable" and all(one.epoch == desk.machine.head.epoch for one in consumers):
            return round_number
        for consumer in consumers:
            consumer.beat()
            held = [(topic, part) for one in consumers for topic, numbers in one.owned.items() for part in numbers]
            assert len(held) == len(set(held)), "a partition has one owner"
    raise AssertionError(f"the group does not come to rest: {desk.described()}")


def stable_pair(desk: ConsumerDesk) -> tuple[Consumer, Consumer]:
    """Return two members that share four partitions, at rest."""
    a, b = Consumer(desk, "a"), Consumer(desk, "b")
    settle(desk, a, b)
    assert (a.count(), b.count()) == (2, 2)
    return a, b
