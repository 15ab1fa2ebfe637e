"""`headrace table`: look at the tables of topics, and prove that they hold what the log holds.

The commands open the stores themselves, with the options of `serve`: they need no broker, no Spark and no Java, and
change nothing.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import typer

from headrace.cli.cells import plain
from headrace.cli.exits import FAILED
from headrace.cli.options import Config, DataDir, Metadata, Objects, Output, OutputAs, Set, configure_storage
from headrace.cli.printing import print_json, progress
from headrace.settings import HeadraceConfiguration

if TYPE_CHECKING:
    from headrace.broker.table_desk import TableDesk

T = TypeVar("T")

MAX_SAMPLE_ROWS = 10_000

table_app = typer.Typer(
    name="table",
    help="List, show, sample and verify the tables of topics, and list their dead letters.",
    rich_markup_mode=None,
)

TopicName: TypeAlias = Annotated[str, typer.Argument(metavar="TOPIC")]


@table_app.command("list")
def list_(
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    config: Config = None,
    set_: Set = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """List all topics with their tables: how far behind each is, rows, files, snapshots, last commit."""
    from headrace.cli.table_views import print_list, summary_as_data

    configuration = configure_storage(data_dir, metadata, objects, config, set_)
    views = _at_desk(configuration, lambda desk: desk.all())
    if output is Output.JSON:
        print_json([summary_as_data(view) for view in views])
    else:
        print_list(views)


@table_app.command()
def show(
    topic: TopicName,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    config: Config = None,
    set_: Set = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Show one table: where it lies, its columns, refs and snapshots, the vector, the run that is under way."""
    from headrace.cli.table_views import details_as_data, print_details

    async def ask(desk: "TableDesk") -> dict[str, object]:
        view = await desk.one(topic)
        return details_as_data(view, await desk.condemned(view.topic.id))

    details = _at_desk(configure_storage(data_dir, metadata, objects, config, set_), ask)
    if output is Output.JSON:
        print_json(details)
    else:
        print_details(details)


@table_app.command()
def sample(
    topic: TopicName,
    count: Annotated[
        int, typer.Option("-n", "--count", metavar="N", min=1, max=MAX_SAMPLE_ROWS, help="How many rows.")
    ] = 10,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    config: Config = None,
    set_: Set = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Print the rows that came into a table last, newest first."""
    from headrace.cli.table_views import print_rows

    configuration = configure_storage(data_dir, metadata, objects, config, set_)
    rows = _at_desk(configuration, lambda desk: desk.sample(topic, count=count))
    if output is Output.JSON:
        print_json([plain(row) for row in rows])
    else:
        print_rows(rows)


@table_app.command("dead-letters")
def dead_letters(
    topic: TopicName,
    limit: Annotated[
        int, typer.Option("-n", "--limit", metavar="N", min=1, max=MAX_SAMPLE_ROWS, help="How many of them.")
    ] = 20,
    partition: Annotated[int | None, typer.Option(metavar="P", min=0, help="Only those of one partition.")] = None,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    config: Config = None,
    set_: Set = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """List the values that did not fit their topic's schema, newest first, and why."""
    from headrace.cli.table_views import print_letters

    configuration = configure_storage(data_dir, metadata, objects, config, set_)
    letters = _at_desk(configuration, lambda desk: desk.dead_letters(topic, limit=limit, partition=partition))
    if output is Output.JSON:
        print_json([plain(letter) for letter in letters])
    else:
        print_letters(letters)


@table_app.command()
def verify(
    topic: TopicName,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    config: Config = None,
    set_: Set = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Prove that a table holds every record of its topic once, byte for byte; exit code 1 if it does not."""
    from headrace.cli.table_views import print_report, report_as_data

    with progress("bytes checked", wanted=True) as show_count:
        configuration = configure_storage(data_dir, metadata, objects, config, set_)
        report = _at_desk(configuration, lambda desk: desk.verify(topic, progress=show_count))
    if output is Output.JSON:
        print_json(report_as_data(report))
    else:
        print_report(report)
    if not report.is_clean:
        raise typer.Exit(FAILED)


def _at_desk(configuration: HeadraceConfiguration, ask: Callable[["TableDesk"], Awaitable[T]]) -> T:
    # Imported late, so that other commands start without loading the stores and Iceberg.
    from headrace.broker.storage import assemble_runtime
    from headrace.broker.table_desk import opened_table_desk

    settings = configuration.tree
    runtime = assemble_runtime(settings, environment=os.environ, log_to=sys.stderr)

    async def work() -> T:
        async with opened_table_desk(settings, runtime) as desk:
            return await ask(desk)

    return asyncio.run(work())
