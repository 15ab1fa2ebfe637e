"""`headrace collect`: delete what nothing names any more, now, without a broker or beside one.

Brokers collect by themselves; this is for a cluster whose brokers are down, and for who wants to see what would go.
One process collects at a time, so this one waits for its turn: a broker gives the lease back after each round.
"""

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Config, DataDir, Metadata, Objects, Output, OutputAs, Set, configure_storage
from headrace.cli.printing import print_json, print_line, print_table, progress
from headrace.settings import HeadraceConfiguration

if TYPE_CHECKING:
    from headrace.gc.removed import Removed

DEFAULT_WAIT_SECONDS = 30.0


def collect(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be deleted, and delete nothing.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, max=86_400, help="How long to wait while a broker collects."
        ),
    ] = DEFAULT_WAIT_SECONDS,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    config: Config = None,
    set_: Set = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Delete objects that nothing names any more: of the log, and of tables; print what went."""
    configuration = configure_storage(data_dir, metadata, objects, config, set_)
    removed = asyncio.run(_collect(configuration, is_dry_run=dry_run, wait_s=wait))
    if output is Output.JSON:
        print_json([{"key": one.key, "bytes": one.size_bytes, "why": one.why.value} for one in removed])
        return
    if removed:
        print_table(("object", "bytes", "why"), [(one.key, one.size_bytes, one.why.value) for one in removed])
    verb = "would be deleted" if dry_run else "deleted"
    size_bytes = sum(one.size_bytes for one in removed)
    print_line(f"{len(removed)} objects {verb}, {size_bytes:,} bytes as far as their sizes are known")


async def _collect(configuration: HeadraceConfiguration, *, is_dry_run: bool, wait_s: float) -> "list[Removed]":
    # Imported late, so that the other commands start without loading what opens storage.
    from headrace.broker.collecting import collect_all, survey_all
    from headrace.broker.storage import DOMAIN, assemble_runtime, opened_storage
    from headrace.broker.tables import open_table_catalog
    from headrace.metadata.keys import DomainKeys

    settings, keys = configuration.tree, DomainKeys(DOMAIN)
    runtime = assemble_runtime(settings, environment=os.environ, log_to=sys.stderr)
    async with opened_storage(settings, runtime) as storage, open_table_catalog(settings, runtime) as catalog:
        if is_dry_run:
            return await survey_all(settings, runtime, storage, keys, names=catalog)
        with progress("objects deleted", wanted=True) as told:
            return await collect_all(settings, runtime, storage, keys, wait_s=wait_s, told=told, names=catalog)
