"""Two brokers on one data directory: when the coordinator goes, its groups move to the other, and members stay.

Sockets and librdkafka only: what other clients leave behind when a broker goes away is not what is tested here.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.model.error_codes import ErrorCode
from tests.integration.clients.waiting import eventually
from tests.integration.groups.group_wire import (
    CONSUMER_HEARTBEAT,
    HEARTBEAT,
    OFFSET_COMMIT,
    Claim,
    GroupClient,
    beat_request,
    commit_request,
    consumer_beat_request,
    is_passing,
    subscription_to,
)
from tests.integration.groups.team import CONSUMER, COOPERATIVE, RANGE, Team
from tests.integration.wire.watching import mistakes
from tests.servers.headrace import HeadraceProcess, running_headrace

SETTINGS = {"broker.session.timeout.ms": "3000", "group.consumer.session.timeout.ms": "120000"}
KINDS = (RANGE, COOPERATIVE, CONSUMER)
GROUPS = 6

Loss = Callable[[HeadraceProcess], None]


def kill(broker: HeadraceProcess) -> None:
    broker.kill()


def stop(broker: HeadraceProcess) -> None:
    assert broker.terminate() == 0


def pause(broker: HeadraceProcess) -> None:
    broker.pause()


def pair(stack: contextlib.ExitStack, data_dir: Path) -> dict[int, HeadraceProcess]:
    """Start two brokers that know each other."""
    brokers = {
        node_id: stack.enter_context(running_headrace(data_dir, node_id=node_id, settings=SETTINGS))
        for node_id in (1, 2)
    }
    with GroupClient(brokers[1].kafka_port) as client:
        eventually("both live", lambda: client.node_ids() == {1, 2})
    return brokers


def both(brokers: dict[int, HeadraceProcess]) -> str:
    return ",".join(broker.bootstrap for broker in brokers.values())


@pytest.mark.parametrize("lose", [kill, stop, pause])
def test_members_keep_generation_epoch_and_offsets_at_the_other_broker(tmp_path: Path, lose: Loss) -> None:
    """With sockets: the very claims that the lost coordinator gave are good at the other one."""
    with contextlib.ExitStack() as stack:
        brokers = pair(stack, tmp_path)
        lost, other = brokers[1], brokers[2]
        with GroupClient(lost.kafka_port) as client, Team(other.bootstrap, "topic", partitions=3):
            # Whoever is asked for a group that nobody holds takes it: all of these are coordinated by the first.
            claims = [client.become_only_member(f"classic-{number}", "topic", 3) for number in range(GROUPS)]
            claims += [client.become_consumer(f"consumer-{number}", "topic", 3) for number in range(GROUPS)]
            for claim in claims:
                assert client.commit(claim, "topic", {0: 7}) == {0: ErrorCode.NONE}
        lose(lost)
        with GroupClient(other.kafka_port) as client:
            for claim in claims:
                wait_for_move(client, claim)
                assert beat(client, claim) == ErrorCode.NONE, "it is the same member"
                assert client.committed(claim.group, "topic", 0) == {0: 7}
                assert client.commit(claim, "topic", {0: 8}) == {0: ErrorCode.NONE}
            if lose is pause:
                lost.resume()
                assert_zombie_serves_nobody(lost, claims)
            assert [client.committed(claim.group, "topic", 0) for claim in claims] == [{0: 8}] * len(claims)
        assert mistakes(other) == []


def wait_for_move(client: GroupClient, claim: Claim) -> None:
    """Wait until the second broker coordinates a group, and serves it."""
    eventually(f"{claim.group} has moved", lambda: client.coordinator_of(claim.group) == 2)
    eventually(f"{claim.group} is served", lambda: not is_passing(beat(client, claim)))


def beat(client: GroupClient, claim: Claim) -> ErrorCode:
    """Send the heartbeat of the member's protocol."""
    if claim.group.startswith("classic"):
        return client.beat(claim)
    return ErrorCode(client.consumer_beat(claim).error_code)


def assert_zombie_serves_nobody(zombie: HeadraceProcess, claims: list[Claim]) -> None:
    """A coordinator that slept through its session answers nothing that only the coordinator may."""
    with GroupClient(zombie.kafka_port) as client:
        for claim in claims:
            assert is_passing(beat(client, claim)), f"{claim.group} was served by a broker that had lost it"
            answers = client.commit(claim, "topic", {0: 1})
            assert all(is_passing(code) for code in answers.values()), answers


def test_what_a_paused_coordinator_finds_in_its_sockets_when_it_wakes_is_not_served(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        brokers = pair(stack, tmp_path)
        zombie, other = brokers[1], brokers[2]
        stuck = stack.enter_context(GroupClient(zombie.kafka_port))
        waiting = stack.enter_context(GroupClient(zombie.kafka_port))
        with Team(other.bootstrap, "topic", partitions=3):
            classic = stuck.become_only_member("classic", "topic", 3)
            consumer = stuck.become_consumer("consumer", "topic", 3)
        for claim in (classic, consumer):
            assert stuck.commit(claim, "topic", {0: 7}) == {0: ErrorCode.NONE}
        # A join that waits when the pause begins, because the only member does not come.
        waiting.send_join(Claim(group="classic", instance_id="waits"), subscription_to("topic"))
        eventually("it waits", lambda: stuck.beat(classic) == ErrorCode.REBALANCE_IN_PROGRESS)
        zombie.pause()
        stuck.send(HEARTBEAT, 4, beat_request(classic))
        stuck.send(CONSUMER_HEARTBEAT, 1, consumer_beat_request(consumer))
        for claim in (classic, consumer):
            stuck.send(OFFSET_COMMIT, 9, commit_request(claim, "topic", {0: 1}))
        with GroupClient(other.kafka_port) as client:
            for claim in (classic, consumer):
                wait_for_move(client, claim)
                assert client.commit(claim, "topic", {0: 8}) == {0: ErrorCode.NONE}
            zombie.resume()
            codes = [
                stuck.receive(HEARTBEAT, 4).error_code,
                stuck.receive(CONSUMER_HEARTBEAT, 1).error_code,
                stuck.receive(OFFSET_COMMIT, 9).topics[0].partitions[0].error_code,
                stuck.receive(OFFSET_COMMIT, 9).topics[0].partitions[0].error_code,
                waiting.receive_join().error_code,
            ]
            assert all(is_passing(ErrorCode(code)) for code in codes), codes
            eventually("it is back", lambda: client.node_ids() == {1, 2})
            assert_zombie_serves_nobody(zombie, [classic, consumer])
            with GroupClient(zombie.kafka_port) as awake:
                # It is a good broker again, and knows who coordinates.
                assert {awake.coordinator_of(claim.group) for claim in (classic, consumer)} == {2}
                assert awake.beat(classic) == ErrorCode.NOT_COORDINATOR
                assert awake.consumer_beat(consumer).error_code == ErrorCode.NOT_COORDINATOR
            for claim in (classic, consumer):
                assert beat(client, claim) == ErrorCode.NONE
                assert client.committed(claim.group, "topic", 0) == {0: 8}
        assert mistakes(zombie) == mistakes(other) == []


@pytest.mark.parametrize("lose", [kill, stop, pause])
def test_groups_of_real_consumers_go_on_with_the_partitions_they_have(tmp_path: Path, lose: Loss) -> None:
    with contextlib.ExitStack() as stack:
        brokers = pair(stack, tmp_path)
        teams = [stack.enter_context(Team(both(brokers), f"loss-{kind.name}")) for kind in KINDS]
        for team, kind in zip(teams, KINDS, strict=True):
            team.join("first", kind)
            team.join("second", kind)
        for team in teams:
            team.wait_for_shares(3, 3)
            team.send_and_read()
            team.wait_until_committed()
        coordinators = {team.wait_until_stable().coordinator.id for team in teams}
        before = [(member.member_id, member.owned, member.turns) for team in teams for member in team.members]
        lost = brokers.pop(min(coordinators))
        lose(lost)
        (survivor,) = brokers.values()
        for team in teams:
            team.bootstrap = survivor.bootstrap
            team.send_and_read()
            team.wait_until_committed()
            assert team.wait_until_stable().coordinator.port == survivor.kafka_port
        if lose is pause:
            lost.resume()
            for team in teams:
                team.send_and_read()
                team.wait_until_committed()
        assert [(member.member_id, member.owned, member.turns) for team in teams for member in team.members] == before
        for team in teams:
            assert team.committed() == team.sent
            team.verify_undisturbed()
        assert mistakes(survivor) == []


def test_a_rebalance_that_a_kill_interrupts_is_finished_by_the_other_broker(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        brokers = pair(stack, tmp_path)
        teams = [stack.enter_context(Team(both(brokers), f"midway-{kind.name}")) for kind in KINDS]
        for team, kind in zip(teams, KINDS, strict=True):
            team.join("first", kind)
            team.join("second", kind)
        for team in teams:
            team.wait_for_shares(3, 3)
            team.send_and_read()
        lost = brokers.pop(teams[0].wait_until_stable().coordinator.id)
        (survivor,) = brokers.values()
        for team, kind in zip(teams, KINDS, strict=True):
            team.join("third", kind)
        lost.kill()
        for team in teams:
            team.bootstrap = survivor.bootstrap
            team.send()
            team.wait_for_shares(2, 2, 2)
            team.wait_until_read()
            team.leave_all()
            assert team.committed() == team.sent
            team.verify_faultless()
        assert mistakes(survivor) == []
