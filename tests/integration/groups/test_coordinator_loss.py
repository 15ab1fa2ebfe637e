"""Two brokers on one data directory: when the coordinator goes, its groups move to the other, and members stay.

Sockets and librdkafka only: what other clients leave behind when a broker goes away is not what is tested here.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.model.error_codes import ErrorCode
from tests.integration.clients.librdkafka import admin
from tests.integration.clients.waiting import eventually
from tests.integration.groups.group_wire import Claim, GroupClient, is_passing
from tests.integration.groups.team import CONSUMER, COOPERATIVE, RANGE, Team
from tests.integration.wire.watching import mistakes
from tests.servers.headrace import HeadraceProcess, running_headrace

SETTINGS = {"broker.session.timeout.ms": "2000", "group.consumer.session.timeout.ms": "120000"}
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


@pytest.mark.parametrize("lose", [kill, stop])
def test_groups_of_real_consumers_go_on_with_the_partitions_they_have(tmp_path: Path, lose: Loss) -> None:
    with contextlib.ExitStack() as stack:
        brokers = pair(stack, tmp_path)
        bootstrap = ",".join(broker.bootstrap for broker in brokers.values())
        teams = [stack.enter_context(Team(bootstrap, f"loss-{kind.name}")) for kind in KINDS]
        for team, kind in zip(teams, KINDS, strict=True):
            team.join("first", kind)
            team.join("second", kind)
        for team in teams:
            team.wait_for_shares(3, 3)
            team.send_and_read()
            team.wait_until_committed()
        coordinators = {team.wait_until_stable().coordinator.id for team in teams}
        before = [member.owned for team in teams for member in team.members]
        lost = brokers.pop(min(coordinators))
        lose(lost)
        (survivor,) = brokers.values()
        for team in teams:
            # An admin client of librdkafka goes on asking a coordinator that has left the cluster in good order.
            team.admin = admin(survivor.bootstrap)
            team.send_and_read()
            team.wait_until_committed()
            assert team.wait_until_stable().coordinator.port == survivor.kafka_port
        assert [member.owned for team in teams for member in team.members] == before
        for team in teams:
            assert team.committed() == team.sent
            team.verify_undisturbed()
        assert mistakes(survivor) == []
