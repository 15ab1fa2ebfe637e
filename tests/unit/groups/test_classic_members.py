"""The roster: who is a member, which protocol all agree on, who leads."""

from headrace.groups.classic_members import Member, Roster, record_of, wanted_topics
from headrace.model.error_codes import ErrorCode
from tests.unit.groups.desk import join, wants


def member(name: str, *protocols: str, instance: str | None = None) -> Member:
    event = join(instance=instance, protocols=tuple((protocol, b"") for protocol in protocols))
    return Member(record_of(event, name))


def test_most_votes_choose_among_protocols_that_all_know() -> None:
    roster = Roster([member("a", "x", "y"), member("b", "y", "x"), member("c", "z", "y", "x")])
    assert roster.select_protocol() == "y"
    roster.remove("c")
    # One vote each: the one that was voted for first.
    assert roster.select_protocol() == "x"


def test_a_protocol_is_supported_only_if_every_member_knows_it() -> None:
    roster = Roster([member("a", "x", "y"), member("b", "y")])
    assert roster.supports((("q", b""), ("y", b"")))
    assert not roster.supports((("x", b""),))
    roster.remove("b")
    assert roster.supports((("x", b""),))


def test_protocols_count_anew_when_a_member_changes_them() -> None:
    roster = Roster([member("a", "x"), member("b", "x", "y")])
    roster.update(roster.members["a"], member("a", "x", "y").record)
    assert roster.supports((("y", b""),))
    roster.update(roster.members["b"], member("b", "y").record)
    assert not roster.supports((("x", b""),))


def test_the_first_member_leads_and_the_longest_there_follows() -> None:
    roster = Roster([member("a", "x"), member("b", "x"), member("c", "x")])
    assert roster.leader_id == "a"
    roster.remove("a")
    assert roster.leader_id == "b"
    roster.remove("c")
    roster.remove("b")
    assert roster.leader_id == ""
    roster.add(member("d", "x"))
    assert roster.leader_id == "d"


def test_a_leader_that_has_not_joined_is_replaced_by_one_that_has() -> None:
    roster = Roster([member("a", "x"), member("b", "x"), member("c", "x")])
    assert not roster.elect()
    roster.park_join(roster.members["c"], 7)
    assert roster.elect()
    assert roster.leader_id == "c"
    roster.park_join(roster.members["a"], 8)
    assert roster.elect()
    assert roster.leader_id == "c", "it has joined: there is no reason to change"


def test_codes_of_members_and_instance_ids() -> None:
    roster = Roster([member("a", "x"), member("s-1", "x", instance="s")])
    assert roster.check("a", None) is ErrorCode.NONE
    assert roster.check("b", None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert roster.check("s-1", "s") is ErrorCode.NONE
    assert roster.check("s-1", None) is ErrorCode.NONE
    assert roster.check("s-0", "s") is ErrorCode.FENCED_INSTANCE_ID
    assert roster.check("a", "t") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_renamed_member_keeps_lead_assignment_and_instance_id() -> None:
    roster = Roster([Member(member("s-1", "x", instance="s").record, assignment=b"p0"), member("a", "x")])
    renamed = roster.rename("s-1", "s-2")
    assert (roster.leader_id, renamed.assignment, renamed.record.member_id) == ("s-2", b"p0", "s-2")
    assert roster.check("s-1", "s") is ErrorCode.FENCED_INSTANCE_ID
    assert roster.supports((("x", b""),))


def test_a_protocol_that_is_named_twice_counts_once() -> None:
    record = record_of(join(protocols=(("x", b"1"), ("y", b"2"), ("x", b"3"))), "a")
    assert record.protocols == (("x", b"1"), ("y", b"2"))
    roster = Roster([Member(record)])
    roster.add(member("b", "x"))
    assert roster.select_protocol() == "x"


def test_topics_are_read_from_the_protocol_that_was_chosen() -> None:
    record = record_of(join(protocols=(("x", wants("a")), ("y", wants("b")))), "m")
    assert wanted_topics(record, "y") == frozenset({"b"})
    assert wanted_topics(record, "not known to it") == frozenset({"a"})
    assert wanted_topics(record_of(join(protocols=(("x", b"\xff"),)), "m"), "x") is None
