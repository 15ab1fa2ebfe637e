"""`headrace topic` where no cluster is needed. What it does to one is tested in tests/integration."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from headrace.cli import topic as topic_commands
from headrace.cli.client.admin import ConfigValue, PartitionDetails, TopicDetails
from headrace.cli.main import run
from headrace.cli.options import MAX_CONFIG_FILE_BYTES
from headrace.errors import Exists, HeadraceError, Missing, Retryable

ORDERS = TopicDetails(
    name="orders",
    topic_id="id-1",
    is_internal=False,
    partitions=(
        PartitionDetails(
            partition=0,
            leader=1,
            leader_address="h:1",
            replicas=(1, 2),
            isr=(1,),
            earliest_offset=5,
            latest_offset=9,
        ),
        PartitionDetails(
            partition=1,
            leader=None,
            leader_address=None,
            replicas=(1,),
            isr=(),
            earliest_offset=None,
            latest_offset=None,
        ),
    ),
    configs=(ConfigValue(name="retention.ms", value="7\x1b[31m", source="dynamic topic"),),
)
OFFSETS = TopicDetails(name="__offsets", topic_id="id-2", is_internal=True, partitions=(), configs=())


class FakeAdmin:
    """A cluster that has one topic and one of its own, and remembers what it was asked to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.answers: dict[str, TopicDetails | HeadraceError] = {"orders": ORDERS, "__offsets": OFFSETS}

    def names(self) -> list[str]:
        return list(self.answers)

    def describe(self, names: Sequence[str], *, in_full: bool) -> dict[str, TopicDetails | HeadraceError]:
        return {name: self.answers.get(name, Missing(f"no {name}")) for name in names}

    def create(self, name: str, **wanted: object) -> None:
        if name in self.answers:
            raise Exists(f"{name} is there")
        self.calls.append(("create", name, wanted))

    def delete(self, names: Sequence[str]) -> dict[str, HeadraceError | None]:
        self.calls.append(("delete", *names))
        return {name: None if name in self.answers else Missing(f"no {name}") for name in names}

    def add_partitions(self, name: str, total: int, *, validate_only: bool) -> None:
        self.calls.append(("partitions", name, total, validate_only))

    def alter_configs(self, name: str, *, put: Mapping[str, str], drop: Sequence[str]) -> None:
        self.calls.append(("configs", name, dict(put), list(drop)))


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(topic_commands, "_admin", lambda _: fake)
    return fake


def test_create_leaves_to_the_cluster_what_is_not_given(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "create", "new"]) == 0
    assert run(["topic", "create", "big", "--partitions", "9", "--config", "a=1", "--validate-only"]) == 0
    assert admin.calls == [
        ("create", "new", {"partitions": None, "configs": {}, "validate_only": False}),
        ("create", "big", {"partitions": 9, "configs": {"a": "1"}, "validate_only": True}),
    ]
    assert capsys.readouterr().out == "created topic new\ntopic big could be created\n"


def test_a_topic_that_exists_is_an_error_unless_that_is_fine(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topic", "create", "orders"]) == 1
    assert "orders is there; --if-not-exists makes that no error" in capsys.readouterr().err
    assert run(["topic", "create", "orders", "--if-not-exists"]) == 0
    assert capsys.readouterr().out == "topic orders exists already\n"


def test_list_shows_internal_topics_where_that_is_asked_for(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topic", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == ["topic   partitions  id", "orders  2           id-1"]
    assert run(["topic", "list", "--internal"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["topic", "__offsets", "orders"]


def test_list_passes_over_what_was_deleted_meanwhile_and_fails_when_nobody_answers(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers["gone"] = Missing("deleted")
    assert run(["topic", "list"]) == 0
    assert "gone" not in capsys.readouterr().out
    admin.answers["gone"] = Retryable("no answer")
    assert run(["topic", "list"]) == 1


def test_describe_shows_what_there_is_and_complains_about_the_rest(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topic", "describe", "orders", "nope", "orders"]) == 1
    printed = capsys.readouterr()
    assert printed.err == "headrace: no nope\n"
    assert printed.out.splitlines() == [
        "topic orders: 2 partitions, id id-1",
        "partition  leader   earliest  latest  replicas  in sync",
        "0          1 (h:1)  5         9       1,2       1",
        "1          none     ?         ?       1",
        "config        value      source",
        r"retention.ms  7\x1b[31m  dynamic topic",
    ]


def test_alter_asks_before_it_changes_two_things(admin: FakeAdmin) -> None:
    assert run(["topic", "alter", "orders", "--partitions", "4", "--set", "a=1", "--unset", "b"]) == 0
    assert admin.calls == [
        ("partitions", "orders", 4, True),
        ("configs", "orders", {"a": "1"}, ["b"]),
        ("partitions", "orders", 4, False),
    ]


def test_delete_asks_on_a_terminal_unless_told_not_to(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter("ny")

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return f"{next(answers)}\n"

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda _: next(answers))
    assert run(["topic", "delete", "orders"]) == 130
    assert admin.calls == []
    assert run(["topic", "delete", "orders"]) == 0
    assert run(["topic", "delete", "orders", "--yes"]) == 0
    assert admin.calls == [("delete", "orders")] * 2


def test_delete_goes_on_after_a_topic_that_is_not_there(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "delete", "nope", "orders", "--yes"]) == 1
    assert capsys.readouterr() == ("deleted topic orders\n", "headrace: no nope\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["create"], "Missing argument"),
        (["create", "t", "--partitions", "0"], "--partitions"),
        (["create", "t", "--config", "a"], "--config takes NAME=VALUE"),
        (["create", "t", "--config", "a=1", "--config", "a=2"], "--config gives a twice"),
        (["alter", "t"], "nothing to alter"),
        (["alter", "t", "--set", "a=1", "--unset", "a"], "a: either --set or --unset"),
        (["delete"], "Missing argument"),
        (["list", "--timeout", "0"], "--timeout"),
        (["list", "-X", "no.such.property=1"], 'No such configuration property: "no.such.property"'),
    ],
)
def test_wrong_use_ends_with_code_two(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topic", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert complaint in line


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "list"],
        ["topic", "create", "t"],
        ["topic", "delete", "t", "--yes"],
        ["produce", "t", "--file", __file__],
        ["consume", "t"],
    ],
)
def test_a_cluster_that_does_not_answer_is_told_with_what_to_do(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--bootstrap", "127.0.0.1:1", "--timeout", "0.6"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("headrace: no broker answers at 127.0.0.1:1 (")
    assert line.endswith("): start one with `headrace serve`, or name another with --bootstrap")


def test_a_config_can_be_the_text_of_a_file(
    admin: FakeAdmin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "order.avsc"
    file.write_text('{"type": "record"}\n', encoding="utf-8")
    assert run(["topic", "create", "new", "--config", f"headrace.table.schema=@{file}"]) == 0
    assert run(["topic", "alter", "orders", "--set", f"headrace.table.schema=@{file}"]) == 0
    told = {"headrace.table.schema": '{"type": "record"}\n'}
    assert admin.calls == [
        ("create", "new", {"partitions": None, "configs": told, "validate_only": False}),
        ("configs", "orders", told, []),
    ]
    assert run(["topic", "create", "new", "--config", f"headrace.table.schema=@{tmp_path}/nowhere"]) == 2
    assert "nowhere cannot be read" in capsys.readouterr().err
    file.write_bytes(b"\xff")
    assert run(["topic", "create", "new", "--config", f"headrace.table.schema=@{file}"]) == 2
    file.write_text("x" * (MAX_CONFIG_FILE_BYTES + 1))
    assert run(["topic", "create", "new", "--config", f"headrace.table.schema=@{file}"]) == 2
    assert "is larger than" in capsys.readouterr().err
