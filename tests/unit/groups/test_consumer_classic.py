"""Classic members inside a KIP-848 group."""

from dataclasses import dataclass, field

import pytest

from headrace.groups.protocol import (
    STATIC_LEAVING_EPOCH,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    Partitions,
    Sync,
    SyncReply,
)
from headrace.model.error_codes import ErrorCode
from headrace.model.subscriptions import Subscription, decode_assignment, decode_version, encode_subscription
from tests.unit.groups.consumer_desk import Consumer, ConsumerDesk, heartbeat, parts, settle, stable_pair, topic_id
from tests.unit.groups.desk import REBALANCE_MS, join

SESSION_MS = 10_000
MAX_ROUNDS = 50


def metadata(topics: tuple[str, ...] = ("orders",), owned: Partitions | None = None, version: int = 1) -> bytes:
    held = tuple((name, tuple(sorted(owned[topic_id(name)]))) for name in topics if owned and topic_id(name) in owned)
    return encode_subscription(Subscription(topics=topics, owned=held, rack="r"), version)


def joining(member_id: str = "", owned: Partitions | None = None, **changes: object) -> Join:
    protocols = (("range", metadata(owned=owned)),)
    return join(member_id, protocols=protocols, **{"needs_id": False, "session_ms": SESSION_MS, **changes})  # type: ignore[arg-type]


@dataclass
class ClassicConsumer:
    """A classic client: it joins when it is told to, and an eager one lets go of everything before."""

    desk: ConsumerDesk
    id: str = ""
    is_eager: bool = False
    generation: int = -1
    owned: Partitions = field(default_factory=dict)
    has_to_join: bool = True

    def join(self) -> None:
        if self.is_eager:
            self.owned = {}
        reply = self.desk.ask(joining(self.id, self.owned), JoinReply)
        assert reply.error is ErrorCode.NONE
        self.id, self.generation = reply.member_id, reply.generation
        sync = self.sync()
        self.has_to_join = sync.error is ErrorCode.REBALANCE_IN_PROGRESS
        if sync.error is ErrorCode.NONE:
            given = decode_assignment(sync.assignment)
            had = self.owned
            self.owned = {topic_id(name): frozenset(numbers) for name, numbers in given.partitions}
            # A cooperative client joins again when it has let go of something.
            self.has_to_join = any(numbers - self.owned.get(topic, frozenset()) for topic, numbers in had.items())

    def sync(self) -> SyncReply:
        return self.desk.ask(
            Sync(
                member_id=self.id,
                instance_id=None,
                generation=self.generation,
                protocol_type="consumer",
                protocol="range",
            ),
            SyncReply,
        )

    def beat(self) -> None:
        if self.has_to_join:
            self.join()
        else:
            code = self.desk.beat(self.id, self.generation)
            assert code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
            self.has_to_join = code is not ErrorCode.NONE

    def count(self) -> int:
        return sum(map(len, self.owned.values()))


def settle_mixed(desk: ConsumerDesk, *members: Consumer | ClassicConsumer) -> None:
    for _ in range(MAX_ROUNDS):
        is_done = not any(isinstance(one, ClassicConsumer) and one.has_to_join for one in members)
        if is_done and desk.machine.state == "Stable" and desk.machine.member_count == len(members):
            return
        for member in members:
            member.beat()
            held = [(topic, part) for one in members for topic, numbers in one.owned.items() for part in numbers]
            assert len(held) == len(set(held)), "a partition has one owner"
    raise AssertionError(f"the group does not come to rest: {desk.described()}")


@pytest.mark.parametrize("is_eager", [True, False])
def test_classic_member_shares_a_group_with_others(is_eager: bool) -> None:
    desk = ConsumerDesk()
    a, b = stable_pair(desk)
    classic = ClassicConsumer(desk, is_eager=is_eager)
    settle_mixed(desk, a, b, classic)
    assert sorted((a.count(), b.count(), classic.count())) == [1, 1, 2]
    b.leave()
    settle_mixed(desk, a, classic)
    assert (a.count(), classic.count()) == (2, 2)
    c = Consumer(desk, "c")
    settle_mixed(desk, a, classic, c)
    assert sorted((a.count(), classic.count(), c.count())) == [1, 1, 2]
    seen = desk.described()
    assert [seen[one].is_classic for one in ("a", "c", classic.id)] == [False, False, True]
    assert seen[classic.id].rack is None, "version 1 of a subscription has none"


def test_classic_member_is_told_its_epoch_as_generation_and_leads_nobody() -> None:
    desk = ConsumerDesk()
    desk.join_group("a")
    reply = desk.ask(joining("c"), JoinReply)
    assert (reply.generation, reply.protocol_type, reply.protocol) == (2, "consumer", "range")
    assert (reply.leader, reply.members, reply.member_id) == ("", (), "c")


def test_new_member_is_given_an_id_first() -> None:
    desk = ConsumerDesk()
    desk.join_group("a")
    reply = desk.ask(joining(needs_id=True), JoinReply)
    assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
    assert desk.machine.member_count == 1
    assert desk.ask(joining(reply.member_id, needs_id=True), JoinReply).error is ErrorCode.NONE


def test_assignment_is_in_the_version_of_the_subscription() -> None:
    desk = ConsumerDesk()
    desk.join_group("a", ())
    for version in (0, 3):
        event = join("c", protocols=(("range", metadata(version=version)),), needs_id=False, session_ms=SESSION_MS)
        generation = desk.ask(event, JoinReply).generation
        reply = desk.ask(Sync(member_id="c", instance_id=None, generation=generation), SyncReply)
        assert decode_version(reply.assignment) == version
        assert decode_assignment(reply.assignment).partitions == (("orders", (0, 1, 2, 3)),)
    assert desk.described()["c"].rack == "r"


def test_heartbeat_sends_a_member_to_join_when_something_changes_for_it() -> None:
    desk = ConsumerDesk()
    desk.join_group("a", ())
    classic = ClassicConsumer(desk, "c")
    classic.join()
    assert desk.beat("c", classic.generation) is ErrorCode.NONE
    b = Consumer(desk, "b")
    b.beat()
    assert desk.beat("c", classic.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    classic.join()
    # It was told to keep two of four, and is in its old generation until it has let go of the others.
    assert classic.count() == 2
    assert desk.beat("c", classic.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert b.beat().assignment is None
    classic.join()
    assert b.beat().assignment is not None
    assert desk.beat("c", classic.generation) is ErrorCode.NONE


def test_waiting_member_joins_again_only_when_all_is_free() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    classic = ClassicConsumer(desk, "c")
    classic.join()
    assert desk.beat("c", classic.generation) is ErrorCode.NONE
    a.beat()
    assert desk.beat("c", classic.generation) is ErrorCode.NONE
    a.beat()
    assert desk.beat("c", classic.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    classic.join()
    assert classic.count() == 2


def test_sync_asks_to_join_again_when_the_group_went_on() -> None:
    desk = ConsumerDesk()
    desk.join_group("a")
    generation = desk.ask(joining("c"), JoinReply).generation
    desk.join_group("b")
    reply = desk.ask(Sync(member_id="c", instance_id=None, generation=generation), SyncReply)
    assert reply.error is ErrorCode.REBALANCE_IN_PROGRESS


def test_what_does_not_fit_is_refused() -> None:
    desk = ConsumerDesk()
    desk.join_group("a")
    generation = desk.ask(joining("c"), JoinReply).generation

    def sync(member_id: str, number: int, kind: str | None = None, protocol: str | None = None) -> ErrorCode:
        event = Sync(member_id=member_id, instance_id=None, generation=number, protocol_type=kind, protocol=protocol)
        return desk.ask(event, SyncReply).error

    assert sync("c", generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert sync("x", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert sync("a", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert sync("c", generation, "connect") is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sync("c", generation, "consumer", "roundrobin") is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sync("c", generation, "consumer", "range") is ErrorCode.NONE
    assert desk.beat("c", generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert desk.beat("a", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.beat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_joins_that_do_not_fit_are_refused() -> None:
    desk = ConsumerDesk()
    desk.join_group("a")
    desk.ask(joining("c"), JoinReply)
    good = metadata()
    cases: list[tuple[dict[str, object], tuple[tuple[str, bytes], ...], ErrorCode]] = [
        ({"protocol_type": "connect"}, (("range", good),), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({}, (), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({}, (("other", good),), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({}, (("range", b"x"),), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_ms": 1}, (("range", good),), ErrorCode.INVALID_SESSION_TIMEOUT),
        ({}, (("range", good + bytes(20_000)),), ErrorCode.INVALID_REQUEST),
        ({}, (("range", metadata(tuple(f"t{n}" for n in range(101)))),), ErrorCode.INVALID_REQUEST),
    ]
    for changes, protocols, code in cases:
        event = join("d", **{"protocols": protocols, "needs_id": False, **changes})  # type: ignore[arg-type]
        assert desk.ask(event, JoinReply).error is code, (changes, protocols)
    for number in range(desk.limits.max_members - 2):
        desk.join_group(f"m{number}")
    assert desk.ask(joining("d"), JoinReply).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.ask(joining("c"), JoinReply).error is ErrorCode.NONE


def test_member_that_was_put_out_and_still_owns_something_has_to_drop_it_first() -> None:
    desk = ConsumerDesk()
    desk.join_group("a")
    assert desk.ask(joining("c", parts(orders=[0])), JoinReply).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.ask(joining("c"), JoinReply).error is ErrorCode.NONE


# Time


def test_classic_member_has_its_own_session_timeout() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    classic = ClassicConsumer(desk, "c")
    settle_mixed(desk, a, classic)
    desk.pass_ms(SESSION_MS - 1)
    classic.beat()
    desk.pass_ms(SESSION_MS - 1)
    assert desk.machine.member_count == 2
    desk.pass_ms(1)
    assert set(desk.described()) == {"a"}


def test_classic_member_that_does_not_join_again_in_time_is_put_out() -> None:
    desk = ConsumerDesk(session_ms=10 * REBALANCE_MS)
    a = Consumer(desk, "a")
    a.beat()
    classic = ClassicConsumer(desk, "c")
    settle_mixed(desk, a, classic)
    desk.join_group("b")
    start_ms = desk.now_ms
    while desk.machine.member_count == 3:
        desk.beat("c", classic.generation)
        desk.pass_ms(SESSION_MS // 2)
    assert desk.now_ms == start_ms + REBALANCE_MS
    assert "c" not in desk.described()


def test_classic_member_that_does_not_sync_in_time_is_put_out() -> None:
    desk = ConsumerDesk(session_ms=10 * REBALANCE_MS)
    desk.join_group("a", ())
    generation = desk.ask(joining("c"), JoinReply).generation
    start_ms = desk.now_ms
    while desk.machine.member_count == 2:
        assert desk.beat("c", generation) is ErrorCode.NONE
        desk.pass_ms(SESSION_MS // 2)
    assert desk.now_ms == start_ms + REBALANCE_MS


# Leaving


def test_leave_group_puts_out_members_of_both_protocols() -> None:
    desk = ConsumerDesk()
    desk.join_group("a")
    desk.join_group("s", instance="i")
    desk.ask(joining("c"), JoinReply)
    epoch = desk.machine.head.epoch
    leavers = (
        Leaver(member_id="c", instance_id=None),
        Leaver(member_id="", instance_id="i"),
        Leaver(member_id="x", instance_id=None),
        Leaver(member_id="x", instance_id="i"),
        Leaver(member_id="", instance_id="j"),
        Leaver(member_id="c", instance_id=None),
    )
    reply = desk.ask(Leave(leavers=leavers), LeaveReply)
    assert reply.leavers == (
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    )
    assert set(desk.described()) == {"a"}
    assert desk.machine.head.epoch == epoch + 1


# Moving from one protocol to the other


def test_static_member_changes_to_kip_848_and_back() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    desk.ask(joining("", instance="i"), JoinReply)
    old = next(member for member in desk.described() if member != "a")
    assert not desk.group.has_only_classic_members
    new = desk.join_group("n", instance="i")
    assert new.error is ErrorCode.NONE
    assert not desk.described()["n"].is_classic
    assert desk.beat(old, 2, "i") is ErrorCode.FENCED_INSTANCE_ID
    # A classic process comes without an id and takes the place at once.
    back = desk.ask(joining("", instance="i"), JoinReply)
    assert desk.heartbeat(heartbeat("n", new.member_epoch, instance="i")).error is ErrorCode.FENCED_INSTANCE_ID
    assert set(desk.described()) == {"a", back.member_id}
    assert [one.what for one in desk.noted].count("fenced") == 2
    assert desk.ask(joining("zombie", instance="i"), JoinReply).error is ErrorCode.FENCED_INSTANCE_ID
    assert desk.ask(joining("zombie", instance="j"), JoinReply).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_changes_its_protocol_keeps_its_id() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    reply = desk.ask(joining("a", a.owned), JoinReply)
    assert (reply.error, reply.generation) == (ErrorCode.NONE, a.epoch)
    assert desk.group.has_only_classic_members
    assert desk.group.member_records()[0].classic is not None
    a.beat()
    assert not desk.group.has_only_classic_members


def test_group_without_members_is_not_one_of_classic_members() -> None:
    assert not ConsumerDesk().group.has_only_classic_members


def test_classic_members_survive_a_restart() -> None:
    desk = ConsumerDesk()
    a = Consumer(desk, "a")
    a.beat()
    classic = ClassicConsumer(desk, "c")
    settle_mixed(desk, a, classic)
    before = desk.described()
    desk.restart()
    assert desk.described() == before
    assert desk.beat("c", classic.generation) is ErrorCode.NONE
    settle(desk, a)
    assert (
        desk.group.check_commit(desk.claim("c", classic.generation, knows_epochs=False), desk.now) is ErrorCode.NONE
    )
    assert desk.group.check_commit(desk.claim("c", 1), desk.now) is ErrorCode.ILLEGAL_GENERATION
    assert desk.group.check_fetch(desk.claim("c", 1)) is ErrorCode.ILLEGAL_GENERATION


def test_away_static_member_may_come_back_as_a_classic_one() -> None:
    desk = ConsumerDesk()
    a, b = Consumer(desk, "a", instance="i"), Consumer(desk, "b")
    settle(desk, a, b)
    owned = a.owned
    a.leave(STATIC_LEAVING_EPOCH)
    reply = desk.ask(joining("", instance="i"), JoinReply)
    sync = desk.ask(Sync(member_id=reply.member_id, instance_id="i", generation=reply.generation), SyncReply)
    assert {topic_id(name): frozenset(held) for name, held in decode_assignment(sync.assignment).partitions} == owned
    assert parts(orders=[0, 1, 2, 3])[topic_id("orders")] == owned[topic_id("orders")] | b.owned[topic_id("orders")]
    assert desk.ask(Leave(leavers=(Leaver(member_id=reply.member_id, instance_id="i"),)), LeaveReply).leavers == (
        ErrorCode.NONE,
    )
