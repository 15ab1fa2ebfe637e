"""What statements may do is decided by their names alone; what is not known is refused."""

import pytest

from headrace.errors import Invalid
from headrace.pipeline.spark.statements import Node, Owner, judge

QUERY = Node(name="Project")
TOPICS: dict[tuple[str, ...], Owner] = {("orders",): Owner(topic="orders")}


def judged(*nodes: Node, may_write: bool) -> str:
    """Return why a statement is refused; nothing if it is not."""
    try:
        judge(nodes, may_write=may_write, owner_of=TOPICS.get)
    except Invalid as error:
        return str(error)
    return ""


def command(name: str, *target: str, overwrites: bool = False) -> Node:
    return Node(name=name, is_command=True, target=target or None, overwrites=overwrites)


@pytest.mark.parametrize("name", ["ShowTables", "DescribeRelation", "ExplainCommand", "SetCommand"])
def test_what_reads_is_let_through(name: str) -> None:
    assert judged(command(name), QUERY, may_write=False) == ""


@pytest.mark.parametrize("name", ["DropTable", "InsertIntoStatement", "CreateTable", "SomethingNew", "Call"])
def test_every_other_command_needs_leave(name: str) -> None:
    assert "only reads" in judged(QUERY, command(name, "mine"), may_write=False)


@pytest.mark.parametrize("name", ["DropTable", "ReplaceTable", "SomethingNew", "DropBranch"])
def test_with_leave_it_depends_on_whose_table_it_is(name: str) -> None:
    assert judged(command(name, "mine"), may_write=True) == ""
    assert "headrace topic delete orders" in judged(command(name, "orders"), may_write=True)
    assert "is not taken here" in judged(command(name), may_write=True)


def test_rows_may_be_changed_but_not_all_of_them_overwritten() -> None:
    assert judged(command("InsertIntoStatement", "orders"), may_write=True) == ""
    refused = judged(command("InsertIntoStatement", "orders", overwrites=True), may_write=True)
    assert refused.startswith("INSERT OVERWRITE is never done")
    assert judged(command("InsertIntoStatement", "mine", overwrites=True), may_write=True) == ""


def test_what_hides_other_statements_is_refused_with_any_leave() -> None:
    for name in ("Call", "CompoundBody", "UnresolvedExecuteImmediate"):
        assert "a Spark session of your own" in judged(command(name, "mine"), may_write=True)
