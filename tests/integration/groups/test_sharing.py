"""Members of every client library share a topic, come and go, and between them read every record once."""

from collections.abc import Callable

import pytest

from tests.integration.clients.librdkafka import create_topic
from tests.integration.groups.team import (
    AIOKAFKA,
    CONSUMER,
    CONSUMER_RANGE,
    COOPERATIVE,
    KAFKA_PYTHON,
    KAFKA_PYTHON_COOPERATIVE,
    RANGE,
    ROUNDROBIN,
    Kind,
    Team,
    fill,
)

NewName = Callable[[str], str]

ALL_KINDS = (
    RANGE,
    ROUNDROBIN,
    COOPERATIVE,
    CONSUMER,
    CONSUMER_RANGE,
    AIOKAFKA,
    KAFKA_PYTHON,
    KAFKA_PYTHON_COOPERATIVE,
)
ONE_OF_EACH = (RANGE, CONSUMER, AIOKAFKA, KAFKA_PYTHON)


def each(*kinds: Kind) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.name)


@each(*ALL_KINDS)
def test_partitions_change_hands_when_members_come_and_go_and_every_record_is_read_once(
    bootstrap: str, new_name: NewName, kind: Kind
) -> None:
    with Team(bootstrap, new_name("share")) as team:
        first, second = team.join("first", kind), team.join("second", kind)
        team.wait_for_shares(3, 3)
        team.send_and_read()
        before = {member: (member.owned, member.turns) for member in (first, second)}
        third = team.join("third", kind)
        team.wait_for_shares(2, 2, 2)
        team.send_and_read()
        if kind.is_sticky:
            for member, (owned, (takes, gives, losses)) in before.items():
                assert member.owned < owned, "it keeps what it does not have to give"
                assert member.turns == (takes, gives + 1, losses), "it is told once, of what it gives"
        team.leave(second)
        team.wait_for_shares(3, 3)
        team.send_and_read()
        assert first.losses == third.losses == 0
        team.leave_all()
        assert team.committed() == team.sent, "what was read is committed in the end"
        team.verify_undisturbed()


@each(*ONE_OF_EACH)
def test_a_new_consumer_goes_on_where_the_group_has_stopped(bootstrap: str, new_name: NewName, kind: Kind) -> None:
    with Team(bootstrap, new_name("resume")) as team:
        for name in ("first", "second", "third"):
            member = team.join(name, kind)
            team.send_and_read()
            team.leave(member)
            assert team.committed() == team.sent
        team.verify_undisturbed()


@each(*ONE_OF_EACH)
def test_what_was_read_is_committed_when_the_consumer_closes(bootstrap: str, new_name: NewName, kind: Kind) -> None:
    with Team(bootstrap, new_name("closing")) as team:
        member = team.join("only", kind, commits_only_on_close=True)
        team.send_and_read()
        assert team.committed() == {}, "nothing was committed yet"
        team.leave(member)
        assert team.committed() == team.sent


@each(RANGE, COOPERATIVE, CONSUMER)
def test_a_pattern_takes_in_what_is_created_later_and_nothing_else(
    bootstrap: str, new_name: NewName, kind: Kind
) -> None:
    stem = new_name("pattern")
    with Team(bootstrap, stem) as team:
        pattern = f"^{stem}-[ab].*"
        team.join("first", kind, topics=[pattern])
        team.join("second", kind, topics=[pattern])
        expected = set()
        for name in (f"{stem}-a", f"{stem}-c", f"x{stem}-a", f"{stem}-b-later"):
            create_topic(bootstrap, name, 2)
            fill(bootstrap, name, 2, 5)
            if name in (f"{stem}-a", f"{stem}-b-later"):
                expected.add(name)
                team.wait_until(
                    lambda: team.ledger.topics_read >= expected, lambda: f"{expected}, not {team.ledger.topics_read}"
                )
        team.wait_until(lambda: team.ledger.records_read == 20, lambda: f"20, not {team.ledger.records_read}")
        assert team.ledger.topics_read == expected
        team.verify_undisturbed()


@each(*ONE_OF_EACH)
def test_a_static_member_finds_its_partitions_again_and_the_other_notices_nothing(
    bootstrap: str, new_name: NewName, kind: Kind
) -> None:
    with Team(bootstrap, new_name("static")) as team:
        first = team.join("first", kind, instance_id="one")
        other = team.join("other", kind, instance_id="two")
        team.wait_for_shares(3, 3)
        team.send_and_read()
        assert {member.group_instance_id for member in team.wait_until_stable().members} == {"one", "two"}
        before, turns = first.owned, other.turns
        team.leave(first)
        team.send()
        again = team.join("again", kind, instance_id="one")
        team.wait_for_shares(3, 3)
        team.wait_until_read()
        assert again.owned == before
        assert other.turns == turns
        assert len(team.wait_until_stable().members) == 2
        team.verify_undisturbed()
