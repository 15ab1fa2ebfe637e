"""What a SQL statement would do, judged before Spark carries it out.

The files of a topic's table are the very bytes that Kafka clients read. `DROP TABLE … PURGE` would delete them, so
`headrace sql` only reads unless a person asks for more, and even then it takes no topic's table away.

1. Spark parses the statement; nothing is resolved or run yet.
2. Every node of the plan is named (`nodes_of`), with the table that a command is about.
3. `judge` decides by these names alone. What it does not know is refused.

Must stay true: no statement that is let through can delete or replace a file that the log's branch names.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import Invalid
from headrace.tables.iceberg.layout import TOPIC_ID, TOPIC_NAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_READING_PREFIXES = ("Show", "Describe", "Explain", "List")
_READING = {"SetCatalogAndNamespace", "SetCommand"}
_ROWS = {"InsertIntoStatement", "DeleteFromTable", "UpdateTable", "MergeIntoTable"}
"""They change `main` of a topic's table, as they may; the log's branch keeps its files."""
_ADDITIONS = {"AddColumns", "CommentOnTable"}
_NEW = {
    "CreateTable",
    "CreateTableAsSelect",
    "CreateTableLikeCommand",
    "CreateView",
    "CreateViewCommand",
    "CreateIcebergView",
    "CreateNamespace",
}
_NAMED_BY: dict[str, Callable[[Any], Any]] = {
    "UnresolvedIdentifier": lambda node: node.nameParts(),
    "UnresolvedTable": lambda node: node.multipartIdentifier(),
    "UnresolvedTableOrView": lambda node: node.multipartIdentifier(),
    "UnresolvedRelation": lambda node: node.multipartIdentifier(),
}
"""Nodes that name a table, and where they keep the name."""
_OPAQUE = {"Call", "CompoundBody", "UnresolvedExecuteImmediate"}
"""What they do is not in the plan. A procedure of Iceberg may delete or rewrite any file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a parsed statement: its class, whether it is a command, and the table that it changes, if known."""

    name: str
    is_command: bool = False
    overwrites: bool = False
    target: tuple[str, ...] | None = None

    @property
    def shown(self) -> str:
        """Return the class as a person would write the statement."""
        words = re.sub(r"(Command|Statement|\$)+$", "", self.name.removeprefix("Unresolved"))
        shown = " ".join(re.findall(r"[A-Z][a-z]*", words)).upper()
        return shown.replace("INTO", "OVERWRITE") if self.overwrites else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The topic that a table belongs to."""

    topic: str


def judge(nodes: Sequence[Node], *, may_write: bool, owner_of: Callable[[tuple[str, ...]], Owner | None]) -> None:
    """Raise `Invalid` if a statement does more than it may. `owner_of` says which topic a table belongs to."""
    for node in nodes:
        if _reads(node):
            continue
        if not may_write:
            raise Invalid(f"headrace sql only reads, and this is {node.shown}: give --write to change data")
        if node.name in _OPAQUE:
            raise Invalid(
                f"{node.shown} is not taken here, because it may delete files that hold topics' records: use a Spark"
                " session of your own, as docs/guides/spark.md says"
            )
        if node.name in _NEW or node.name in _ADDITIONS or (node.name in _ROWS and not node.overwrites):
            continue
        if node.target is None:
            raise Invalid(
                f"{node.shown} is not taken here: use a Spark session of your own, as docs/guides/spark.md says"
            )
        owner = owner_of(node.target)
        if owner is not None:
            raise Invalid(_protected(node, owner))


def check_statement(session: "SparkSession", question: str, *, may_write: bool) -> None:
    """Raise `Invalid` if a statement may not be carried out, and what Spark raises if it is not SQL."""
    plan = session._jsparkSession.sessionState().sqlParser().parsePlan(question)
    judge(list(nodes_of(session, plan)), may_write=may_write, owner_of=lambda name: _owner_of(session, name))


def nodes_of(session: "SparkSession", plan: Any) -> Iterator[Node]:
    """Return the nodes of a parsed plan, from the top."""
    name = plan.getClass().getSimpleName()
    is_command = any(_is_a(session, plan, f"{_LOGICAL}.{kind}") for kind in ("Command", "ParsedStatement"))
    is_command = is_command or name in _OPAQUE
    yield Node(
        name=name,
        is_command=is_command,
        overwrites=name == "InsertIntoStatement" and bool(plan.overwrite()),
        target=_target_of(plan) if is_command else None,
    )
    for child in _elements(plan.children()):
        yield from nodes_of(session, child)


def _reads(node: Node) -> bool:
    if not node.is_command:
        return True
    return node.name.startswith(_READING_PREFIXES) or node.name in _READING


def _protected(node: Node, owner: Owner) -> str:
    return (
        f"{node.shown} is never done to a topic's table: its files hold the Kafka records of topic {owner.topic}."
        f" To delete the records, run `headrace topic delete {owner.topic}`; to stop filling the table, run"
        f" `headrace topic alter {owner.topic} --set headrace.table.enable=false`"
    )


def _target_of(plan: Any) -> tuple[str, ...] | None:
    """Return the name of the table that a command changes: its own field, or its first child."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        named = plan.table()
    except Py4JError:  # this command has no such field
        named = next(_elements(plan.children()), None)
    find = None if named is None else _NAMED_BY.get(named.getClass().getSimpleName())
    if find is not None:
        return tuple(_elements(find(named)))
    return tuple(_elements(named)) if named is not None and _is_list_of_text(named) else None


def _is_list_of_text(value: Any) -> bool:
    """Say whether a value of Scala is a list of text, as Iceberg's own commands name their tables."""
    from py4j.protocol import Py4JError

    try:
        return value.size() > 0 and all(isinstance(part, str) for part in _elements(value))
    except Py4JError:
        return False


def _elements(seq: Any) -> Iterator[Any]:
    return (seq.apply(number) for number in range(seq.size()))


def _is_a(session: "SparkSession", value: Any, java_class: str) -> bool:
    from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]

    return bool(is_instance_of(session.sparkContext._gateway, value, java_class))


def _owner_of(session: "SparkSession", name: tuple[str, ...]) -> Owner | None:
    """Return the topic of a table; `None` if it is somebody else's, or not there."""
    from pyspark.errors import AnalysisException

    quoted = ".".join("`" + part.replace("`", "``") + "`" for part in name)
    try:
        properties = {
            str(row["key"]): str(row["value"]) for row in session.sql(f"SHOW TBLPROPERTIES {quoted}").collect()
        }
    except AnalysisException:
        return None
    return Owner(topic=properties.get(TOPIC_NAME, name[-1])) if TOPIC_ID in properties else None
