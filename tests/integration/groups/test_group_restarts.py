"""Groups of every protocol go on after their only broker was stopped or killed: same members, same partitions.

Sockets and librdkafka only: what other clients leave behind when a broker goes away is not what is tested here.
"""

import contextlib
from pathlib import Path

import pytest

from headrace.model.error_codes import ErrorCode
from tests.integration.clients.quiet_log import assert_quiet
from tests.integration.clients.waiting import eventually, free_port
from tests.integration.groups.group_wire import Claim, GroupClient, is_passing, subscription_to
from tests.integration.groups.team import CONSUMER, COOPERATIVE, RANGE, Team
from tests.integration.wire.watching import mistakes
from tests.servers.headrace import HeadraceProcess, running_headrace

KINDS = (RANGE, COOPERATIVE, CONSUMER)
LONG_SESSIONS = {"group.consumer.session.timeout.ms": "120000"}


def stop(broker: HeadraceProcess, *, by_kill: bool) -> None:
    """End a broker, as the power would or in good order."""
    assert mistakes(broker) == []
    if by_kill:
        broker.kill()
    else:
        assert broker.terminate() == 0
        assert_quiet(broker)


@pytest.mark.parametrize("by_kill", [True, False], ids=["kill", "stop"])
def test_members_keep_their_partitions_through_a_restart_and_commits_go_on(tmp_path: Path, by_kill: bool) -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(running_headrace(tmp_path, kafka_port=port, settings=LONG_SESSIONS))
        teams = [stack.enter_context(Team(broker.bootstrap, f"restart-{kind.name}")) for kind in KINDS]
        for team, kind in zip(teams, KINDS, strict=True):
            team.join("first", kind)
            team.join("second", kind)
        for team in teams:
            team.wait_for_shares(3, 3)
            team.send_and_read()
            team.wait_until_committed()
            team.wait_until_stable()
        before = [(member.member_id, member.owned, member.turns) for team in teams for member in team.members]
        stop(broker, by_kill=by_kill)
        broker = stack.enter_context(running_headrace(tmp_path, kafka_port=port, settings=LONG_SESSIONS))
        for team in teams:
            team.send_and_read()
            team.wait_until_committed()
            team.wait_until_stable()
        after = [(member.member_id, member.owned, member.turns) for team in teams for member in team.members]
        assert after == before
        for team, kind in zip(teams, KINDS, strict=True):
            team.join("third", kind)
        for team in teams:
            team.wait_for_shares(2, 2, 2)
            team.send_and_read()
            team.wait_until_committed()
            assert team.committed() == team.sent
            team.verify_undisturbed()
        assert mistakes(broker) == []


@pytest.mark.parametrize("by_kill", [True, False], ids=["kill", "stop"])
def test_a_generation_and_an_epoch_are_the_same_after_a_restart(tmp_path: Path, by_kill: bool) -> None:
    with running_headrace(tmp_path, settings=LONG_SESSIONS) as broker, GroupClient(broker.kafka_port) as client:
        with Team(broker.bootstrap, "topic", partitions=3):
            classic = client.become_only_member("classic", "topic", 3)
            consumer = client.become_consumer("consumer", "topic", 3)
        for claim in (classic, consumer):
            assert client.commit(claim, "topic", {0: 1, 1: 2}) == {0: ErrorCode.NONE, 1: ErrorCode.NONE}
        assignment = bytes(client.sync(classic).assignment)
        stop(broker, by_kill=by_kill)
    with running_headrace(tmp_path, settings=LONG_SESSIONS) as broker, GroupClient(broker.kafka_port) as client:
        assert client.coordinator_of("classic") == client.coordinator_of("consumer") == 1
        eventually("the group is there", lambda: not is_passing(client.beat(classic)))
        assert client.beat(classic) == ErrorCode.NONE
        synced = client.sync(classic)
        assert (synced.error_code, bytes(synced.assignment)) == (ErrorCode.NONE, assignment)
        told = client.consumer_beat(consumer)
        assert (told.error_code, told.member_epoch) == (ErrorCode.NONE, consumer.epoch)
        for claim in (classic, consumer):
            assert client.committed(claim.group, "topic", 0, 1, 2) == {0: 1, 1: 2, 2: -1}
            assert client.commit(claim, "topic", {1: 3}) == {1: ErrorCode.NONE}
            assert client.committed(claim.group, "topic", 1) == {1: 3}


def test_a_member_that_waits_to_join_or_to_sync_hears_of_a_stop_and_comes_again(tmp_path: Path) -> None:
    """A generation that has begun is there after the restart, whether or not its assignment had come."""
    port = free_port()
    metadata = subscription_to("topic")
    with (
        running_headrace(tmp_path, kafka_port=port) as broker,
        GroupClient(port) as leader,
        GroupClient(port) as follower,
    ):
        leading = Claim(group="waits", instance_id="leader")
        following = Claim(group="waits", instance_id="follower")
        begun = leader.join(leading, metadata)
        assert (begun.error_code, begun.leader) == (ErrorCode.NONE, begun.member_id)
        leading = Claim(group="waits", instance_id="leader", member_id=begun.member_id, epoch=begun.generation_id)
        assert leader.sync(leading, {begun.member_id: b""}).error_code == ErrorCode.NONE
        follower.send_join(following, metadata)
        rebalancing = ErrorCode.REBALANCE_IN_PROGRESS
        eventually("the leader hears of the other", lambda: leader.beat(leading) == rebalancing)
        stop(broker, by_kill=False)
        told = follower.receive_join()
        assert is_passing(ErrorCode(told.error_code)) or told.error_code == rebalancing
    with (
        running_headrace(tmp_path, kafka_port=port),
        GroupClient(port) as leader,
        GroupClient(port) as follower,
    ):
        eventually("the group is there", lambda: leader.beat(leading) == ErrorCode.NONE)
        follower.send_join(following, metadata)
        eventually("the leader hears of the other", lambda: leader.beat(leading) == rebalancing)
        both = leader.join(leading, metadata)
        joined = follower.receive_join()
        assert both.generation_id == joined.generation_id == leading.epoch + 1
        assert {member.group_instance_id for member in both.members} == {"leader", "follower"}
