"""`headrace group`: list, describe and delete consumer groups of any cluster that speaks Kafka, move their offsets.

Where several groups are named, each has its own outcome, as with topics. `reset-offsets` makes a plan first, which
fails as a whole if a part of it cannot be; only `--execute` carries it out, and then partitions answer one by one.
"""

import itertools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from headrace.cli.completion import complete_group, complete_topic
from headrace.cli.exits import end_with
from headrace.cli.group_details import GroupDetails, GroupState, GroupType, MemberDetails, PartitionLag, Place
from headrace.cli.offset_reset import (
    Outcome,
    PlannedReset,
    Reset,
    WishKind,
    changes_of,
    choose_wish,
    parse_moment,
    parse_topics,
    plan_reset,
)
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
)
from headrace.cli.printing import print_json, print_line, print_table
from headrace.errors import HeadraceError, Invalid, Missing

if TYPE_CHECKING:
    from headrace.cli.client.groups import GroupAdmin

MAX_OFFSET = 2**63 - 1

group_app = typer.Typer(
    name="group", help="List, describe and delete consumer groups, and reset their offsets.", rich_markup_mode=None
)

Name: TypeAlias = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=complete_group)]
Names: TypeAlias = Annotated[list[str], typer.Argument(metavar="GROUP...", autocompletion=complete_group)]


@group_app.command("list")
def list_groups(
    state: Annotated[
        list[GroupState] | None,
        typer.Option(case_sensitive=False, help="Only groups in this state; may be given often."),
    ] = None,
    type_: Annotated[
        list[GroupType] | None,
        typer.Option("--type", case_sensitive=False, help="Only groups of this type; may be given often."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    properties: Properties = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """List the groups of a cluster."""
    found = _admin(connection(bootstrap, timeout, properties)).find()
    shown = [group for group in found.groups if group.state in (state or GroupState)]
    shown = [group for group in shown if group.type in (type_ or GroupType)]
    if output is Output.JSON:
        print_json([{"group": group.name, "type": group.type, "state": group.state} for group in shown])
    else:
        print_table(("group", "type", "state"), [(group.name, group.type, group.state) for group in shown])
    end_with(found.failures)


@group_app.command()
def describe(
    names: Names,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    properties: Properties = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Show state, members, and how far the group is in each partition."""
    answers = _admin(connection(bootstrap, timeout, properties)).describe(_asked(names))
    groups = [answer for answer in answers.values() if not isinstance(answer, HeadraceError)]
    if output is Output.JSON:
        print_json([_details(group) for group in groups])
    else:
        for number, group in enumerate(groups):
            print("\n" * (number > 0), end="")
            _print_details(group)
    end_with(answer for answer in answers.values() if isinstance(answer, HeadraceError))


@group_app.command()
def delete(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    properties: Properties = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Delete groups without members, with all their offsets. On a terminal this asks first."""
    asked = _asked(names)
    reached = connection(bootstrap, timeout, properties)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {', '.join(asked)} and all committed offsets?", abort=True, err=True)
    failures = _admin(reached).delete(asked)
    deleted = [name for name, failure in failures.items() if failure is None]
    if output is Output.JSON:
        print_json([{"group": name, "outcome": "deleted"} for name in deleted])
    else:
        for name in deleted:
            print_line(f"deleted group {name}")
    end_with(failure for failure in failures.values() if failure is not None)


@group_app.command()
def reset_offsets(
    name: Name,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC[:P,P…]",
            autocompletion=complete_topic,
            help="A topic, or some of its partitions; may be given often.",
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics that the group has committed offsets in.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first offset there is.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the next offset to be written.")] = False,
    to_offset: Annotated[int | None, typer.Option(metavar="N", min=0, max=MAX_OFFSET, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="To the first record at or after a moment, in ISO 8601; UTC without a zone."
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(metavar="N", min=-MAX_OFFSET, max=MAX_OFFSET, help="On by so many offsets; back if negative."),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; else only the plan is printed.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    properties: Properties = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Move the committed offsets of a group without members. Without --execute this only prints what would change."""
    moment_ms = None if to_datetime is None else parse_moment(to_datetime)
    wish = choose_wish(
        {
            WishKind.EARLIEST: 0 if to_earliest else None,
            WishKind.LATEST: 0 if to_latest else None,
            WishKind.OFFSET: to_offset,
            WishKind.DATETIME: moment_ms,
            WishKind.SHIFT: shift_by,
        }
    )
    if bool(topic) is all_topics:
        raise Invalid("which topics? Give either --topic, once or often, or --all-topics")
    wanted = parse_topics(topic) if topic else None
    [name] = _asked([name])
    admin = _admin(connection(bootstrap, timeout, properties))
    exists = admin.require_empty(name)
    plan = plan_reset(wish, admin.survey(name, wanted, moment_ms))
    if all(step.new_offset is None for step in plan):
        raise Missing(f"group {name} has committed nothing there: there is nothing to shift")
    failures = admin.commit(name, changes_of(plan)) if execute else None
    reset = Reset(group=name, exists=exists, plan=plan, failures=failures)
    if output is Output.JSON:
        print_json(_reset_as_data(reset))
    else:
        _print_reset(reset)
    # A request that fails as a whole fails every partition with one and the same error: it is told once.
    end_with(dict.fromkeys((failures or {}).values()))


def _admin(reached: Connection) -> "GroupAdmin":
    from headrace.cli.client.groups import GroupAdmin  # Late: see the package.

    return GroupAdmin(reached)


def _asked(names: Sequence[str]) -> list[str]:
    if "" in names:
        raise Invalid("the name of a group is not empty")
    return list(dict.fromkeys(names))


def _details(group: GroupDetails) -> dict[str, object]:
    return {
        "group": group.name,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "coordinator_address": group.coordinator_address,
        "total_lag": group.total_lag,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "assigned": _places_as_data(member.assigned),
                "target": None if member.target is None else _places_as_data(member.target),
            }
            for member in group.members
        ],
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "committed_offset": partition.committed_offset,
                "latest_offset": partition.latest_offset,
                "lag": partition.lag,
                "owner": partition.owner,
            }
            for partition in group.partitions
        ],
    }


def _places_as_data(places: Sequence[Place]) -> list[dict[str, object]]:
    return [{"topic": topic, "partition": partition} for topic, partition in places]


def _print_details(group: GroupDetails) -> None:
    known = group.coordinator is not None
    coordinator = f"{group.coordinator} ({group.coordinator_address})" if known else "unknown"
    facts = [
        group.type,
        group.state,
        f"assignor {group.assignor or 'none'}",
        f"coordinator {coordinator}",
        _counted(len(group.members), "member"),
        f"total lag {group.total_lag}",
    ]
    unknown = f" and unknown in {_counted(group.unknown_lags, 'partition')}" if group.unknown_lags else ""
    print_line(f"group {group.name}: {', '.join(facts)}{unknown}")
    if group.members:
        print_table(("member", "instance", "client", "host", "partitions"), [_member_row(m) for m in group.members])
    if group.partitions:
        columns = ("topic", "partition", "committed", "latest", "lag", "owner")
        print_table(columns, [_lag_row(partition) for partition in group.partitions])


def _member_row(member: MemberDetails) -> tuple[object, ...]:
    by_topic = itertools.groupby(member.assigned, key=lambda place: place[0])
    shown = [f"{topic}:{','.join(str(partition) for _, partition in places)}" for topic, places in by_topic]
    return member.member_id, member.instance_id or "-", member.client_id, member.host, " ".join(shown) or "-"


def _lag_row(lag: PartitionLag) -> tuple[object, ...]:
    committed, latest = _or(lag.committed_offset, "-"), _or(lag.latest_offset, "?")
    return lag.topic, lag.partition, committed, latest, _or(lag.lag, "?"), lag.owner or "-"


def _reset_as_data(reset: Reset) -> dict[str, object]:
    return {
        "group": reset.group,
        "executed": reset.failures is not None,
        "partitions": [
            {
                "topic": step.survey.topic,
                "partition": step.survey.partition,
                "earliest_offset": step.survey.start_offset,
                "latest_offset": step.survey.end_offset,
                "committed_offset": step.survey.committed_offset,
                "new_offset": step.new_offset,
                "outcome": reset.outcome(step),
            }
            for step in reset.plan
        ],
    }


def _print_reset(reset: Reset) -> None:
    done = sum(reset.outcome(step) in (Outcome.PLANNED, Outcome.RESET) for step in reset.plan)
    count = f"{done} of {_counted(len(reset.plan), 'partition')}"
    name = f"group {reset.group}{'' if reset.exists else ', which is new'}"
    print_line(
        f"{name}: would reset {count}; --execute does it" if reset.failures is None else f"{name}: reset {count}"
    )
    columns = ("topic", "partition", "earliest", "latest", "committed", "new", "change")
    print_table(columns, [_reset_row(step, reset.outcome(step)) for step in reset.plan])


def _reset_row(step: PlannedReset, outcome: Outcome) -> tuple[object, ...]:
    survey = step.survey
    bounds = survey.start_offset, survey.end_offset
    offsets = _or(survey.committed_offset, "-"), _or(step.new_offset, "-")
    return survey.topic, survey.partition, *bounds, *offsets, _change(step, outcome)


def _change(step: PlannedReset, outcome: Outcome) -> str:
    """Return what happens to a partition, in a few words."""
    if outcome in (Outcome.LEFT, Outcome.FAILED):
        return {Outcome.LEFT: "none: nothing to shift", Outcome.FAILED: "failed"}[outcome]
    before, after = step.survey.committed_offset, step.new_offset
    assert after is not None, "only what is left alone has no new offset"
    change = "first commit" if before is None else f"{after - before:+d}" if step.is_change else "none"
    return f"{change} (asked for {step.wished_offset})" if step.is_bounded else change


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _or(number: int | None, otherwise: str) -> int | str:
    return otherwise if number is None else number
