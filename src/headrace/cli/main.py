"""The entry point of `headrace`: commands, and how an error ends one.

An error that we raise on purpose is one line on stderr: exit code 2 where what was asked for is wrong, 1 otherwise.
Anything else is a mistake of ours and keeps its traceback.
"""

import asyncio
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from headrace import __version__
from headrace.broker import Runtime, assemble_runtime, opened_storage
from headrace.cli.options import Config, DataDir, Metadata, Objects, Output, OutputAs, Set, configure
from headrace.cli.printing import print_json, print_settings, settings_as_data
from headrace.errors import HeadraceError, Invalid
from headrace.runtime.text import one_line
from headrace.settings import Settings

FAILED = 1
WRONG_USE = 2
INTERRUPTED = 130
MAX_ERROR_CHARS = 2000

app = typer.Typer(
    name="headrace",
    help="One log, three doors: a Kafka topic, a work queue and an Iceberg table.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command()
def serve(
    data_dir: DataDir = None,
    kafka: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The address for Kafka clients.")] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The address for HTTP.")] = None,
    node_id: Annotated[str | None, typer.Option(metavar="N", help="This broker's number in the cluster.")] = None,
    zone: Annotated[str | None, typer.Option(metavar="Z", help="The zone this broker stands in.")] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address that clients are told.")
    ] = None,
    metadata: Metadata = None,
    objects: Objects = None,
    config: Config = None,
    set_: Set = None,
) -> None:
    """Start a broker. So far this opens and proves its stores, and prints the settings it would serve with."""
    configuration = configure(
        config,
        set_,
        {
            "data.dir": data_dir,
            "metadata.url": metadata,
            "objects.url": objects,
            "listeners": kafka,
            "advertised.listeners": advertise,
            "http.listen": http,
            "node.id": node_id,
            "broker.rack": zone,
        },
    )
    runtime = assemble_runtime(configuration.tree, environment=os.environ, log_to=sys.stderr)
    runtime.log.debug("settings loaded", node_id=configuration.tree.broker.node_id, version=__version__)
    print_settings(configuration)
    print(f"\nRecord decoder: {decoder()}.")
    asyncio.run(prove_stores(configuration.tree, runtime))
    print("Both stores are open and keep their promises.")
    print("The broker is not built yet: these are the settings it would serve with.")


@app.command("settings")
def show_settings(
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    config: Config = None,
    set_: Set = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Print every setting, its value, and where the value came from."""
    configuration = configure(config, set_, {"data.dir": data_dir, "metadata.url": metadata, "objects.url": objects})
    if output is Output.JSON:
        print_json(settings_as_data(configuration))
    else:
        print_settings(configuration)


@app.command()
def version(output: OutputAs = Output.TEXT) -> None:
    """Print the versions of Headrace and of what it stands on."""
    versions = {
        "headrace": __version__,
        "python": platform.python_version(),
        "decoder": decoder(),
        "sqlite": sqlite_version(),
    }
    if output is Output.JSON:
        print_json(versions)
    else:
        for name, value in versions.items():
            print(f"{name:<9} {value}")


async def prove_stores(settings: Settings, runtime: Runtime) -> None:
    """Open the metadata store and the object store, prove them, and close them again."""
    async with opened_storage(settings, runtime):
        runtime.log.debug("stores proved", metadata=settings.metadata.url, objects=settings.objects.url)


def decoder() -> str:
    """Return which decoder of record batches is in use: compiled or pure Python."""
    # Imported late, so that an error in the settings is told without loading what serves.
    from headrace.records.columns import IMPLEMENTATION

    return IMPLEMENTATION


def sqlite_version() -> str:
    """Return the version of the SQLite that `apsw` brings along: apsw's own version begins with it."""
    return ".".join(importlib.metadata.version("apsw").split(".")[:3])


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = app(args=list(arguments), prog_name="headrace", standalone_mode=False)
    except typer.TyperException as error:
        return _complain(f"{error.format_message()} (headrace --help tells more)", WRONG_USE)
    except Invalid as error:
        return _complain(str(error), WRONG_USE)
    except HeadraceError as error:
        return _complain(str(error), FAILED)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    print(f"headrace: {one_line(message, max_chars=MAX_ERROR_CHARS)}", file=sys.stderr)
    return code


def main() -> None:
    """Run the command line of this process."""
    raise SystemExit(run(sys.argv[1:]))
