"""The classic protocol: who is let in, how a generation comes about, how it ends."""

from dataclasses import replace

import pytest

from headrace.groups import classic
from headrace.groups.classic import NEW_MEMBER_TIMEOUT_MS
from headrace.groups.classic_phases import SHORTEST_SYNC_WAIT_MS
from headrace.groups.protocol import (
    Client,
    ConsumerBeat,
    ConsumerBeatReply,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    Sync,
    SyncReply,
)
from headrace.groups.records import Phase
from headrace.model.error_codes import ErrorCode
from tests.unit.groups.desk import (
    DELAY_MS,
    LIMITS,
    REBALANCE_MS,
    SESSION_MS,
    WALL_MS,
    Desk,
    join,
    wants,
)


@pytest.fixture
def desk() -> Desk:
    return Desk()


# Ids


def test_a_new_dynamic_member_is_given_an_id_and_comes_again(desk: Desk) -> None:
    reply = desk.ask(join(client="billing"), JoinReply)
    assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
    assert reply.member_id.startswith("billing-")
    assert desk.machine.state == "Empty"
    assert desk.machine.member_count == 0
    token = desk.send(join(reply.member_id))
    desk.pass_ms(DELAY_MS)
    assert desk.joined(token).member_id == reply.member_id
    assert desk.joined(token).error is ErrorCode.NONE


def test_an_older_client_gets_its_id_with_its_first_generation(desk: Desk) -> None:
    token = desk.send(join(needs_id=False, client="old"))
    desk.pass_ms(DELAY_MS)
    reply = desk.joined(token)
    assert reply.error is ErrorCode.NONE
    assert reply.member_id.startswith("old-")
    assert reply.leader == reply.member_id


def test_an_id_that_nobody_uses_expires_with_its_session(desk: Desk) -> None:
    member_id = desk.new_id()
    desk.pass_ms(SESSION_MS)
    assert desk.ask(join(member_id), JoinReply).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.machine.next_deadline_ms is None


def test_an_id_that_was_never_given_out_is_unknown(desk: Desk) -> None:
    reply = desk.ask(join("made up"), JoinReply)
    assert (reply.error, reply.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "made up")


def test_ids_given_out_have_a_limit(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic, "MAX_IDS_GIVEN_OUT", 3)
    for _ in range(3):
        desk.new_id()
    assert desk.ask(join(), JoinReply).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    desk.pass_ms(SESSION_MS)
    desk.new_id()


def test_an_id_fits_into_a_string_however_long_the_client_calls_itself(desk: Desk) -> None:
    assert len(desk.new_id(client="x" * 32_000)) < 1_000


# Refusals


@pytest.mark.parametrize("session_ms", [LIMITS.min_session_timeout_ms - 1, LIMITS.max_session_timeout_ms + 1, -1])
def test_session_timeouts_have_bounds(desk: Desk, session_ms: int) -> None:
    assert desk.ask(join(session_ms=session_ms), JoinReply).error is ErrorCode.INVALID_SESSION_TIMEOUT


def test_metadata_have_a_limit_over_all_protocols(desk: Desk) -> None:
    half = bytes(LIMITS.max_metadata_bytes // 2)
    assert desk.ask(join(protocols=(("x", half), ("y", half))), JoinReply).error is ErrorCode.INVALID_REQUEST
    assert desk.ask(join(protocols=(("x", half),)), JoinReply).error is ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize("event", [join(protocols=()), join(protocol_type="")])
def test_a_member_without_protocols_or_type_is_inconsistent(desk: Desk, event: Join) -> None:
    assert desk.ask(event, JoinReply).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_that_shares_no_protocol_or_type_with_the_group_is_inconsistent(desk: Desk) -> None:
    (member_id,) = desk.stable("a")
    for event in (join(protocols=(("other", b""),)), join(protocol_type="connect")):
        assert desk.ask(event, JoinReply).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert desk.ask(join(member_id, protocols=(("other", b""),)), JoinReply).member_id == member_id
    assert desk.machine.state == "Stable"


def test_an_empty_group_takes_any_protocol_type(desk: Desk) -> None:
    (member_id,) = desk.stable("a")
    desk.leave(member_id)
    token = desk.send(join(protocol_type="connect", needs_id=False))
    desk.pass_ms(DELAY_MS)
    assert desk.joined(token).protocol_type == "connect"
    assert desk.machine.head.protocol_type == "connect"


def test_a_full_group_takes_no_more_members() -> None:
    desk = Desk(replace(LIMITS, max_members=2))
    first, _ = desk.stable("a", "b")
    assert desk.ask(join(), JoinReply).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert desk.beat(first, 1) is ErrorCode.NONE


def test_while_members_join_only_so_many_are_taken_and_nobody_waits_for_the_rest() -> None:
    desk = Desk(replace(LIMITS, max_members=3))
    first, second, third = desk.stable("a", "b", "c")
    desk = Desk(replace(LIMITS, max_members=2), desk.store)
    tokens = [desk.send(join(first)), desk.send(join(second))]
    assert desk.machine.state == "PreparingRebalance"
    reply = desk.ask(join(third), JoinReply)
    assert (reply.error, reply.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert [desk.joined(token).generation for token in tokens] == [2, 2]
    assert third not in desk.store.members


# The first rebalance


def test_the_first_rebalance_waits_for_others_and_longer_when_they_come(desk: Desk) -> None:
    first = desk.send(join(needs_id=False))
    desk.pass_ms(DELAY_MS - 1)
    second = desk.send(join(needs_id=False))
    desk.pass_ms(DELAY_MS)
    assert first in desk.waiting, "somebody came: the delay begins anew"
    desk.pass_ms(1)
    assert desk.joined(first).generation == desk.joined(second).generation == 1
    assert desk.machine.state == "CompletingRebalance"


def test_the_first_rebalance_is_not_delayed_beyond_the_rebalance_timeout() -> None:
    desk = Desk()
    first = desk.send(join(needs_id=False, rebalance_ms=2 * DELAY_MS + 1_000))
    tokens = []
    for _ in range(7):
        desk.pass_ms(1_000)
        tokens.append(desk.send(join(needs_id=False, rebalance_ms=1)))
    # Two delays and what is left of the timeout.
    assert desk.joined(first).generation == 1
    assert len(desk.machine.describe().classic_members) >= 6


def test_without_a_delay_the_first_generation_begins_at_once() -> None:
    desk = Desk(replace(LIMITS, initial_rebalance_delay_ms=0))
    assert desk.ask(join(needs_id=False), JoinReply).generation == 1


def test_a_group_whose_members_all_left_during_the_delay_is_empty_again(desk: Desk) -> None:
    member_id = desk.new_id()
    token = desk.send(join(member_id))
    assert desk.leave(member_id) is ErrorCode.NONE
    assert desk.joined(token).error is ErrorCode.UNKNOWN_MEMBER_ID
    desk.pass_ms(DELAY_MS)
    assert desk.machine.state == "Empty"
    assert desk.machine.next_deadline_ms is None


# A generation


def test_only_the_leader_hears_of_all_members(desk: Desk) -> None:
    ids = [desk.new_id(), desk.new_id()]
    protocols = (("sticky", b"s"), ("range", b"r"))
    tokens = [desk.send(join(member_id, protocols=protocols)) for member_id in ids]
    desk.pass_ms(2 * DELAY_MS)
    leader, follower = (desk.joined(token) for token in tokens)
    assert leader.leader == follower.leader == ids[0]
    assert leader.members == ((ids[0], None, b"s"), (ids[1], None, b"s"))
    assert follower.members == ()
    assert (leader.protocol_type, leader.protocol) == ("consumer", "sticky")


def test_a_generation_is_saved_before_anybody_hears_of_it(desk: Desk) -> None:
    ids = [desk.new_id(), desk.new_id()]
    for member_id in ids:
        desk.send(join(member_id))
    desk.pass_ms(2 * DELAY_MS)
    assert len(desk.saves) == 1
    head = desk.saves[0].head
    assert (head.epoch, head.phase, head.leader, head.protocol) == (1, Phase.COMPLETING, ids[0], "range")
    assert set(desk.store.members) == set(ids)
    desk.sync(ids[1], 1)
    desk.sync(ids[0], 1, {ids[0]: b"p0", ids[1]: b"p1"})
    assert [save.head.phase for save in desk.saves] == [Phase.COMPLETING, Phase.STABLE]
    assert desk.saves[1].members == {}, "members have not changed"
    assert set(desk.store.assignments) == set(ids)


def test_followers_wait_for_the_leader(desk: Desk) -> None:
    ids = [desk.new_id(), desk.new_id(), desk.new_id()]
    for member_id in ids:
        desk.send(join(member_id))
    desk.pass_ms(2 * DELAY_MS)
    follower = desk.sync(ids[1], 1)
    assert follower in desk.waiting
    leader = desk.sync(ids[0], 1, {ids[0]: b"p0", ids[1]: b"p1", "stranger": b"p9"})
    assert desk.synced(leader).assignment == b"p0"
    reply = desk.synced(follower)
    assert (reply.assignment, reply.protocol_type, reply.protocol) == (b"p1", "consumer", "range")
    late = desk.synced(desk.sync(ids[2], 1))
    assert (late.error, late.assignment) == (ErrorCode.NONE, b""), "the leader left it out"
    assert "stranger" not in desk.store.assignments


def test_a_sync_in_a_stable_group_returns_the_assignment_again(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    for _ in range(2):
        assert desk.synced(desk.sync(follower, 1)).assignment == f"for {follower}".encode()
    assert desk.synced(desk.sync(leader, 1, {leader: b"other"})).assignment == f"for {leader}".encode()


def test_syncs_are_checked(desk: Desk) -> None:
    assert desk.synced(desk.sync("nobody", 0)).error is ErrorCode.UNKNOWN_MEMBER_ID
    (member_id,) = desk.stable("a")

    def ask(generation: int, protocol_type: str | None, protocol: str | None) -> ErrorCode:
        event = Sync(
            member_id=member_id,
            instance_id=None,
            generation=generation,
            protocol_type=protocol_type,
            protocol=protocol,
        )
        return desk.ask(event, SyncReply).error

    assert ask(1, "consumer", "range") is ErrorCode.NONE
    assert ask(1, None, None) is ErrorCode.NONE
    assert ask(0, None, None) is ErrorCode.ILLEGAL_GENERATION
    assert ask(1, "connect", None) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert ask(1, "consumer", "sticky") is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    desk.send(join(member_id))
    desk.new_id()
    desk.send(join(member_id, protocols=(("range", b"changed"),)))
    assert desk.machine.state == "PreparingRebalance"
    assert ask(2, None, None) is ErrorCode.REBALANCE_IN_PROGRESS


def test_assignments_have_the_limit_of_metadata(desk: Desk) -> None:
    token = desk.send(join(needs_id=False))
    desk.pass_ms(DELAY_MS)
    member_id = desk.joined(token).member_id
    large = {member_id: bytes(LIMITS.max_metadata_bytes + 1)}
    assert desk.synced(desk.sync(member_id, 1, large)).error is ErrorCode.INVALID_REQUEST
    assert desk.machine.state == "CompletingRebalance"
    assert desk.synced(desk.sync(member_id, 1, {member_id: b"p0"})).assignment == b"p0"


def test_a_sync_that_comes_again_takes_the_place_of_the_first(desk: Desk) -> None:
    ids = [desk.new_id(), desk.new_id()]
    for member_id in ids:
        desk.send(join(member_id))
    desk.pass_ms(2 * DELAY_MS)
    first = desk.sync(ids[1], 1)
    second = desk.sync(ids[1], 1)
    assert desk.synced(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    desk.sync(ids[0], 1, {ids[1]: b"p1"})
    assert desk.synced(second).assignment == b"p1"


# Rebalances


def test_a_new_member_makes_the_others_join_again(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    newcomer = desk.new_id()
    assert desk.beat(leader, 1) is ErrorCode.NONE, "an id alone does not disturb anybody"
    tokens = [desk.send(join(newcomer))]
    assert desk.machine.state == "PreparingRebalance"
    assert desk.beat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    tokens += [desk.send(join(leader)), desk.send(join(follower))]
    assert [desk.joined(token).generation for token in tokens] == [2, 2, 2]
    assert desk.joined(tokens[1]).leader == leader
    assert desk.store.assignments == {}, "those of the last generation are gone"
    assert desk.beat(leader, 1) is ErrorCode.ILLEGAL_GENERATION
    assert desk.beat(leader, 2) is ErrorCode.NONE


def test_members_that_do_not_join_again_in_time_are_dropped(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    token = desk.send(join(follower, protocols=(("range", b"changed"),)))
    for _ in range(REBALANCE_MS // 5_000):
        assert desk.beat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
        desk.pass_ms(5_000)
    reply = desk.joined(token)
    assert (reply.generation, reply.leader) == (2, follower)
    assert [member_id for member_id, _, _ in reply.members] == [follower]
    assert set(desk.store.members) == {follower}
    assert desk.beat(leader, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_without_a_rebalance_timeout_has_time_to_sync(desk: Desk) -> None:
    token = desk.send(join(needs_id=False, rebalance_ms=0))
    desk.pass_ms(DELAY_MS)
    member_id = desk.joined(token).member_id
    desk.pass_ms(SHORTEST_SYNC_WAIT_MS - 1)
    assert member_id in desk.store.members
    desk.pass_ms(1)
    assert member_id not in desk.store.members


def test_the_slowest_member_says_how_long_all_wait(desk: Desk) -> None:
    tokens = [desk.send(join(needs_id=False, rebalance_ms=ms)) for ms in (7_000, 20_000)]
    desk.pass_ms(2 * DELAY_MS)
    first, second = (desk.joined(token).member_id for token in tokens)
    desk.sync(second, 1)
    desk.sync(first, 1)
    token = desk.send(join(first, rebalance_ms=7_000))
    desk.beat(second, 1)
    desk.pass_ms(9_000)
    desk.beat(second, 1)
    desk.pass_ms(9_000)
    desk.beat(second, 1)
    assert token in desk.waiting
    desk.pass_ms(2_000)
    assert desk.joined(token).generation == 2


def test_a_member_that_goes_while_others_join_is_not_waited_for(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    token = desk.send(join(leader))
    assert token in desk.waiting
    desk.leave(follower)
    assert desk.joined(token).generation == 2


def test_an_id_that_was_given_out_is_waited_for_in_a_rebalance(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    newcomer = desk.new_id()
    tokens = [desk.send(join(leader)), desk.send(join(follower))]
    assert set(tokens) <= desk.waiting
    tokens.append(desk.send(join(newcomer)))
    assert [desk.joined(token).generation for token in tokens] == [2, 2, 2]


def test_an_id_that_expires_is_not_waited_for_any_more(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    desk.new_id()
    tokens = [desk.send(join(leader)), desk.send(join(follower))]
    desk.pass_ms(SESSION_MS)
    assert [desk.joined(token).generation for token in tokens] == [2, 2]


def test_members_that_do_not_sync_are_put_out_after_the_rebalance_timeout(desk: Desk) -> None:
    ids = [desk.new_id(), desk.new_id()]
    for member_id in ids:
        desk.send(join(member_id))
    desk.pass_ms(2 * DELAY_MS)
    waiting = desk.sync(ids[1], 1)
    for _ in range(REBALANCE_MS // 5_000):
        desk.beat(ids[0], 1)
        desk.pass_ms(5_000)
    assert desk.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.beat(ids[0], 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.beat(ids[1], 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.ask(join(ids[1]), JoinReply).leader == ids[1]


def test_a_stable_group_puts_out_who_never_asked_for_its_assignment(desk: Desk) -> None:
    ids = [desk.new_id(), desk.new_id()]
    for member_id in ids:
        desk.send(join(member_id))
    desk.pass_ms(2 * DELAY_MS)
    desk.sync(ids[0], 1, {})
    assert desk.machine.state == "Stable"
    for _ in range(REBALANCE_MS // 5_000):
        for member_id in ids:
            desk.beat(member_id, 1)
        desk.pass_ms(5_000)
    assert desk.beat(ids[1], 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.machine.state == "PreparingRebalance"


def test_a_join_during_completing_sends_those_who_sync_back(desk: Desk) -> None:
    ids = [desk.new_id(), desk.new_id()]
    for member_id in ids:
        desk.send(join(member_id))
    desk.pass_ms(2 * DELAY_MS)
    waiting = desk.sync(ids[1], 1)
    desk.send(join(needs_id=False))
    assert desk.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.synced(desk.sync(ids[0], 1, {})).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_has_not_changed_hears_of_the_generation_again(desk: Desk) -> None:
    ids = [desk.new_id(), desk.new_id()]
    for member_id in ids:
        desk.send(join(member_id))
    desk.pass_ms(2 * DELAY_MS)
    # In CompletingRebalance: it may have missed the answer.
    again = desk.ask(join(ids[0]), JoinReply)
    assert (again.generation, len(again.members)) == (1, 2)
    assert desk.ask(join(ids[1]), JoinReply).members == ()
    desk.sync(ids[1], 1)
    desk.sync(ids[0], 1)
    # In Stable: so may a follower.
    assert desk.ask(join(ids[1]), JoinReply).generation == 1
    assert desk.machine.state == "Stable"


def test_a_member_that_has_changed_makes_all_join_again(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    changed = (("range", b"changed"),)
    tokens = [desk.send(join(follower, protocols=changed))]
    assert desk.machine.state == "PreparingRebalance"
    tokens.append(desk.send(join(leader)))
    assert desk.joined(tokens[1]).members == ((leader, None, b"meta"), (follower, None, b"changed"))
    desk.send(join(follower))
    assert desk.machine.state == "PreparingRebalance", "also from CompletingRebalance"


def test_a_leader_that_joins_again_starts_a_rebalance_though_nothing_changed(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    token = desk.send(join(leader))
    assert desk.beat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    desk.send(join(follower))
    assert desk.joined(token).generation == 2


def test_a_join_that_comes_again_takes_the_place_of_the_first(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    first = desk.send(join(leader))
    second = desk.send(join(leader))
    assert desk.joined(first).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.joined(first).member_id == leader
    assert second in desk.waiting
    desk.send(join(follower))
    assert desk.joined(second).generation == 2


# Sessions


def test_a_silent_member_is_put_out_and_the_others_join_again(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    desk.pass_ms(SESSION_MS - 1)
    assert desk.beat(follower, 1) is ErrorCode.NONE
    desk.pass_ms(1)
    assert desk.beat(leader, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.beat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert desk.ask(join(follower), JoinReply).leader == follower
    assert [noted.what for noted in desk.noted].count("expired") == 1


def test_a_group_whose_members_are_all_silent_is_empty(desk: Desk) -> None:
    desk.stable("a", "b")
    desk.pass_ms(SESSION_MS)
    assert desk.machine.state == "Empty"
    assert desk.store.members == {}
    assert desk.store.assignments == {}
    head = desk.store.head
    assert head is not None
    assert (head.epoch, head.phase, head.protocol, head.leader) == (2, Phase.EMPTY, "", "")
    assert head.protocol_type == "consumer"
    assert head.empty_since_ms == WALL_MS + desk.now_ms
    assert desk.machine.next_deadline_ms is None


def test_a_member_that_waits_to_join_is_not_silent(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    token = desk.send(join(leader))
    for _ in range(4):
        desk.pass_ms(SESSION_MS - 1_000)
        desk.beat(follower, 1)
    assert token in desk.waiting
    desk.send(join(follower))
    assert desk.joined(token).generation == 2
    desk.pass_ms(SESSION_MS - 1)
    assert desk.beat(leader, 2) is ErrorCode.NONE, "its session began anew when it was answered"
    desk.pass_ms(SESSION_MS)
    assert desk.beat(leader, 2) is ErrorCode.UNKNOWN_MEMBER_ID, "and ends"


def test_a_member_that_is_silent_after_a_long_wait_is_put_out(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    desk.send(join(leader))
    for _ in range(4):
        desk.pass_ms(SESSION_MS - 1_000)
        desk.beat(follower, 1)
    desk.send(join(follower))
    desk.pass_ms(SESSION_MS - 1)
    desk.beat(follower, 2)
    assert desk.machine.member_count == 2
    desk.pass_ms(1)
    assert desk.machine.member_count == 1


def test_a_member_that_waits_to_sync_is_not_silent(desk: Desk) -> None:
    ids = [desk.new_id(), desk.new_id()]
    for member_id in ids:
        desk.send(join(member_id))
    desk.pass_ms(2 * DELAY_MS)
    waiting = desk.sync(ids[1], 1)
    for _ in range(3):
        desk.pass_ms(SESSION_MS - 1_000)
        desk.beat(ids[0], 1)
    assert waiting in desk.waiting
    desk.sync(ids[0], 1, {})
    assert desk.synced(waiting).error is ErrorCode.NONE
    desk.pass_ms(SESSION_MS - 1)
    assert desk.beat(ids[1], 1) is ErrorCode.NONE


def test_a_new_member_that_waits_too_long_is_told_to_come_again(desk: Desk) -> None:
    tokens = [desk.send(join(needs_id=False, rebalance_ms=2 * NEW_MEMBER_TIMEOUT_MS))]
    desk.pass_ms(DELAY_MS)
    member_id = desk.joined(tokens[0]).member_id
    desk.sync(member_id, 1)
    newcomer = desk.send(join(needs_id=False))
    for _ in range(NEW_MEMBER_TIMEOUT_MS // 5_000):
        assert newcomer in desk.waiting
        desk.beat(member_id, 1)
        desk.pass_ms(5_000)
    assert desk.joined(newcomer).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.joined(newcomer).member_id == ""
    assert desk.machine.member_count == 1


def test_commits_are_signs_of_life(desk: Desk) -> None:
    (member_id,) = desk.stable("a")
    for _ in range(3):
        desk.pass_ms(SESSION_MS - 1)
        assert desk.commit(member_id, 1) is ErrorCode.NONE
    assert desk.beat(member_id, 1) is ErrorCode.NONE


def test_heartbeats_are_checked(desk: Desk) -> None:
    assert desk.beat("nobody", 0) is ErrorCode.UNKNOWN_MEMBER_ID
    (member_id,) = desk.stable("a")
    assert desk.beat(member_id, 1) is ErrorCode.NONE
    assert desk.beat(member_id, 0) is ErrorCode.ILLEGAL_GENERATION
    assert desk.beat(member_id, 2) is ErrorCode.ILLEGAL_GENERATION
    assert desk.beat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.beat(member_id, 1, instance="s") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_before_the_sync_is_fine(desk: Desk) -> None:
    token = desk.send(join(needs_id=False))
    desk.pass_ms(DELAY_MS)
    assert desk.machine.state == "CompletingRebalance"
    assert desk.beat(desk.joined(token).member_id, 1) is ErrorCode.NONE


# Leaving


def test_leavers_hear_a_code_each(desk: Desk) -> None:
    first, second = desk.stable("a", "b")
    unused = desk.new_id()
    leavers = tuple(Leaver(member_id=name, instance_id=None) for name in (first, "nobody", unused, "", second))
    reply = desk.ask(Leave(leavers=leavers), LeaveReply)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert reply.leavers == (ErrorCode.NONE, unknown, ErrorCode.NONE, unknown, ErrorCode.NONE)
    assert desk.machine.state == "Empty"


def test_a_leave_is_answered_after_what_it_brought_about(desk: Desk) -> None:
    (member_id,) = desk.stable("a")
    desk.leave(member_id)
    assert desk.saves[-1].head.phase is Phase.EMPTY


def test_a_leave_in_a_stable_group_starts_a_rebalance(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    assert desk.leave(leader) is ErrorCode.NONE
    assert desk.beat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    reply = desk.ask(join(follower), JoinReply)
    assert (reply.generation, reply.leader) == (2, follower)


def test_an_id_that_leaves_unused_disturbs_nobody(desk: Desk) -> None:
    (member_id,) = desk.stable("a")
    assert desk.leave(desk.new_id()) is ErrorCode.NONE
    assert desk.beat(member_id, 1) is ErrorCode.NONE


def test_whoever_is_taken_out_while_it_waits_is_answered(desk: Desk) -> None:
    leader, follower = desk.stable("a", "b")
    desk.send(join(leader))
    desk.send(join(follower))
    waiting = desk.sync(follower, 2)
    desk.leave(follower)
    assert desk.synced(waiting).error is ErrorCode.UNKNOWN_MEMBER_ID


# What others ask


def test_commits_are_checked(desk: Desk) -> None:
    assert desk.commit() is ErrorCode.NONE, "nobody is in the group"
    assert desk.commit("nobody", 3) is ErrorCode.UNKNOWN_MEMBER_ID
    leader, follower = desk.stable("a", "b")
    assert desk.commit() is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.commit(leader, 1) is ErrorCode.NONE
    assert desk.commit(leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert desk.commit(leader, -1) is ErrorCode.ILLEGAL_GENERATION
    assert desk.commit("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.commit(leader, 1, instance="s") is ErrorCode.UNKNOWN_MEMBER_ID
    tokens = [desk.send(join(leader))]
    assert desk.commit(follower, 1) is ErrorCode.NONE, "members commit before they join again"
    tokens.append(desk.send(join(follower)))
    assert desk.commit(follower, 1) is ErrorCode.ILLEGAL_GENERATION
    assert desk.commit(follower, 2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_subscriptions_are_read_where_they_are_those_of_consumers() -> None:
    desk = Desk(replace(LIMITS, initial_rebalance_delay_ms=0))
    assert desk.machine.subscribed() == frozenset()
    first = desk.ask(join(needs_id=False, protocols=(("range", wants("a", "b")),)), JoinReply).member_id
    assert desk.machine.subscribed() == frozenset({"a", "b"})
    desk.send(join(needs_id=False, protocols=(("range", wants("c")),)))
    assert desk.machine.subscribed() == frozenset({"a", "b", "c"})
    desk.send(join(first, protocols=(("range", b"\x00"),)))
    assert desk.machine.subscribed() is None


def test_what_other_protocol_types_want_cannot_be_told() -> None:
    desk = Desk(replace(LIMITS, initial_rebalance_delay_ms=0))
    desk.send(join(needs_id=False, protocol_type="connect", protocols=(("sessioned", wants("a")),)))
    assert desk.machine.subscribed() is None


def test_a_stable_group_shows_metadata_and_others_do_not(desk: Desk) -> None:
    leader, _ = desk.stable("a", "b")
    shown = desk.machine.describe()
    assert (shown.state, shown.protocol) == ("Stable", "range")
    member = shown.classic_members[0]
    assert (member.member_id, member.metadata) == (leader, b"meta")
    assert member.assignment == f"for {leader}".encode()
    assert member.client == Client("a", "/127.0.0.1")
    desk.send(join(leader))
    shown = desk.machine.describe()
    assert (shown.state, shown.protocol, shown.classic_members[0].metadata) == ("PreparingRebalance", "", b"")


def test_a_member_of_the_newer_protocol_finds_no_such_group(desk: Desk) -> None:
    beat = ConsumerBeat(
        member_id="m",
        member_epoch=0,
        instance_id=None,
        rack=None,
        rebalance_timeout_ms=1,
        topics=("a",),
        regex=None,
        assignor=None,
        owned={},
        client=Client("a", "h"),
    )
    assert desk.ask(beat, ConsumerBeatReply).error is ErrorCode.GROUP_ID_NOT_FOUND
