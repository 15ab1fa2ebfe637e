"""`headrace topic`: create, list, describe, alter and delete topics of any cluster that speaks Kafka.

Where several topics are named, each has its own outcome: one that fails does not keep the others from being done, and
the command ends with code 1.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from headrace.cli.completion import complete_topic
from headrace.cli.exits import end_with
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    Connection,
    Output,
    OutputAs,
    Properties,
    Timeout,
    connection,
    topic_configs_of,
)
from headrace.cli.printing import print_json, print_table
from headrace.errors import Exists, HeadraceError, Invalid, Missing

if TYPE_CHECKING:
    from headrace.cli.client.admin import PartitionDetails, TopicAdmin, TopicDetails

MAX_PARTITIONS = 2**31 - 1

topic_app = typer.Typer(name="topic", help="Create, list, describe, alter and delete topics.", rich_markup_mode=None)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_topic)]
Names: TypeAlias = Annotated[list[str], typer.Argument(metavar="NAME...", autocompletion=complete_topic)]
Partitions: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=MAX_PARTITIONS, help="How many partitions it shall have.")
]


@topic_app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    partitions: Partitions = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Set a config of the topic, to a file's text with =@FILE; may be given often."
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Be content if it is there already.")
    ] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Only ask whether it could be done.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    properties: Properties = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Create a topic. What is not given is left to the cluster."""
    configs = topic_configs_of(config, "--config")
    admin = _admin(connection(bootstrap, timeout, properties))
    outcome = "valid" if validate_only else "created"
    try:
        admin.create(name, partitions=partitions, configs=configs, validate_only=validate_only)
    except Exists as error:
        if not if_not_exists:
            raise Exists(f"{error}; --if-not-exists makes that no error") from error
        outcome = "exists"
    sentences = {
        "created": f"created topic {name}",
        "exists": f"topic {name} exists already",
        "valid": f"topic {name} could be created",
    }
    _report({"topic": name, "outcome": outcome}, sentences[outcome], output)


@topic_app.command("list")
def list_topics(
    internal: Annotated[
        bool, typer.Option("--internal", help="Also those that the cluster keeps for itself.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    properties: Properties = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """List the topics of a cluster."""
    admin = _admin(connection(bootstrap, timeout, properties))
    described = admin.describe(admin.names(), in_full=False)
    topics = [found for topic in described.values() if (found := _unless_deleted(topic)) is not None]
    shown = sorted((topic for topic in topics if internal or not topic.is_internal), key=lambda topic: topic.name)
    if output is Output.JSON:
        print_json([_summary(topic) for topic in shown])
    else:
        print_table(("topic", "partitions", "id"), [(t.name, len(t.partitions), t.topic_id) for t in shown])


@topic_app.command()
def describe(
    names: Names,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    properties: Properties = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Show partitions, leaders, offsets, and the configs that are not at their default."""
    answers = _admin(connection(bootstrap, timeout, properties)).describe(list(dict.fromkeys(names)), in_full=True)
    topics = [answer for answer in answers.values() if not isinstance(answer, HeadraceError)]
    if output is Output.JSON:
        print_json([_details(topic) for topic in topics])
    else:
        for number, topic in enumerate(topics):
            print("\n" * (number > 0), end="")
            _print_details(topic)
    end_with(answer for answer in answers.values() if isinstance(answer, HeadraceError))


@topic_app.command()
def alter(
    name: Name,
    partitions: Partitions = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set a config, to a file's text with =@FILE; may be given often.",
        ),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Return a config to its default; may be given often.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    properties: Properties = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Add partitions to a topic, or change its configs."""
    put, drop = topic_configs_of(set_, "--set"), unset or []
    if partitions is None and not put and not drop:
        raise Invalid("nothing to alter: give --partitions, --set or --unset")
    if both := sorted(set(put) & set(drop)):
        raise Invalid(f"{', '.join(both)}: either --set or --unset")
    admin = _admin(connection(bootstrap, timeout, properties))
    if partitions is not None and (put or drop):
        # Two calls cannot be one: ask first, so that a refusal leaves everything as it was.
        admin.add_partitions(name, partitions, validate_only=True)
    if put or drop:
        admin.alter_configs(name, put=put, drop=drop)
    if partitions is not None:
        admin.add_partitions(name, partitions, validate_only=False)
    _report({"topic": name, "outcome": "altered"}, f"altered topic {name}", output)


@topic_app.command()
def delete(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    properties: Properties = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Delete topics with all their records. On a terminal this asks first."""
    asked = list(dict.fromkeys(names))
    reached = connection(bootstrap, timeout, properties)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {', '.join(asked)} and all records?", abort=True, err=True)
    failures = _admin(reached).delete(asked)
    deleted = [name for name, failure in failures.items() if failure is None]
    if output is Output.JSON:
        print_json([{"topic": name, "outcome": "deleted"} for name in deleted])
    else:
        for name in deleted:
            print(f"deleted topic {name}")
    end_with(failures.values())


def _admin(reached: Connection) -> "TopicAdmin":
    from headrace.cli.client.admin import TopicAdmin  # Late: see the package.

    return TopicAdmin(reached)


def _unless_deleted(answer: "TopicDetails | HeadraceError") -> "TopicDetails | None":
    """Return a topic, or None if it was deleted between the question for names and the one for details."""
    if isinstance(answer, HeadraceError) and not isinstance(answer, Missing):
        raise answer
    return None if isinstance(answer, HeadraceError) else answer


def _report(data: Mapping[str, str], sentence: str, output: Output) -> None:
    if output is Output.JSON:
        print_json(data)
    else:
        print(sentence)


def _summary(topic: "TopicDetails") -> dict[str, object]:
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "internal": topic.is_internal,
        "partitions": len(topic.partitions),
    }


def _details(topic: "TopicDetails") -> dict[str, object]:
    return {
        **_summary(topic),
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_address": partition.leader_address,
                "replicas": partition.replicas,
                "isr": partition.isr,
                "earliest_offset": partition.earliest_offset,
                "latest_offset": partition.latest_offset,
            }
            for partition in topic.partitions
        ],
        "configs": {config.name: {"value": config.value, "source": config.source} for config in topic.configs},
    }


def _print_details(topic: "TopicDetails") -> None:
    count = len(topic.partitions)
    internal = ", internal" if topic.is_internal else ""
    print(f"topic {topic.name}: {count} partition{'' if count == 1 else 's'}, id {topic.topic_id}{internal}")
    print_table(("partition", "leader", "earliest", "latest", "replicas", "in sync"), _rows(topic.partitions))
    if topic.configs:
        print_table(("config", "value", "source"), [(c.name, c.value, c.source) for c in topic.configs])


def _rows(partitions: Sequence["PartitionDetails"]) -> list[tuple[object, ...]]:
    return [
        (
            p.partition,
            "none" if p.leader is None else f"{p.leader} ({p.leader_address})",
            "?" if p.earliest_offset is None else p.earliest_offset,
            "?" if p.latest_offset is None else p.latest_offset,
            ",".join(map(str, p.replicas)),
            ",".join(map(str, p.isr)),
        )
        for p in partitions
    ]
