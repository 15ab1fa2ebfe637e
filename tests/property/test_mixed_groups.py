"""Drive a group with clients of both protocols that come, go, pause and change sides, and with coordinators that die.

Each client owns what it may work on. A classic one is eager (it lets go of everything before it joins) or cooperative
(it joins with what it owns, lets go of what it was not given, and joins again); one of KIP-848 lets go of what it is
told to and says so. At no moment may two of them own the same partition, as long as each is in time with its
heartbeats; and when nothing disturbs them any more, all partitions are owned, and the protocol is the one that those
who are left speak.
"""

from collections.abc import Iterator
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.groups.protocol import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    AnyReply,
    Beat,
    ConsumerBeatReply,
    Event,
    JoinReply,
    Leave,
    Leaver,
    Partitions,
    Sync,
    SyncReply,
)
from headrace.groups.records import GroupKind
from headrace.model.error_codes import ErrorCode
from headrace.model.subscriptions import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tests.unit.groups.consumer_desk import heartbeat, image_of, topic_id
from tests.unit.groups.desk import join
from tests.unit.groups.machine_desk import VERSION, MachineDesk

CLIENTS = 4
STATIC = (3,)
COUNT = 5
TOPIC = "orders"
BEAT_MS = 1_000
SESSION_MS = 6_000
REBALANCE_MS = 20_000
SETTLING_ROUNDS = 120
COME_AGAIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED)
START_ANEW = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
)


class Client:
    """One application, that speaks one of the protocols at a time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.instance = f"static {number}" if number in STATIC else None
        self.is_running = False
        self.is_paused = False
        self.is_classic = True
        self.is_eager = False
        self.heard_at_ms = 0
        self.lives = 0
        self.forget()

    def forget(self) -> None:
        """Let go of everything, and be nobody."""
        self.member_id = ""
        self.epoch = JOINING_EPOCH
        self.generation = -1
        self.state = "out"
        self.token: int | None = None
        self.owned: frozenset[int] = frozenset()
        self.reported: frozenset[int] | None = None
        """What it has said to own; `None`: it has to say everything, as it does first, and after a lost answer."""
        self.others: tuple[tuple[str, str | None, bytes], ...] = ()

    def start(self, *, is_classic: bool, now_ms: int) -> None:
        self.forget()
        self.is_running, self.is_paused, self.is_classic = True, False, is_classic
        self.lives += 1
        self.heard_at_ms = now_ms

    # What it sends

    def next_event(self) -> Event | None:
        if self.token is not None:
            return None
        if not self.is_classic:
            return self._consumer_beat()
        if self.state == "out":
            if self.is_eager:
                self.owned = frozenset()
            return join(
                self.member_id,
                instance=self.instance,
                protocols=(("assignor", self._metadata()),),
                session_ms=SESSION_MS,
                rebalance_ms=REBALANCE_MS,
            )
        if self.state == "joined":
            return Sync(
                member_id=self.member_id,
                instance_id=self.instance,
                generation=self.generation,
                assignments=tuple(self._deal()),
            )
        return Beat(member_id=self.member_id, instance_id=self.instance, generation=self.generation)

    def _consumer_beat(self) -> Event:
        if self.epoch == JOINING_EPOCH:
            self.member_id = self.member_id or f"kip-848 {self.number} {self.lives}"
            self.reported = None
        says_all = self.reported is None
        is_report_due = self.reported != self.owned
        self.reported = self.owned
        return heartbeat(
            self.member_id,
            self.epoch,
            instance=self.instance,
            topics=(TOPIC,) if says_all else None,
            rebalance_ms=REBALANCE_MS if says_all else -1,
            owned=_partitions(self.owned) if is_report_due else None,
        )

    def _metadata(self) -> bytes:
        owned = ((TOPIC, tuple(sorted(self.owned))),) if self.owned else ()
        subscription = Subscription(topics=(TOPIC,), owned=owned, generation_id=self.generation)
        return encode_subscription(subscription, VERSION)

    def _deal(self) -> Iterator[tuple[str, bytes]]:
        """Assign as leader. A cooperative one gives nobody what another one has not let go of."""
        owners: dict[int, tuple[int, str]] = {}
        for name, _, metadata in self.others:
            subscription = decode_subscription(metadata)
            for _, claimed in subscription.owned:
                for number in claimed:
                    owners[number] = max(owners.get(number, (-2, "")), (subscription.generation_id, name))
        names = sorted(name for name, _, _ in self.others)
        for name in names:
            numbers = [
                number
                for number in range(COUNT)
                if names[number % len(names)] == name and owners.get(number, (0, name))[1] == name
            ]
            yield name, encode_assignment(Assignment(partitions=((TOPIC, tuple(numbers)),)), VERSION)

    # What it hears

    def hear(self, reply: AnyReply, now_ms: int) -> None:
        self.token = None
        error = reply.error
        if error in START_ANEW:
            keeps_id = error is ErrorCode.ILLEGAL_GENERATION and self.member_id
            self.forget()
            self.member_id = keeps_id or ""
            return
        assert error is ErrorCode.NONE or error in COME_AGAIN or error is ErrorCode.UNRELEASED_INSTANCE_ID, reply
        self.heard_at_ms = now_ms
        if isinstance(reply, JoinReply) and error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
        if error is not ErrorCode.NONE:
            self.state = "out"
        elif isinstance(reply, JoinReply):
            self.member_id, self.generation, self.state = reply.member_id, reply.generation, "joined"
            self.others = () if reply.skip_assignment else reply.members
        elif isinstance(reply, SyncReply):
            self._hear_assignment(reply)
        elif isinstance(reply, ConsumerBeatReply):
            assert reply.member_epoch >= self.epoch, "epochs only grow"
            self.member_id, self.epoch = reply.member_id, reply.member_epoch
            if reply.assignment is not None:
                self.owned = reply.assignment.get(topic_id(TOPIC), frozenset())

    def _hear_assignment(self, reply: SyncReply) -> None:
        given = frozenset(
            number for _, numbers in decode_assignment(reply.assignment).partitions for number in numbers
        )
        has_to_let_go = bool(self.owned - given)
        self.owned = given
        self.state = "out" if has_to_let_go and not self.is_eager else "in"


class MixedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.desk = MachineDesk(image=image_of(**{TOPIC: COUNT}), session_ms=SESSION_MS)
        self.clients = [Client(number) for number in range(CLIENTS)]
        self.tokens = count(1_000_000)

    @initialize(is_eager=st.booleans())
    def agree(self, is_eager: bool) -> None:
        for client in self.clients:
            client.is_eager = is_eager

    @rule(number=st.integers(0, CLIENTS - 1), is_classic=st.booleans())
    def start(self, number: int, is_classic: bool) -> None:
        """Start a client, or start it again with another protocol: nobody hears that its old self is gone."""
        self.clients[number].start(is_classic=is_classic, now_ms=self.desk.now_ms)

    @precondition(lambda self: any(client.is_running for client in self.clients))
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.act(data.draw(st.sampled_from([client for client in self.clients if client.is_running])))

    @precondition(lambda self: any(client.is_running for client in self.clients))
    @rule(data=st.data(), is_last_act=st.booleans())
    def stop(self, data: st.DataObject, is_last_act: bool) -> None:
        """A client leaves, which may be the last that its coordinator hears of."""
        client = data.draw(st.sampled_from([client for client in self.clients if client.is_running]))
        if client.member_id and client.is_classic:
            self.desk.send(Leave(leavers=(Leaver(member_id=client.member_id, instance_id=client.instance),)))
        elif client.member_id:
            self.desk.send(heartbeat(client.member_id, LEAVING_EPOCH, instance=client.instance))
        client.is_running = False
        client.forget()
        self.deliver()
        if is_last_act:
            self.restart()

    @rule(number=st.integers(0, CLIENTS - 1))
    def pause(self, number: int) -> None:
        self.clients[number].is_paused = not self.clients[number].is_paused

    @rule(rounds=st.sampled_from([1, 2, 7, 25]))
    def live(self, rounds: int) -> None:
        for _ in range(rounds):
            self.live_on()

    @rule()
    def restart(self) -> None:
        self.desk.restart()
        self.break_connections()

    @precondition(lambda self: any(client.is_running and client.token is None for client in self.clients))
    @rule(data=st.data(), effects=st.integers(0, 3))
    def die_halfway(self, data: st.DataObject, effects: int) -> None:
        """Cut the power after some of what a request brought about."""
        ready = [client for client in self.clients if client.is_running and client.token is None]
        client = data.draw(st.sampled_from(ready))
        event = client.next_event()
        assert event is not None
        token = next(self.tokens)
        self.desk.asked.add(token)
        self.desk.perform(self.desk.machine.handle(event, token, self.desk.now)[:effects])
        if token in self.desk.answers:
            client.hear(self.desk.answers[token], self.desk.now_ms)
        else:
            client.reported = None
        self.deliver()
        self.restart()

    # Clients and their time

    def act(self, client: Client) -> None:
        event = client.next_event()
        if event is not None:
            client.token = self.desk.send(event)
        self.deliver()

    def live_on(self) -> None:
        for client in self.clients:
            if client.is_running and not client.is_paused:
                # Between two beats a client has time for everything that it can do by itself.
                for _ in range(4):
                    self.act(client)
                    self.one_owner()
        self.desk.pass_ms(BEAT_MS)
        self.deliver()
        for client in self.clients:
            if client.token is not None:
                client.heard_at_ms = self.desk.now_ms  # it waits for an answer, and is waited for

    def deliver(self) -> None:
        for client in self.clients:
            if client.token is not None and client.token in self.desk.answers:
                client.hear(self.desk.answers[client.token], self.desk.now_ms)

    def break_connections(self) -> None:
        for client in self.clients:
            if client.token is not None:
                client.token = None
                if client.state == "joined":
                    client.state = "out"

    # What must hold

    @invariant()
    def one_owner(self) -> None:
        owners: dict[int, Client] = {}
        for client in self.clients:
            is_in_time = self.desk.now_ms - client.heard_at_ms < SESSION_MS
            for number in client.owned if client.is_running and is_in_time else ():
                other = owners.setdefault(number, client)
                assert other is client, f"{number} is owned by {vars(other)} and {vars(client)}"

    @invariant()
    def what_is_stored_can_be_loaded(self) -> None:
        again = self.desk.make()
        if self.desk.store.head is not None and self.desk.machine.member_count:
            stored = self.desk.store.head
            assert again.head == stored
            assert len(self.desk.store.members) == again.member_count

    def teardown(self) -> None:
        for client in self.clients:
            client.is_paused = False
        for _ in range(SETTLING_ROUNDS):
            self.live_on()
        running = [client for client in self.clients if client.is_running]
        if not running:
            assert self.desk.machine.member_count == 0
            return
        assert sorted(number for client in running for number in client.owned) == list(range(COUNT)), [
            vars(client) for client in running
        ]
        is_mixed = not all(client.is_classic for client in running)
        assert self.desk.kind is (GroupKind.CONSUMER if is_mixed else GroupKind.CLASSIC)
        assert self.desk.machine.state == "Stable"
        assert self.desk.machine.member_count == len(running)
        assert not self.desk.waiting


def _partitions(numbers: frozenset[int]) -> Partitions:
    return {topic_id(TOPIC): numbers} if numbers else {}


MixedMachine.TestCase.settings = settings(stateful_step_count=40)
TestMixedGroups = MixedMachine.TestCase
