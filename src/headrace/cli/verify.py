"""`headrace verify`: read the whole log and name every offset that cannot be read any more.

It opens the stores itself, with the options of `serve`: it needs no broker, runs beside any number of them, and
changes nothing in the log.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from headrace.cli.exits import FAILED
from headrace.cli.options import Config, DataDir, Metadata, Objects, Output, OutputAs, Set, configure_storage
from headrace.cli.printing import print_json, print_line, print_table, progress
from headrace.settings import HeadraceConfiguration

if TYPE_CHECKING:
    from headrace.broker.log_check import LogCheck
    from headrace.fetch.log_report import LogDamage

COLUMNS = ("topic", "partition", "offsets", "object", "bytes", "why")
NONE = "-"


def verify(
    log: Annotated[
        bool,
        typer.Option("--log", help="Verify the log. This is the default; `headrace table verify` is for tables."),
    ] = True,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic's log.")] = None,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    config: Config = None,
    set_: Set = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Read every record batch of the log, also those in tables; exit code 1 if offsets are missing or damaged."""
    assert log, "there is no other part to verify, and no option that turns this one off"
    configuration = configure_storage(data_dir, metadata, objects, config, set_)
    with progress("bytes checked", wanted=True) as told:
        found = asyncio.run(_verify(configuration, topic, told))
    if output is Output.JSON:
        print_json(check_as_data(found))
    else:
        print_check(found)
    if not found.report.is_clean:
        raise typer.Exit(FAILED)


def check_as_data(found: "LogCheck") -> dict[str, object]:
    """Return what was found as JSON can hold it."""
    report = found.report
    return {
        "clean": report.is_clean,
        "looked_at": {
            "topics": found.topics,
            "partitions": report.partitions,
            "entries": report.entries,
            "table_entries": report.table_entries,
            "read_bytes": report.read_bytes,
        },
        "damage_count": report.count,
        "damages": [msgspec.to_builtins(damage) for damage in report.damages()],
    }


def print_check(found: "LogCheck") -> None:
    """Print what was found: the damages, then what was looked at."""
    report, damages = found.report, found.report.damages()
    if damages:
        print_table(COLUMNS, [_row(damage) for damage in damages])
    if report.uncounted:
        print_line(f"and {report.uncounted} more damages")
    print_line(
        f"{found.topics} topics, {report.partitions} partitions, {report.entries} index entries"
        f" ({report.table_entries} in tables), {report.read_bytes:,} bytes checked"
    )
    print_line(
        "the log is clean"
        if report.is_clean
        else "the log is DAMAGED: restore these objects from a copy, or let consumers seek behind the damage"
    )


def _row(damage: "LogDamage") -> tuple[object, ...]:
    end_byte = damage.start_byte + damage.size_bytes
    return (
        damage.topic or NONE,
        damage.partition if damage.topic else NONE,
        f"{damage.start_offset}-{damage.end_offset - 1}" if damage.end_offset else NONE,
        damage.object_key or NONE,
        f"{damage.start_byte}-{end_byte - 1}" if damage.size_bytes else NONE,
        damage.why,
    )


async def _verify(configuration: HeadraceConfiguration, topic: str | None, told: Callable[[int], None]) -> "LogCheck":
    # Imported late, so that the other commands start without loading what opens storage.
    from headrace.broker.log_check import verify_log
    from headrace.broker.storage import assemble_runtime

    settings = configuration.tree
    runtime = assemble_runtime(settings, environment=os.environ, log_to=sys.stderr)
    return await verify_log(settings, runtime, topic=topic, progress=told)
