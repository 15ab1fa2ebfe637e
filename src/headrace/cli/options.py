"""Options that several commands share, and how they become settings.

Every command that opens storage takes the same ones, so that a collector or a pipeline is pointed at a cluster's data
with the very words its brokers were started with.
"""

import enum
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from headrace.settings import HeadraceConfiguration, load_settings


class Output(enum.StrEnum):
    """How a command prints data."""

    TEXT = "text"
    JSON = "json"


OPTION_OF_KEY: Mapping[str, str] = {
    "data.dir": "--data-dir",
    "node.id": "--node-id",
    "broker.rack": "--zone",
    "listeners": "--kafka",
    "advertised.listeners": "--advertise",
    "http.listen": "--http",
    "objects.url": "--objects",
    "metadata.url": "--metadata",
}
"""The settings that have an option of their own."""

DataDir: TypeAlias = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Where the embedded stores keep their data.")
]
Metadata: TypeAlias = Annotated[
    str | None, typer.Option("--metadata", metavar="URL", help="The metadata store: sqlite: or postgresql:.")
]
Objects: TypeAlias = Annotated[
    str | None, typer.Option("--objects", metavar="URL", help="The object store: file:, s3:, gs: or az:.")
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings.")
]
Set: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one setting; may be given many times."),
]
OutputAs: TypeAlias = Annotated[Output, typer.Option("--output", help="How to print: for people or for programs.")]


def configure(
    config: Path | None, pairs: list[str] | None, values: Mapping[str, str | None]
) -> HeadraceConfiguration:
    """Load the settings of this process; `values` holds what was given to options of their own, by key."""
    options = {key: (OPTION_OF_KEY[key], value) for key, value in values.items() if value is not None}
    return load_settings(file=config, environment=os.environ, pairs=pairs or (), options=options)
