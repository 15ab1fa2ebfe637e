"""Drive a KIP-848 group with clients of both protocols, lost answers, repeated requests, cut power and new topics.

The model is what each client believes to own: what it was told, until it has let go of it. Clients take what they are
given at once and let go as late as they like, but never after they have said so. After every step no partition is
owned by two clients that the group has reason to count as living, and no epoch has gone back. In the end, when
nothing disturbs them any more, all partitions that somebody wants are owned, each by one who wants it.

What is not in the model, because Kafka's protocol has no means against it: a request that is overtaken by a later one
of the same member, on another connection.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.groups import consumer_core, reconciliation
from headrace.groups.consumer_core import GroupCore
from headrace.groups.consumer_members import Member, Roster
from headrace.groups.consumer_records import ConsumerMemberRecord, MemberState
from headrace.groups.protocol import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    AnyReply,
    Beat,
    BeatReply,
    ConsumerBeatReply,
    Effect,
    Event,
    JoinReply,
    Leave,
    Leaver,
    Partitions,
    Save,
    Sync,
    SyncReply,
    TopicFacts,
    TopicsImage,
)
from headrace.model.error_codes import ErrorCode
from headrace.model.subscriptions import Subscription, decode_assignment, encode_subscription
from headrace.model.topics import TopicId
from tests.unit.groups.consumer_desk import ConsumerDesk, heartbeat, image_of
from tests.unit.groups.desk import join

CLIENTS = 5
STATIC = (3, 4)
CLASSIC_CLIENTS = 2
TOPICS = ("a", "b", "c")
SESSION_MS = 6_000
REBALANCE_MS = 9_000
BEAT_MS = 1_000
SETTLING_BEATS = 60

Owned = set[tuple[TopicId, int]]

FATES = st.sampled_from(["answered"] * 6 + ["lost", "lost", "repeated", "cut 0", "cut 1", "cut 2"])


@dataclass
class Client:
    """What both kinds have in common. `is_out`: the group had reason to give up on it, and it does not know yet."""

    number: int
    member_id: str = ""
    epoch: int = JOINING_EPOCH
    owned: Owned = field(default_factory=set)
    kept: Owned = field(default_factory=set)
    topics: tuple[str, ...] = TOPICS[:1]
    is_running: bool = False
    is_out: bool = False
    last_heard_ms: int = 0
    processes: int = 0

    def drop_all(self) -> None:
        self.owned, self.kept, self.epoch, self.is_out = set(), set(), JOINING_EPOCH, False

    def let_go(self) -> None:
        self.owned &= self.kept

    def told(self, assignment: Owned) -> None:
        """Take what is new at once; what is to be let go of may wait."""
        self.kept = assignment
        self.owned |= assignment


@dataclass
class ModernClient(Client):
    """A client that speaks KIP-848."""

    reported: Owned | None = None
    said: tuple[str, ...] = ()
    must_say_all: bool = True

    @property
    def instance(self) -> str | None:
        return f"static {self.number}" if self.number in STATIC else None

    def event(self) -> Event:
        if self.epoch == JOINING_EPOCH:
            assert not self.owned
            return heartbeat(
                self.member_id, 0, instance=self.instance, topics=self.topics, rebalance_ms=REBALANCE_MS, owned={}
            )
        is_new = self.owned != self.reported
        return heartbeat(
            self.member_id,
            self.epoch,
            instance=self.instance,
            topics=self.topics if self.must_say_all or self.topics != self.said else None,
            rebalance_ms=REBALANCE_MS if self.must_say_all else -1,
            owned=by_topic(self.owned) if self.must_say_all or is_new else None,
        )


@dataclass
class ClassicClient(Client):
    """A client that speaks the classic protocol. An eager one lets go of everything before it joins."""

    state: str = "out"

    @property
    def is_eager(self) -> bool:
        return self.number % 2 == 0

    def event(self, names: dict[TopicId, str]) -> Event:
        if self.state == "in":
            return Beat(member_id=self.member_id, instance_id=None, generation=self.epoch)
        if self.state == "joined":
            return Sync(member_id=self.member_id, instance_id=None, generation=self.epoch)
        if self.is_eager:
            self.kept = set()
        self.let_go()
        owned = by_topic(self.owned)
        held = tuple((names[topic], tuple(sorted(parts))) for topic, parts in owned.items() if topic in names)
        metadata = encode_subscription(Subscription(topics=self.topics, owned=held), 1)
        return join(
            self.member_id,
            protocols=(("any", metadata),),
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            needs_id=False,
        )

    def drop_all(self) -> None:
        super().drop_all()
        self.state = "out"


def by_topic(owned: Owned) -> Partitions:
    return {topic: frozenset(part for one, part in owned if one == topic) for topic in {topic for topic, _ in owned}}


def flat(partitions: Partitions) -> Owned:
    return {(topic, part) for topic, parts in partitions.items() for part in parts}


class ConsumerMachine(RuleBasedStateMachine):
    """A group, its clients, and the topics they read."""

    members_at_once = consumer_core.MAX_MEMBERS_AT_ONCE

    def __init__(self) -> None:
        super().__init__()
        consumer_core.MAX_MEMBERS_AT_ONCE = self.members_at_once
        self.image = image_of(a=4, b=2)
        self.desk = ConsumerDesk(image=self.image, session_ms=SESSION_MS)
        self.modern = [ModernClient(number) for number in range(CLIENTS)]
        self.classic = [ClassicClient(number) for number in range(CLASSIC_CLIENTS)]
        self.highest: dict[str, int] = {}
        self.group_epoch = 0
        self.revoking_since_ms: dict[str, int] = {}
        self.incarnations = dict.fromkeys(TOPICS, 0)

    def clients(self) -> Iterator[Client]:
        yield from self.modern
        yield from self.classic

    # Requests and their fates

    def send(self, client: Client, event: Event, fate: str) -> AnyReply | None:
        """Deliver a request; return the answer, unless it is lost."""
        reply: AnyReply | None
        if fate.startswith("cut"):
            reply = self.desk.cut(event, int(fate[-1]))
        else:
            reply = self.desk.answers[self.desk.send(event)]
            client.last_heard_ms = self.desk.now_ms
            if fate == "repeated":
                reply = self.desk.answers[self.desk.send(event)]
        self.look()
        return None if fate == "lost" else reply

    def beat(self, client: ModernClient, fate: str = "answered") -> None:
        # Whoever sends a request again has not heard the answer to the first, so it says everything.
        client.must_say_all |= fate == "repeated"
        event = client.event()
        says_topics, says_owned = client.topics, set(client.owned)
        reply = self.send(client, event, fate)
        if reply is None:
            client.must_say_all = True
            return
        assert isinstance(reply, ConsumerBeatReply)
        if reply.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            assert client.is_out or reply.error is ErrorCode.FENCED_MEMBER_EPOCH, "nobody is put out without a reason"
            client.drop_all()
        elif reply.error in (ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.drop_all()
        else:
            assert reply.error is ErrorCode.NONE, reply
            self.grows(client.member_id, reply.member_epoch)
            client.epoch, client.is_out, client.must_say_all = reply.member_epoch, False, False
            client.said, client.reported = says_topics, says_owned
            if reply.assignment is not None:
                client.told(flat(reply.assignment))

    def act(self, client: ClassicClient, fate: str = "answered") -> None:
        reply = self.send(client, client.event({one.id: one.name for one in self.image.by_name.values()}), fate)
        match reply:
            case None:
                # Without an answer it joins anew, and so does a library.
                client.state = "out"
            case JoinReply(error=ErrorCode.NONE):
                client.member_id, client.epoch, client.is_out = reply.member_id, reply.generation, False
                self.grows(client.member_id, client.epoch)
                client.state = "joined"
            case SyncReply(error=ErrorCode.NONE):
                given = decode_assignment(reply.assignment).partitions
                ids = {name: facts.id for name, facts in self.image.by_name.items()}
                client.told({(ids[name], part) for name, parts in given for part in parts})
                client.state = "out" if client.owned - client.kept else "in"
            case BeatReply(error=ErrorCode.NONE):
                pass
            case JoinReply() | SyncReply() | BeatReply():
                if reply.error is ErrorCode.REBALANCE_IN_PROGRESS:
                    client.state = "out"
                else:
                    client.drop_all()
                    if reply.error is ErrorCode.UNKNOWN_MEMBER_ID:
                        client.member_id = ""

    def grows(self, member_id: str, epoch: int) -> None:
        assert epoch >= self.highest.get(member_id, 1), "a member's epoch never goes back"
        self.highest[member_id] = epoch

    # What clients do

    @initialize(modern=st.integers(0, CLIENTS), classic=st.integers(0, CLASSIC_CLIENTS))
    def some_begin(self, modern: int, classic: int) -> None:
        for number in range(modern):
            self.some_client_beats(number, "answered")
        for number in range(classic):
            self.some_classic_client_acts(number, "answered")

    @rule(number=st.integers(0, CLIENTS - 1), fate=FATES)
    def some_client_beats(self, number: int, fate: str) -> None:
        client = self.modern[number]
        if not client.is_running:
            client.processes += 1
            client.member_id = f"{number} {client.processes}"
            client.is_running = client.must_say_all = True
            client.drop_all()
        self.beat(client, fate)

    @rule(number=st.integers(0, CLASSIC_CLIENTS - 1), fate=FATES)
    def some_classic_client_acts(self, number: int, fate: str) -> None:
        client = self.classic[number]
        client.is_running = True
        self.act(client, fate)

    @rule()
    def everybody_acts(self) -> None:
        for client in self.modern:
            if client.is_running:
                client.let_go()
                self.beat(client)
        for classic in self.classic:
            if classic.is_running:
                self.act(classic)

    @rule(number=st.integers(0, CLIENTS + CLASSIC_CLIENTS - 1))
    def some_client_lets_go(self, number: int) -> None:
        list(self.clients())[number].let_go()

    @rule(number=st.integers(0, CLIENTS - 1), topics=st.sets(st.sampled_from(TOPICS)))
    def some_client_wants_something_else(self, number: int, topics: set[str]) -> None:
        self.modern[number].topics = tuple(sorted(topics))

    @rule(
        number=st.integers(0, CLIENTS + CLASSIC_CLIENTS - 1),
        how=st.sampled_from(["leaves", "rests", "dies"]),
        fate=FATES,
    )
    def some_client_goes(self, number: int, how: str, fate: str) -> None:
        if how == "dies":
            client = list(self.clients())[number]
            client.is_running = False
            client.drop_all()
            client.member_id = ""
        elif number < CLIENTS:
            self.leave(self.modern[number], fate, for_good=how == "leaves")
        else:
            self.leave_classic(self.classic[number - CLIENTS], fate)

    def leave(self, client: ModernClient, fate: str, *, for_good: bool) -> None:
        if not client.is_running or client.epoch == JOINING_EPOCH:
            return
        epoch = LEAVING_EPOCH if for_good or client.instance is None else STATIC_LEAVING_EPOCH
        client.drop_all()
        client.is_running = False
        self.send(client, heartbeat(client.member_id, epoch, instance=client.instance), fate)

    def leave_classic(self, client: ClassicClient, fate: str) -> None:
        if client.is_running and client.member_id:
            client.is_running = False
            client.drop_all()
            self.send(client, Leave(leavers=(Leaver(member_id=client.member_id, instance_id=None),)), fate)
            client.member_id = ""

    # What happens around them

    @rule()
    def power_fails(self) -> None:
        self.desk.restart()
        self.look()

    @rule(ms=st.sampled_from([10, 500, 2_500, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, ms: int) -> None:
        self.desk.pass_ms(ms)
        self.look()

    @rule(name=st.sampled_from(TOPICS))
    def topic_grows_or_is_created(self, name: str) -> None:
        counts = {one.name: one.partition_count for one in self.image.by_name.values()}
        if counts.get(name, 0) < 8:
            self.turn_to(counts | {name: counts.get(name, 0) + 2})

    @precondition(lambda self: self.image.by_name)
    @rule(data=st.data())
    def topic_is_deleted(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.image.by_name)))
        self.incarnations[name] += 1
        self.turn_to({one.name: one.partition_count for one in self.image.by_name.values() if one.name != name})

    def turn_to(self, counts: dict[str, int]) -> None:
        by_name: dict[str, TopicFacts] = {}
        by_id: dict[TopicId, TopicFacts] = {}
        for name, count in counts.items():
            one = image_of(incarnation=self.incarnations[name], **{name: count})
            by_name.update(one.by_name)
            by_id.update(one.by_id)
        self.image = TopicsImage(revision=self.image.revision + 1, by_name=by_name, by_id=by_id)
        self.desk.turn_to(self.image)
        self.look()

    # What must be true

    def look(self) -> None:
        """Take note of who was put out, and whether there was a reason."""
        records = {record.member_id: record for record in self.desk.group.member_records()}
        now_ms = self.desk.now_ms
        for client in self.clients():
            is_member = client.member_id and client.epoch != JOINING_EPOCH and not client.is_out
            if is_member and client.member_id not in records:
                since_ms = self.revoking_since_ms.get(client.member_id, now_ms)
                was_silent = now_ms - client.last_heard_ms >= SESSION_MS
                is_classic = isinstance(client, ClassicClient)
                assert was_silent or is_classic or now_ms - since_ms >= REBALANCE_MS, f"{client} is out"
                client.is_out = True
        for member_id in [*self.revoking_since_ms]:
            if member_id not in records or records[member_id].state is not MemberState.REVOKING:
                del self.revoking_since_ms[member_id]
        for member_id, record in records.items():
            if record.state is MemberState.REVOKING:
                self.revoking_since_ms.setdefault(member_id, now_ms)

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owners: dict[tuple[TopicId, int], Client] = {}
        for client in self.clients():
            for partition in set() if client.is_out else client.owned:
                other = owners.setdefault(partition, client)
                assert other is client, f"{partition} is owned by {other} and {client}"

    @invariant()
    def epochs_only_grow(self) -> None:
        head = self.desk.machine.head
        assert head.epoch >= self.group_epoch
        assert head.target_epoch <= head.epoch
        self.group_epoch = head.epoch

    @invariant()
    def what_is_known_is_what_is_stored(self) -> None:
        stored = self.desk.make()
        assert stored.member_records() == self.desk.group.member_records()
        assert stored.describe().consumer_members == self.desk.group.describe().consumer_members
        assert stored.state == self.desk.machine.state

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            consumer_core.MAX_MEMBERS_AT_ONCE = ConsumerMachine.members_at_once

    def settle(self) -> None:
        """Nothing disturbs them any more: all who run share all that they want."""
        for _ in range(SETTLING_BEATS):
            self.everybody_acts()
            self.desk.pass_ms(BEAT_MS)
            self.look()
            self.no_partition_has_two_owners()
        running = [client for client in self.clients() if client.is_running]
        assert {client.member_id for client in running} == {one.member_id for one in self.desk.group.member_records()}
        assert self.desk.machine.state == ("Stable" if running else "Empty")
        by_name = self.image.by_name
        wanted = {by_name[name].id for client in running for name in client.topics if name in by_name}
        all_partitions = {
            (topic, part) for topic in wanted for part in range(self.image.by_id[topic].partition_count)
        }
        assert set().union(*(client.owned for client in running)) == all_partitions
        for client in running:
            topics = {by_name[name].id for name in client.topics if name in by_name}
            assert {topic for topic, _ in client.owned} <= topics


class BatchingMachine(ConsumerMachine):
    """The same with targets that come a moment later, as in large groups."""

    members_at_once = 1


ConsumerMachine.TestCase.settings = settings(stateful_step_count=60)
BatchingMachine.TestCase.settings = settings(stateful_step_count=60)
TestConsumerGroups = ConsumerMachine.TestCase
TestBatchingGroups = BatchingMachine.TestCase


# Planted bugs


def give_before_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Roster, "taken_from", lambda self, member: lambda topic_id, partition: False)
    monkeypatch.setattr(Roster, "_take", lambda self, member, *helds: None)
    monkeypatch.setattr(Roster, "_let_go", lambda self, *helds: None)


def believe_in_revocation_unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciliation, "_owns_any", lambda owned, revoking: False)


def forget_revocations_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Member.record

    def forgetful(self: Member) -> ConsumerMemberRecord:
        whole = record(self)
        return ConsumerMemberRecord(
            **{**{name: getattr(whole, name) for name in whole.__struct_fields__}, "revoking": ()}
        )

    monkeypatch.setattr(Member, "record", forgetful)


def answer_before_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = GroupCore.finish

    def hasty(self: GroupCore, token: int | None = None, reply: AnyReply | None = None) -> list[Effect]:
        return sorted(finish(self, token, reply), key=lambda effect: isinstance(effect, Save))

    monkeypatch.setattr(GroupCore, "finish", hasty)


def keep_no_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    touch = GroupCore.touch

    def short(self: GroupCore, member: Member) -> None:
        self.config = replace(self.config, session_timeout_ms=SESSION_MS // 2)
        touch(self, member)

    monkeypatch.setattr(GroupCore, "touch", short)


def overlook_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupCore, "bump_if_topics_changed", lambda self: None)


@pytest.mark.parametrize(
    "plant",
    [
        give_before_release,
        believe_in_revocation_unheard,
        forget_revocations_in_the_store,
        answer_before_saving,
        keep_no_sessions,
        overlook_topics,
    ],
)
def test_planted_bugs_are_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            ConsumerMachine,
            settings=settings(
                max_examples=3_000, stateful_step_count=60, phases=[Phase.generate], database=None, derandomize=True
            ),
        )
