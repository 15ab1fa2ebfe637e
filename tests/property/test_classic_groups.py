"""Drive a classic group with clients that come, go, stop, and with coordinators that start anew from what was saved.

Clients do what consumer libraries do with every answer. The model is what they were told: who leads a generation, who
is in it, and who got which partition. After every step it must be without contradiction, and what was told must be
durable. In the end, when nothing disturbs them any more, all who live share all partitions, in one generation.
"""

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.groups.protocol import Beat, BeatReply, JoinReply, Leave, Leaver, Sync, SyncReply
from headrace.groups.records import Phase
from headrace.model.error_codes import ErrorCode
from tests.unit.groups.desk import LIMITS, Desk, join

CLIENTS = 5
STATIC = (3, 4)
PARTITIONS = 6
BEAT_MS = 2_000
SESSION_MS = 6_000
REBALANCE_MS = 9_000
SETTLING_MS = 200_000
DELAY_MS = 1_000


@dataclass
class Told:
    """What the members of one generation were told."""

    leader: str
    everybody: frozenset[str] = frozenset()
    owners: dict[int, str] = field(default_factory=dict)


@dataclass
class Consumer:
    """One client. `place` is its instance id, or its member id: whatever owns what it was given."""

    number: int
    member_id: str = ""
    generation: int = -1
    state: str = "out"
    token: int | None = None
    is_running: bool = False
    metadata: int = 0
    everybody: tuple[str, ...] = ()
    owned: tuple[int, ...] = ()

    @property
    def instance(self) -> str | None:
        return f"static {self.number}" if self.number in STATIC else None

    @property
    def place(self) -> str:
        return self.instance or self.member_id

    def forget(self) -> None:
        self.member_id, self.generation, self.state, self.token, self.owned = "", -1, "out", None, ()


class ClassicMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(replace(LIMITS, initial_rebalance_delay_ms=DELAY_MS))
        self.consumers = [Consumer(number) for number in range(CLIENTS)]
        self.told: dict[int, Told] = {}
        self.rotation = 0

    # What clients do

    @rule(number=st.integers(0, CLIENTS - 1))
    def start(self, number: int) -> None:
        self.consumers[number].is_running = True

    @precondition(lambda self: any(consumer.is_running for consumer in self.consumers))
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from([consumer for consumer in self.consumers if consumer.is_running]))
        self.act(consumer)

    @precondition(lambda self: any(consumer.token is not None for consumer in self.consumers))
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        """A client whose connection broke while it waited sends its request once more."""
        waiting = [consumer for consumer in self.consumers if consumer.token is not None]
        consumer = data.draw(st.sampled_from(waiting))
        consumer.token = None
        consumer.state = "out" if consumer.state == "joining" else "joined"
        self.act(consumer)

    @precondition(lambda self: any(consumer.is_running for consumer in self.consumers))
    @rule(data=st.data(), says_so=st.booleans())
    def stop(self, data: st.DataObject, says_so: bool) -> None:
        consumer = data.draw(st.sampled_from([consumer for consumer in self.consumers if consumer.is_running]))
        if says_so and consumer.member_id:
            leaver = Leaver(member_id=consumer.member_id, instance_id=consumer.instance)
            self.desk.send(Leave(leavers=(leaver,)))
        consumer.is_running = False
        consumer.forget()
        self.hear()

    @rule(number=st.integers(0, CLIENTS - 1))
    def subscribe_otherwise(self, number: int) -> None:
        consumer = self.consumers[number]
        consumer.metadata += 1
        if consumer.state == "in":
            consumer.state = "out"

    @rule(ms=st.sampled_from([1, 100, DELAY_MS, BEAT_MS, SESSION_MS, REBALANCE_MS, 60_000]))
    def wait(self, ms: int) -> None:
        self.desk.pass_ms(ms)
        self.hear()

    @rule()
    def restart(self) -> None:
        """The coordinator dies; the next one knows what was saved. Clients see their connections break."""
        self.hear()
        self.desk.restart()
        for consumer in self.consumers:
            if consumer.token is not None:
                consumer.token = None
                consumer.state = "out" if consumer.state == "joining" else "joined"

    # Clients as libraries write them

    def act(self, consumer: Consumer) -> None:
        match consumer.state:
            case "out":
                consumer.state = "joining"
                consumer.token = self.desk.send(
                    join(
                        consumer.member_id,
                        instance=consumer.instance,
                        protocols=(("range", b"%d" % consumer.metadata),),
                        session_ms=SESSION_MS,
                        rebalance_ms=REBALANCE_MS,
                        needs_id=consumer.number != 0,
                        can_skip=consumer.number != 3,
                    )
                )
            case "joined":
                consumer.state = "syncing"
                consumer.token = self.desk.send(
                    Sync(
                        member_id=consumer.member_id,
                        instance_id=consumer.instance,
                        generation=consumer.generation,
                        assignments=self.deal(consumer.everybody),
                    )
                )
            case "in":
                beat = Beat(
                    member_id=consumer.member_id, instance_id=consumer.instance, generation=consumer.generation
                )
                self.obey(consumer, self.desk.ask(beat, BeatReply).error)
        self.hear()

    def deal(self, everybody: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
        """Deal all partitions out, differently each time."""
        self.rotation += 1
        count = len(everybody)
        return tuple(
            (name, bytes(part for part in range(PARTITIONS) if (part + self.rotation) % count == place))
            for place, name in enumerate(everybody)
        )

    def hear(self) -> None:
        """Let every client have the answer that has come for it."""
        for consumer in self.consumers:
            if consumer.token is None or consumer.token not in self.desk.answers:
                continue
            reply = self.desk.answers[consumer.token]
            consumer.token = None
            if isinstance(reply, JoinReply):
                self.hear_join(consumer, reply)
            elif isinstance(reply, SyncReply):
                self.hear_sync(consumer, reply)

    def hear_join(self, consumer: Consumer, reply: JoinReply) -> None:
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            consumer.member_id = reply.member_id
        if reply.error is not ErrorCode.NONE:
            self.obey(consumer, reply.error)
            return
        consumer.member_id, consumer.generation = reply.member_id, reply.generation
        consumer.state = "joined"
        leads = reply.leader == reply.member_id
        assert bool(reply.members) is leads
        consumer.everybody = () if reply.skip_assignment else tuple(name for name, _, _ in reply.members)
        self.check_generation(consumer, reply)

    def check_generation(self, consumer: Consumer, reply: JoinReply) -> None:
        head = self.desk.store.head
        assert head is not None
        assert head.epoch >= reply.generation, "a generation is durable before anybody hears of it"
        told = self.told.setdefault(reply.generation, Told(reply.leader))
        if consumer.instance is None and reply.leader in told.everybody:
            assert reply.leader == told.leader, "one leader"
        if reply.members and not reply.skip_assignment and not told.everybody:
            told.everybody = frozenset(consumer.everybody)
            assert consumer.member_id in told.everybody
        if told.everybody and consumer.instance is None:
            assert consumer.member_id in told.everybody, "whoever is told of a generation is in it"

    def hear_sync(self, consumer: Consumer, reply: SyncReply) -> None:
        if reply.error is not ErrorCode.NONE:
            self.obey(consumer, reply.error)
            return
        consumer.state = "in"
        consumer.owned = tuple(reply.assignment)
        head = self.desk.store.head
        assert head is not None
        assert head.epoch > consumer.generation or head.phase is Phase.STABLE, "durable before anybody hears of it"
        owners = self.told[consumer.generation].owners
        for part in consumer.owned:
            assert owners.setdefault(part, consumer.place) == consumer.place, f"partition {part} has two owners"

    def obey(self, consumer: Consumer, code: ErrorCode) -> None:
        match code:
            case ErrorCode.NONE:
                pass
            case ErrorCode.REBALANCE_IN_PROGRESS | ErrorCode.MEMBER_ID_REQUIRED:
                consumer.state = "out"
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.ILLEGAL_GENERATION:
                consumer.forget()
            case ErrorCode.FENCED_INSTANCE_ID:
                raise AssertionError("no two clients have the same instance id")
            case _:
                raise AssertionError(f"{consumer} was told {code!r}")

    # What must hold

    @invariant()
    def every_request_is_answered_or_waits_for_something(self) -> None:
        """Whoever waits is known to the machine, which has a deadline for it."""
        if self.desk.waiting:
            assert self.desk.machine.next_deadline_ms is not None
            assert self.desk.machine.state in ("PreparingRebalance", "CompletingRebalance")

    @invariant()
    def what_is_stored_can_be_loaded(self) -> None:
        again = self.desk.make()
        machine = self.desk.machine
        if machine.state in ("Stable", "Empty", "CompletingRebalance"):
            assert again.head.epoch == machine.head.epoch
            assert again.state == machine.state
            stored = {member.member_id: member.assignment for member in again.describe().classic_members}
            known = {member.member_id: member.assignment for member in machine.describe().classic_members}
            assert stored == known

    def teardown(self) -> None:
        """Nothing disturbs them any more: all who run must come together."""
        for _ in range(SETTLING_MS // BEAT_MS):
            for consumer in self.consumers:
                if consumer.is_running and consumer.token is None:
                    self.act(consumer)
            self.desk.pass_ms(BEAT_MS)
            self.hear()
        running = [consumer for consumer in self.consumers if consumer.is_running]
        assert {consumer.state for consumer in running} <= {"in"}
        assert len({consumer.generation for consumer in running}) <= 1
        members = {member.member_id for member in self.desk.machine.describe().classic_members}
        assert members == {consumer.member_id for consumer in running}
        assert self.desk.machine.state == ("Stable" if running else "Empty")
        if running:
            assert sorted(part for consumer in running for part in consumer.owned) == list(range(PARTITIONS))


ClassicMachine.TestCase.settings = settings(stateful_step_count=60)
TestClassicGroups = ClassicMachine.TestCase
