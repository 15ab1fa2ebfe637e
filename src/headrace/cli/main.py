"""The entry point of `headrace`: commands, and how an error ends one.

An error that we raise on purpose is one line on stderr: exit code 2 where what was asked for is wrong, 1 otherwise.
Anything else is a mistake of ours and keeps its traceback.
"""

import platform
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from headrace import __version__
from headrace.cli.collect import collect
from headrace.cli.consume import consume
from headrace.cli.exits import DONE, INTERRUPTED, WRONG_USE, code_of
from headrace.cli.group import group_app
from headrace.cli.options import (
    Config,
    DataDir,
    Metadata,
    Objects,
    Output,
    OutputAs,
    Set,
    configure,
    configure_storage,
)
from headrace.cli.pipeline import pipeline_app
from headrace.cli.printing import complain, discard_stdout, print_json, print_settings, settings_as_data
from headrace.cli.produce import produce
from headrace.cli.sql import sql
from headrace.cli.table import table_app
from headrace.cli.topic import topic_app
from headrace.cli.verify import verify
from headrace.errors import HeadraceError

app = typer.Typer(
    name="headrace",
    help="One log, three doors: a Kafka topic, a work queue and an Iceberg table.",
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
    pipeline: Annotated[
        bool | None,
        typer.Option(
            "--pipeline/--no-pipeline", help="Whether to run the pipeline beside the broker; needs Java and Spark."
        ),
    ] = None,
    metadata: Metadata = None,
    objects: Objects = None,
    config: Config = None,
    set_: Set = None,
) -> None:
    """Start a broker; it prints one line when it is ready, and SIGTERM ends it in good order."""
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
            "pipeline.enable": None if pipeline is None else str(pipeline).lower(),
        },
    )
    # Imported late, so that the other commands start without loading what serves.
    from headrace.cli.serve import serve_until_told

    serve_until_told(configuration)


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
    configuration = configure_storage(data_dir, metadata, objects, config, set_)
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


app.add_typer(topic_app)
app.add_typer(group_app)
app.add_typer(table_app)
app.add_typer(pipeline_app)
app.command()(produce)
app.command()(consume)
app.command()(sql)
app.command()(collect)
app.command()(verify)


def decoder() -> str:
    """Return which decoder of record batches is in use: compiled or pure Python."""
    # Imported late, so that an error in the settings is told without loading what serves.
    from headrace.records.columns import IMPLEMENTATION

    return IMPLEMENTATION


def sqlite_version() -> str:
    """Return the version of the SQLite that `apsw` brings along: apsw's own version begins with it."""
    # Imported late: it takes longer than everything else that a command line loads.
    import importlib.metadata

    return ".".join(importlib.metadata.version("apsw").split(".")[:3])


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = app(args=list(arguments), prog_name="headrace", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        complain(f"{error.format_message()} (headrace --help tells more)")
        return WRONG_USE
    except HeadraceError as error:
        complain(str(error))
        return code_of(error)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # `| head` has seen enough: that is how a reader ends a command, and no failure. Typer makes code 1 of it.
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        discard_stdout()
        return DONE
    return code if isinstance(code, int) else DONE


def main() -> None:
    """Run the command line of this process."""
    raise SystemExit(run(sys.argv[1:]))
