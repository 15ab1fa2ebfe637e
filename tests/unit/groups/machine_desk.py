"""A group that may change its protocol, on a desk."""

from headrace.groups.machine import GroupMachine
from headrace.groups.protocol import GroupLimits, Join, JoinReply, SyncReply, TopicsImage
from headrace.groups.records import GroupKind
from headrace.model.error_codes import ErrorCode
from headrace.model.subscriptions import (
    Assignment,
    Subscription,
    TopicPartitions,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from tests.unit.groups.consumer_desk import ConsumerDesk, FixedPace
from tests.unit.groups.desk import DELAY_MS, LIMITS, REBALANCE_MS, SESSION_MS, Store, join

VERSION = 3


class MachineDesk(ConsumerDesk):
    """Feeds a `GroupMachine`."""

    def __init__(
        self, limits: GroupLimits = LIMITS, *, image: TopicsImage | None = None, session_ms: int = 45_000
    ) -> None:
        # A member may come and go within one change of protocol: it is deleted, and was never stored.
        super().__init__(limits, Store(is_strict=False), image=image, session_ms=session_ms)

    def make(self) -> GroupMachine:  # type: ignore[override]
        return GroupMachine(
            self.store.loaded(),
            limits=self.limits,
            rng=self.rng,
            now=self.now,
            image=self.image,
            config=self.config,
            pace=FixedPace(),
        )

    @property
    def kind(self) -> GroupKind:
        return self.machine.head.kind

    @property
    def stored_kind(self) -> GroupKind:
        assert self.store.head is not None
        return self.store.head.kind

    def classic_pair(self) -> tuple["ClassicClient", "ClassicClient"]:
        """Return a stable classic group of two that shares four partitions; the first leads."""
        a, b = ClassicClient(self, "a"), ClassicClient(self, "b")
        a.get_id()
        b.get_id()
        tokens = [self.send(a.join()), self.send(b.join())]
        self.pass_ms(2 * DELAY_MS)
        for client, token in zip((a, b), tokens, strict=True):
            client.hear_join(self.joined(token))
        given = {a.member_id: assigned(orders=(0, 1)), b.member_id: assigned(orders=(2, 3))}
        waiting = self.sync(b.member_id, b.generation)
        a.hear_sync(self.synced(self.sync(a.member_id, a.generation, given)))
        b.hear_sync(self.synced(waiting))
        assert self.machine.state == "Stable"
        return a, b


def assigned(**partitions: tuple[int, ...]) -> bytes:
    return encode_assignment(Assignment(partitions=tuple(partitions.items())), VERSION)


class ClassicClient:
    """A classic consumer, cooperative or eager as its test lets it be."""

    def __init__(self, desk: MachineDesk, name: str, *, instance: str | None = None) -> None:
        self.desk = desk
        self.name = name
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.owned: TopicPartitions = ()

    def metadata(self, topics: tuple[str, ...] = ("orders",), *, owned: TopicPartitions | None = None) -> bytes:
        held = self.owned if owned is None else owned
        subscription = Subscription(topics=topics, owned=held, generation_id=self.generation)
        return encode_subscription(subscription, VERSION)

    def join(self, *, owned: TopicPartitions | None = None, topics: tuple[str, ...] = ("orders",)) -> Join:
        return join(
            self.member_id,
            instance=self.instance,
            protocols=(("cooperative-sticky", self.metadata(topics, owned=owned)),),
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            client=self.name,
        )

    def get_id(self) -> None:
        reply = self.desk.ask(self.join(), JoinReply)
        assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
        self.member_id = reply.member_id

    def rejoin(self, *, owned: TopicPartitions | None = None) -> JoinReply:
        reply = self.desk.ask(self.join(owned=owned), JoinReply)
        self.hear_join(reply)
        return reply

    def hear_join(self, reply: JoinReply) -> None:
        assert reply.error is ErrorCode.NONE, reply
        self.member_id, self.generation = reply.member_id, reply.generation

    def hear_sync(self, reply: SyncReply) -> None:
        assert reply.error is ErrorCode.NONE, reply
        self.owned = decode_assignment(reply.assignment).partitions

    def sync_again(self) -> TopicPartitions:
        self.hear_sync(self.desk.synced(self.desk.sync(self.member_id, self.generation, instance=self.instance)))
        return self.owned

    def beat(self) -> ErrorCode:
        return self.desk.beat(self.member_id, self.generation, self.instance)
