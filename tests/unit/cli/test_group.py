"""`headrace group` where no cluster is needed. What it does to one is tested in tests/integration."""

import json
from collections.abc import Collection, Mapping, Sequence

import pytest

from headrace.cli import group as group_commands
from headrace.cli.client.groups import FoundGroups
from headrace.cli.group_details import (
    GroupDetails,
    GroupListing,
    GroupState,
    GroupType,
    MemberDetails,
    PartitionLag,
    Place,
)
from headrace.cli.main import run
from headrace.cli.offset_reset import PartitionSurvey
from headrace.errors import HeadraceError, Missing, Retryable

LIVE = GroupDetails(
    name="live",
    type=GroupType.CONSUMER,
    state=GroupState.STABLE,
    assignor="uniform",
    coordinator=1,
    coordinator_address="h:1",
    members=(
        MemberDetails(
            member_id="m-1",
            instance_id="i-1",
            client_id="c\x1b[31m",
            host="10.0.0.7",
            assigned=(("a", 0), ("a", 1), ("b", 0)),
            target=(("a", 0),),
        ),
        MemberDetails(member_id="m-2", instance_id=None, client_id="c", host="h", assigned=(), target=None),
    ),
    partitions=(
        PartitionLag(topic="a", partition=0, committed_offset=3, latest_offset=10, owner="m-1"),
        PartitionLag(topic="a", partition=1, committed_offset=None, latest_offset=4, owner="m-1"),
        PartitionLag(topic="b", partition=0, committed_offset=2, latest_offset=None, owner=None),
    ),
)
IDLE = GroupDetails(
    name="idle",
    type=GroupType.CLASSIC,
    state=GroupState.EMPTY,
    assignor=None,
    coordinator=None,
    coordinator_address=None,
    members=(),
    partitions=(),
)
FOUND = (
    GroupListing(name="idle", type=GroupType.CLASSIC, state=GroupState.EMPTY),
    GroupListing(name="live", type=GroupType.CONSUMER, state=GroupState.STABLE),
    GroupListing(name="odd\n", type=GroupType.OTHER, state=GroupState.UNKNOWN),
)


class FakeAdmin:
    """A cluster that has two groups and remembers what it was asked to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.groups: dict[str, GroupDetails] = {"live": LIVE, "idle": IDLE}
        self.list_failures: tuple[HeadraceError, ...] = ()
        self.commit_failures: dict[Place, HeadraceError] = {}
        self.surveys = [
            PartitionSurvey(topic="t", partition=0, committed_offset=5, start_offset=2, end_offset=9, offset_at=8),
            PartitionSurvey(topic="t", partition=1, committed_offset=None, start_offset=0, end_offset=4),
            PartitionSurvey(topic="t", partition=2, committed_offset=2, start_offset=2, end_offset=2),
        ]

    def find(self) -> FoundGroups:
        return FoundGroups(groups=FOUND, failures=self.list_failures)

    def describe(self, names: Sequence[str]) -> dict[str, GroupDetails | HeadraceError]:
        return {name: self.groups.get(name, Missing(f"no {name}")) for name in names}

    def delete(self, names: Sequence[str]) -> dict[str, HeadraceError | None]:
        self.calls.append(("delete", *names))
        return {name: None if name in self.groups else Missing(f"no {name}") for name in names}

    def require_empty(self, name: str) -> bool:
        if name == "live":
            raise Retryable("live has members")
        return name in self.groups

    def survey(
        self, name: str, topics: Mapping[str, Collection[int] | None] | None, moment_ms: int | None
    ) -> list[PartitionSurvey]:
        self.calls.append(("survey", name, topics, moment_ms))
        return self.surveys

    def commit(self, name: str, offsets: Mapping[Place, int]) -> dict[Place, HeadraceError | None]:
        self.calls.append(("commit", name, dict(offsets)))
        return {place: self.commit_failures.get(place) for place in offsets}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(group_commands, "_admin", lambda _: fake)
    return fake


def test_list_shows_all_groups_or_those_of_a_state_and_type(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["group", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "group  type      state",
        "idle   classic   empty",
        "live   consumer  stable",
        r"odd\n  other     unknown",
    ]
    for options, expected in {
        ("--state", "Stable"): ["live"],
        ("--state", "stable", "--state", "empty"): ["idle", "live"],
        ("--type", "classic", "--type", "other"): ["idle", "odd\n"],
        ("--type", "classic", "--state", "stable"): [],
    }.items():
        assert run(["group", "list", "--output", "json", *options]) == 0
        assert [row["group"] for row in json.loads(capsys.readouterr().out)] == expected
    assert run(["group", "list", "--type", "consumer", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"group": "live", "type": "consumer", "state": "stable"}]


def test_list_shows_what_it_has_and_complains_about_a_broker_that_does_not_answer(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.list_failures = (Retryable("broker 2 is away"),)
    assert run(["group", "list"]) == 1
    printed = capsys.readouterr()
    assert printed.err == "headrace: broker 2 is away\n" and "idle" in printed.out


def test_describe_shows_members_and_lag_and_complains_about_the_rest(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["group", "describe", "live", "nope", "idle", "live"]) == 1
    printed = capsys.readouterr()
    assert printed.err == "headrace: no nope\n"
    assert printed.out.splitlines() == [
        "group live: consumer, stable, assignor uniform, coordinator 1 (h:1), 2 members, "
        "total lag 7 and unknown in 2 partitions",
        "member  instance  client     host      partitions",
        r"m-1     i-1       c\x1b[31m  10.0.0.7  a:0,1 b:0",
        "m-2     -         c          h         -",
        "topic  partition  committed  latest  lag  owner",
        "a      0          3          10      7    m-1",
        "a      1          -          4       ?    m-1",
        "b      0          2          ?       ?    -",
        "",
        "group idle: classic, empty, assignor none, coordinator unknown, 0 members, total lag 0",
    ]


def test_describe_for_programs_holds_the_same(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["group", "describe", "live", "--output", "json"]) == 0
    [group] = json.loads(capsys.readouterr().out)
    assert {name: value for name, value in group.items() if not isinstance(value, list)} == {
        "group": "live",
        "type": "consumer",
        "state": "stable",
        "assignor": "uniform",
        "coordinator": 1,
        "coordinator_address": "h:1",
        "total_lag": 7,
    }
    assert group["members"][0]["instance_id"] == "i-1" and group["members"][1]["target"] is None
    assert group["members"][0]["assigned"][-1] == {"topic": "b", "partition": 0}
    assert group["partitions"][1] == {
        "topic": "a",
        "partition": 1,
        "committed_offset": None,
        "latest_offset": 4,
        "lag": None,
        "owner": "m-1",
    }


def test_delete_asks_on_a_terminal_unless_told_not_to(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter("ny")

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda _: next(answers))
    assert run(["group", "delete", "idle"]) == 130
    assert admin.calls == []
    assert run(["group", "delete", "idle"]) == 0
    assert run(["group", "delete", "idle", "--yes"]) == 0
    assert admin.calls == [("delete", "idle")] * 2


def test_delete_goes_on_after_a_group_that_is_not_there(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["group", "delete", "nope", "idle", "--yes"]) == 1
    assert capsys.readouterr() == ("deleted group idle\n", "headrace: no nope\n")
    assert run(["group", "delete", "idle", "--yes", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"group": "idle", "outcome": "deleted"}]


def test_reset_only_prints_the_plan_unless_told_to_do_it(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["group", "reset-offsets", "idle", "--topic", "t", "--to-earliest"]) == 0
    assert admin.calls == [("survey", "idle", {"t": None}, None)]
    table = [
        "topic  partition  earliest  latest  committed  new  change",
        "t      0          2         9       5          2    -3",
        "t      1          0         4       -          0    first commit",
        "t      2          2         2       2          2    none",
    ]
    would = "group idle: would reset 2 of 3 partitions; --execute does it"
    assert capsys.readouterr().out.splitlines() == [would, *table]

    assert run(["group", "reset-offsets", "idle", "--topic", "t", "--to-earliest", "--execute"]) == 0
    assert admin.calls[-1] == ("commit", "idle", {("t", 0): 2, ("t", 1): 0})
    assert capsys.readouterr().out.splitlines() == ["group idle: reset 2 of 3 partitions", *table]


def test_reset_says_where_a_wish_was_bounded_or_had_nothing_to_shift(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["group", "reset-offsets", "new", "--all-topics", "--shift-by", "-5"]) == 0
    assert admin.calls == [("survey", "new", None, None)]
    assert capsys.readouterr().out.splitlines() == [
        "group new, which is new: would reset 1 of 3 partitions; --execute does it",
        "topic  partition  earliest  latest  committed  new  change",
        "t      0          2         9       5          2    -3 (asked for 0)",
        "t      1          0         4       -          -    none: nothing to shift",
        "t      2          2         2       2          2    none (asked for -3)",
    ]
    admin.surveys = admin.surveys[1:2]
    assert run(["group", "reset-offsets", "idle", "--all-topics", "--shift-by", "1"]) == 1
    assert "nothing to shift" in capsys.readouterr().err


def test_reset_asks_about_a_moment_and_goes_to_what_was_found(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["idle", "--topic", "t:0,1", "--topic", "u", "--to-datetime", "1970-01-01T00:00:07", "--output", "json"]
    assert run(["group", "reset-offsets", *words]) == 0
    assert admin.calls == [("survey", "idle", {"t": frozenset({0, 1}), "u": None}, 7000)]
    plan = json.loads(capsys.readouterr().out)
    assert (plan["group"], plan["executed"]) == ("idle", False)
    assert [(row["new_offset"], row["outcome"]) for row in plan["partitions"]] == [
        (8, "planned"),
        (4, "planned"),
        (2, "unchanged"),
    ]
    assert plan["partitions"][0] == {
        "topic": "t",
        "partition": 0,
        "earliest_offset": 2,
        "latest_offset": 9,
        "committed_offset": 5,
        "new_offset": 8,
        "outcome": "planned",
    }


def test_a_partition_that_could_not_be_reset_spares_its_neighbours(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.commit_failures = {("t", 1): Retryable("t [1] failed")}
    words = ["group", "reset-offsets", "idle", "--topic", "t", "--to-latest", "--execute"]
    assert run(words) == 1
    printed = capsys.readouterr()
    assert printed.err == "headrace: t [1] failed\n"
    assert printed.out.splitlines()[0] == "group idle: reset 1 of 3 partitions"
    assert [line.split()[-1] for line in printed.out.splitlines()[2:]] == ["+4", "failed", "none"]
    assert run([*words, "--output", "json"]) == 1
    outcomes = [row["outcome"] for row in json.loads(capsys.readouterr().out)["partitions"]]
    assert outcomes == ["reset", "failed", "unchanged"]


def test_a_request_that_failed_as_a_whole_is_told_once(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    failure = Retryable("nobody answers")
    admin.commit_failures = {("t", 0): failure, ("t", 1): failure}
    assert run(["group", "reset-offsets", "idle", "--topic", "t", "--to-latest", "--execute"]) == 1
    assert capsys.readouterr().err == "headrace: nobody answers\n"


def test_a_group_with_members_is_left_alone_even_by_a_dry_run(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--execute"]):
        assert run(["group", "reset-offsets", "live", "--all-topics", "--to-latest", *options]) == 1
        assert capsys.readouterr() == ("", "headrace: live has members\n")
    assert admin.calls == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["describe"], "Missing argument"),
        (["describe", ""], "the name of a group is not empty"),
        (["delete"], "Missing argument"),
        (["delete", "g", ""], "the name of a group is not empty"),
        (["list", "--state", "fine"], "--state"),
        (["list", "--type", "share"], "--type"),
        (["reset-offsets", "g", "--topic", "t"], "not said where to"),
        (["reset-offsets", "g", "--topic", "t", "--to-latest", "--to-offset", "3"], "exclude each other"),
        (["reset-offsets", "g", "--to-latest"], "either --topic, once or often, or --all-topics"),
        (["reset-offsets", "g", "--to-latest", "--topic", "t", "--all-topics"], "either --topic"),
        (["reset-offsets", "g", "--to-latest", "--topic", "t:"], "it takes TOPIC for all partitions"),
        (["reset-offsets", "g", "--topic", "t", "--to-offset", "-1"], "--to-offset"),
        (["reset-offsets", "g", "--topic", "t", "--to-datetime", "now"], "it takes ISO 8601"),
        (["reset-offsets", "", "--topic", "t", "--to-latest"], "the name of a group is not empty"),
    ],
)
def test_wrong_use_ends_with_code_two(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["group", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert complaint in line


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["describe", "g"],
        ["delete", "g", "--yes"],
        ["reset-offsets", "g", "--all-topics", "--to-latest", "--execute"],
    ],
)
def test_a_cluster_that_does_not_answer_is_told_with_what_to_do(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["group", *words, "--bootstrap", "127.0.0.1:1", "--timeout", "0.6"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("headrace: no broker answers at 127.0.0.1:1 (")
