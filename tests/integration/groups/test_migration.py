"""A group moves from the classic protocol to the newer one and back, member by member, while it reads."""

from collections.abc import Callable

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType

from tests.integration.groups.team import CONSUMER, COOPERATIVE, RANGE, Kind, Team

NewName = Callable[[str], str]


def wait_for_type(team: Team, kind: ConsumerGroupType) -> None:
    """Wait until the coordinator says that the group is of this type, and at rest."""
    team.wait_until(
        lambda: (team.described().type, team.described().state) == (kind, ConsumerGroupState.STABLE),
        lambda: f"a stable group of type {kind}, not {team.described().type} {team.described().state}",
    )


@pytest.mark.parametrize("classic", [RANGE, COOPERATIVE], ids=lambda kind: kind.name)
def test_a_group_moves_to_the_newer_protocol_and_back_member_by_member(
    bootstrap: str, new_name: NewName, classic: Kind
) -> None:
    with Team(bootstrap, new_name("migrates")) as team:
        members = [team.join("classic-1", classic), team.join("classic-2", classic)]
        team.wait_for_shares(3, 3)
        team.send_and_read()
        wait_for_type(team, ConsumerGroupType.CLASSIC)

        # Up: each classic member is replaced by one of the newer protocol, which joins first.
        for number, old in enumerate(members):
            members[number] = team.join(f"consumer-{number + 1}", CONSUMER)
            team.wait_for_shares(2, 2, 2)
            team.send_and_read()
            wait_for_type(team, ConsumerGroupType.CONSUMER)
            team.leave(old)
            team.wait_for_shares(3, 3)
            team.send_and_read()
        wait_for_type(team, ConsumerGroupType.CONSUMER)

        # Down: the same the other way; the group changes when the last of the newer kind has left.
        for number, old in enumerate(members):
            members[number] = team.join(f"again-{number + 1}", classic)
            team.wait_for_shares(2, 2, 2)
            team.send_and_read()
            wait_for_type(team, ConsumerGroupType.CONSUMER)
            team.leave(old)
            team.wait_for_shares(3, 3)
            team.send_and_read()
        wait_for_type(team, ConsumerGroupType.CLASSIC)
        team.wait_until_committed()
        team.leave_all()
        assert team.committed() == team.sent
        team.verify_undisturbed()


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(bootstrap: str, new_name: NewName) -> None:
    with Team(bootstrap, new_name("changes")) as team:
        for number, kind in enumerate((RANGE, CONSUMER, COOPERATIVE, CONSUMER)):
            member = team.join(f"member-{number}", kind)
            team.send_and_read()
            wait_for_type(team, ConsumerGroupType.CONSUMER if kind is CONSUMER else ConsumerGroupType.CLASSIC)
            team.leave(member)
            assert team.committed() == team.sent
        team.verify_undisturbed()
