"""`headrace pipeline run`: bring records into the tables, once or on and on, anywhere the stores can be reached."""

from typing import Annotated

import typer

from headrace.cli.options import Config, DataDir, Metadata, Objects, Set, configure
from headrace.errors import Invalid

pipeline_app = typer.Typer(name="pipeline", help="Bring records into the tables, with Spark.", no_args_is_help=True)


@pipeline_app.callback()
def pipeline() -> None:
    """Bring records into the tables, with Spark."""


@pipeline_app.command("run")
def run(
    once: Annotated[
        bool, typer.Option("--once", help="Bring in all that is in the log now, due or not, and end.")
    ] = False,
    loop: Annotated[
        bool, typer.Option("--loop", help="Go on until told to end; each topic's target lag says when it is due.")
    ] = False,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Where Spark runs tasks: local[*,4], spark://HOST:PORT, …"),
    ] = None,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    config: Config = None,
    set_: Set = None,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run the pipeline in this process: needs Spark and Java, and no broker. Ends with 1 if a topic failed."""
    if once == loop:
        raise Invalid("say --once to bring in what is there and end, or --loop to go on")
    configuration = configure(
        config,
        set_,
        {
            "data.dir": data_dir,
            "metadata.url": metadata,
            "objects.url": objects,
            "pipeline.spark.master": master,
        },
    )
    # Imported late, so that the other commands start without loading what opens stores.
    from headrace.cli.pipeline_process import run_pipeline

    raise typer.Exit(run_pipeline(configuration, once=once, supervised=supervised))
